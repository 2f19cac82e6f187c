"""One numbering of threads for rows that refer to several generations of tables."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpuprof.snapshots import fold
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.frames import ProcessDef
from gpuprof.snapshots.table_view import TablesView

_Key = tuple[int, int, int]  # pid, start of the process, tid


@dataclass(slots=True)
class People:
    """Threads, numbered from 0 in the order in which they were met; the same one in every generation."""

    names: list[str] = field(default_factory=list)
    tids: list[int] = field(default_factory=list)
    processes: list[ProcessDef] = field(default_factory=list)
    _numbers: dict[_Key, int] = field(default_factory=dict)
    _ids: dict[int, dict[int, int]] = field(default_factory=dict)  # generation -> number -> thread id
    _views: dict[int, TablesView] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def of(self, view: TablesView, thread: Array) -> Array:
        """Return the number of the thread of each row, given as ids of one generation (i64)."""
        used, inverse = fold.compact(thread, len(view.thread_process))
        ids = self._ids.setdefault(view.generation, {})
        self._views.setdefault(view.generation, view)
        numbers = np.empty(len(used), np.int64)
        for place, index in enumerate(used.tolist()):
            definition = view.threads[index]
            process = view.processes[definition.process]
            key = (process.pid, process.start_ns, definition.tid)
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self.names)
                self.names.append(definition.name)
                self.tids.append(definition.tid)
                self.processes.append(process)
            numbers[place] = number
            ids[number] = index
        return numbers[inverse]

    def id_in(self, view: TablesView, number: int) -> int | None:
        """Return the id that a thread has in a generation, None where no row of it was asked for there."""
        return self._ids.get(view.generation, {}).get(number)

    def view_of(self, number: int) -> TablesView:
        """Return the tables of the oldest generation in which a thread was met."""
        return next(self._views[generation] for generation, ids in self._ids.items() if number in ids)

    def process_key(self, number: int) -> tuple[int, int]:
        """Return pid and start time of the process of a thread."""
        return self.processes[number].pid, self.processes[number].start_ns
