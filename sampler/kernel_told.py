"""What the kernel side told of mappings and processes, as the sampler's own Mapping and ProcessDef.

The kernel names a file by device, inode and stamp; its path is known from processes that map the same file,
or read from /proc while the process is there.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence

from gpuprof.bpf.messages import MappingMessage, WhoMessage
from gpuprof.sampler.maps import Mapping, describe_mapped
from gpuprof.sampler.processes import NS_PER_TICK, user_name
from gpuprof.snapshots.frames import ProcessDef
from gpuprof.snapshots.names import clean

MAX_FILES = 2048  # some 600 bytes each; then they are learnt anew


class FileNames:
    """Kind, path and name of mapped files by Mapping.key."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Mapping] = {}

    def learn(self, mappings: Iterable[Mapping]) -> None:
        """Remember the files of a process."""
        self._make_room()
        for mapping in mappings:
            if mapping.key is not None:
                self._known[mapping.key] = mapping

    def _make_room(self) -> None:
        if len(self._known) >= MAX_FILES:
            self._known.clear()

    def mapping(self, message: MappingMessage) -> Mapping:
        """The mapping that a message tells of."""
        key = message.key
        if key is None:
            return Mapping(
                message.start, message.end, 0, "00:00", 0, None, False, True, "anonymous", "[anon]"
            )  # fmt: skip
        if key == ("vdso",):
            return Mapping(message.start, message.end, 0, "00:00", 0, "[vdso]", False, True, "vdso", "[vdso]")
        assert isinstance(key, tuple)
        device, inode, stamp = key
        like = self._known.get(key)
        if like is None:
            kind, path, deleted, name = _ask(message)
        else:
            kind, path, deleted, name = like.kind, like.path, like.deleted, like.name
        found = Mapping(
            message.start, message.end, message.offset, device, inode, path, deleted, True, kind, name, stamp
        )
        if like is None and path is not None:
            self._make_room()
            self._known[key] = found
        return found


def with_mapping(mappings: Sequence[Mapping], added: Mapping) -> list[Mapping]:
    """The mappings of a process, by address, after one was added in the place of those that it overlaps."""
    kept = [m for m in mappings if m.end <= added.start or m.start >= added.end]
    return sorted([*kept, added], key=lambda mapping: mapping.start)


def process_of(message: WhoMessage) -> ProcessDef:
    """The process that a message introduces, every string cleaned."""
    return ProcessDef(
        pid=message.pid,
        start_ns=to_tick(message.start_ns),
        name=clean(message.name, 64),
        cmdline=clean(message.command.rstrip(b"\0").replace(b"\0", b" ")),
        user=user_name(message.uid),
        uid=message.uid,
        ppid=message.parent,
        container_pid=message.own_pid if message.own_pid not in {0, message.pid} else None,
    )


def to_tick(start_ns: int) -> int:
    """A process's start as /proc/PID/stat has it, to the clock tick."""
    return start_ns - start_ns % NS_PER_TICK


def _ask(message: MappingMessage) -> tuple[str, str | None, bool, str]:
    """Kind, path, deleted and name of a mapped file, while the process is there."""
    link = f"/proc/{message.pid}/map_files/{message.start:x}-{message.end:x}"
    try:
        raw = os.fsencode(os.readlink(link))
    except OSError:
        return "file", None, False, "unknown file"
    return describe_mapped(raw, 1)
