"""The processes of one generation and their threads, numbered from 0 each. Unlike those of the other tables
a definition may change, as when a program sets a name, and is then sent again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuprof.snapshots.change_order import ChangeOrder
from gpuprof.snapshots.columns import GrowingColumn
from gpuprof.snapshots.frames import ProcessDef, ThreadDef
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.table_view import ChangeCursor

_DEFS_PER_FRAME = 1 << 12
# Of a definition, with its entries in dictionaries; the texts apart. Measured with tracemalloc.
_PROCESS_BYTES, _PROCESS_FROZEN_BYTES = 400, 210
_THREAD_BYTES, _THREAD_FROZEN_BYTES = 320, 180
_TEXT_BYTES = 180  # an entry in the dictionary, and the header of the text


class ProcessTable:
    """Not thread-safe: History.lock is held around every call."""

    def __init__(self) -> None:
        self.processes: list[ProcessDef] = []
        self.threads: list[ThreadDef] = []
        self.thread_process = GrowingColumn("<u4")
        self.thread_tid = GrowingColumn("<u4")
        self.text_bytes = 0  # of names, command lines and users, each text once
        self._process_ids: dict[tuple[int, int], int] = {}
        self._process_changes = ChangeOrder()
        self._thread_ids: dict[tuple[int, int], int] = {}
        self._thread_changes = ChangeOrder()
        self._texts: dict[str, str] = {}  # of processes and threads, which are few: each is kept once
        self._version = 0
        self._frozen = False

    def process(self, definition: ProcessDef) -> int:
        """Return the id of a process, told apart by pid and start time; a definition that changed replaces
        the old one.
        """
        key = (definition.pid, definition.start_ns)
        found = self._process_ids.get(key)
        if found is not None and self.processes[found] == definition:
            return found
        definition = replace(
            definition,
            name=self._text(definition.name),
            cmdline=self._text(definition.cmdline),
            user=self._text(definition.user),
        )
        if found is None:
            found = len(self.processes)
            self._process_ids[key] = found
            self.processes.append(definition)
        else:
            self.processes[found] = definition
        self._changed(self._process_changes, found)
        return found

    def thread(self, process: int, tid: int, name: str) -> int:
        """Return the id of a thread of process id `process`; a new name replaces the old one. IndexError for
        a process that is not defined.
        """
        if not 0 <= process < len(self.processes):
            raise IndexError(f"process {process} is not defined")
        found = self._thread_ids.get((process, tid))
        if found is None:
            found = len(self.threads)
            self._thread_ids[process, tid] = found
            self.threads.append(ThreadDef(process, tid, self._text(clean(name))))
            self.thread_process.append(process)
            self.thread_tid.append(tid)
        elif self.threads[found].name != (name := clean(name)):
            self.threads[found] = ThreadDef(process, tid, self._text(name))
        else:
            return found
        self._changed(self._thread_changes, found)
        return found

    def fresh_processes(self, cursor: ChangeCursor) -> Iterator[tuple[int, int]]:
        """Yield runs [first, end) of processes to send to a reader at `cursor`, which is moved past a run
        before it is yielded.
        """
        return self._fresh(self._process_changes, len(self.processes), cursor)

    def fresh_threads(self, cursor: ChangeCursor) -> Iterator[tuple[int, int]]:
        """The same of threads."""
        return self._fresh(self._thread_changes, len(self.threads), cursor)

    @property
    def nbytes(self) -> int:
        """Return about how much memory the definitions take."""
        return (
            self.text_bytes
            + len(self.processes) * (_PROCESS_FROZEN_BYTES if self._frozen else _PROCESS_BYTES)
            + len(self.threads) * (_THREAD_FROZEN_BYTES if self._frozen else _THREAD_BYTES)
            + len(self._texts) * _TEXT_BYTES
        )

    def freeze(self) -> None:
        """Give back what only interning needs; the definitions are only read from now on."""
        self._frozen = True
        self._process_ids = {}
        self._thread_ids = {}
        self._texts = {}
        self._process_changes.freeze()
        self._thread_changes.freeze()

    def _text(self, text: str) -> str:
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = text
            self.text_bytes += len(text)
        return known

    def _changed(self, changes: ChangeOrder, item: int) -> None:
        self._version += 1
        changes.note(item, self._version)

    def _fresh(self, changes: ChangeOrder, length: int, cursor: ChangeCursor) -> Iterator[tuple[int, int]]:
        """Yield runs [first, end) of ids to send: those that changed since they were sent, then the new
        ones.
        """
        fresh: list[tuple[int, int]] = []
        for item, version in changes.newest_first():
            if version <= cursor.version:
                break
            if item < cursor.count:
                fresh.append((item, version))
        for item, cursor.version in reversed(fresh):
            yield item, item + 1
        while (low := cursor.count) < length:
            cursor.count = min(low + _DEFS_PER_FRAME, length)
            if cursor.count == length:
                cursor.version = self._version
            yield low, cursor.count
