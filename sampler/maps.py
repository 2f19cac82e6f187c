"""Reader of /proc/PID/maps: which file, or which anonymous memory, a code address of a process lies in.

The format (proc_pid_maps(5)), one mapping a line:

    7f0000000000-7f0000020000 r-xp 00020000 fd:01 132        /opt/a\\012b/lib.so (deleted)
    start        end          perm offset   dev   inode      path

Addresses and offset are hexadecimal, the inode decimal. A newline (on some kernels also space, tab and
backslash) in a path is written as a backslash and three octal digits. `[vdso]`, `[heap]`, `[anon:name]` are
not paths. A memfd shows as "/memfd:name (deleted)" with an inode but can be opened through map_files only, as
can a deleted file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Hashable
from dataclasses import dataclass

from gpuprof.snapshots.names import clean

MAX_MAPS_BYTES = 16 << 20  # 65,530 mappings (vm.max_map_count) of ordinary lines; longer files are cut
MAX_FILE_BYTES = 16 << 30  # sparse giants are refused, the largest real libraries have 2-3 GB
_DELETED = b" (deleted)"
_ANONYMOUS_PATHS = (b"//anon", b"/anon_hugepage", b"/dev/zero", b"/SYSV")

_LINE = re.compile(
    rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([r-])([w-])([x-])[ps] ([0-9a-f]{1,16}) "
    rb"([0-9a-f]{1,8}:[0-9a-f]{1,8}) ([0-9]{1,20})(?:[ ]+([^\n]*))?$",
    re.MULTILINE,
)
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True, slots=True)
class Mapping:
    """One mapping [start, end) of a process; `offset` is the file offset of `start`.

    `kind` is "file", "memfd", "vdso" or "anonymous". `path` is the decoded path of a named file ("[vdso]" for
    the vdso), for information only: what is opened is the mapping itself. `name` is clean, for display.
    `stamp` tells files apart that got the same inode number one after the other (0: not read).
    """

    start: int
    end: int
    offset: int
    device: str
    inode: int
    path: str | None
    deleted: bool
    executable: bool
    kind: str
    name: str
    stamp: int = 0
    writable: bool = False

    @property
    def key(self) -> Hashable:
        """Identity of the binary that is mapped, the same in every process; None for anonymous memory."""
        if self.kind == "vdso":
            return ("vdso",)
        if self.kind == "anonymous":
            return None
        return (self.device, self.inode, self.stamp)


def parse_maps(text: bytes, *, executable_only: bool = False) -> list[Mapping]:
    """The mappings of a maps file, by address. Lines that are not of the format are skipped."""
    mappings = []
    for match in _LINE.finditer(text):
        executable = match[5] == b"x"
        if executable_only and not executable:
            continue
        start, end = int(match[1], 16), int(match[2], 16)
        if start >= end or end > 1 << 64:
            continue
        raw = match[9] or b""
        if raw == b"[vsyscall]":
            continue
        inode = int(match[8])
        kind, path, deleted, name = describe_mapped(raw, inode)
        mappings.append(
            Mapping(
                start,
                end,
                int(match[6], 16),
                match[7].decode(),
                inode,
                path,
                deleted,
                executable,
                kind,
                name,
                writable=match[4] == b"w",
            )
        )
    return mappings


def read_maps(pid: int) -> list[Mapping]:
    """The executable mappings of a living process, stamped; an empty list when it is gone or not readable."""
    text = _read_capped(f"/proc/{pid}/maps", MAX_MAPS_BYTES)
    mappings = parse_maps(text[: text.rfind(b"\n") + 1], executable_only=True)
    return [_stamped(pid, mapping) if mapping.kind in {"file", "memfd"} else mapping for mapping in mappings]


def map_file_path(pid: int, mapping: Mapping) -> str:
    """The magic link that opens the very file that is mapped, whatever its path says by now."""
    return f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"


def open_mapping(pid: int, mapping: Mapping) -> int:
    """A descriptor of the mapped file (the caller closes it); for the vdso a copy of this process's own.

    Raises OSError when it cannot be opened, or is not a regular file of a sane size.
    """
    if mapping.kind == "vdso":
        return _own_vdso()
    if mapping.kind == "anonymous":
        raise FileNotFoundError("anonymous memory has no file")
    fd = os.open(map_file_path(pid, mapping), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_FILE_BYTES:
        os.close(fd)
        raise OSError("not a regular file of a sane size")
    return fd


def describe_mapped(raw: bytes, inode: int) -> tuple[str, str | None, bool, str]:
    """Kind, path, deleted and display name of the last column of a line, from its inode."""
    if raw == b"[vdso]":
        return "vdso", "[vdso]", False, "[vdso]"
    if not raw.startswith(b"/") or inode == 0:
        return "anonymous", None, False, clean(_unescape(raw)) if raw else "[anon]"
    deleted = raw.endswith(_DELETED)
    path = _unescape(raw[: -len(_DELETED)] if deleted else raw)
    if path.startswith(_ANONYMOUS_PATHS):
        return "anonymous", None, deleted, clean(path)
    if path.startswith(b"/memfd:"):
        return "memfd", None, deleted, clean(path[1:])
    return "file", os.fsdecode(path), deleted, clean(path[path.rfind(b"/") + 1 :])


def _unescape(raw: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes((int(match[1], 8),)), raw) if b"\\" in raw else raw


def _stamped(pid: int, mapping: Mapping) -> Mapping:
    try:
        info = os.stat(map_file_path(pid, mapping))
    except OSError:
        return mapping
    return Mapping(
        mapping.start, mapping.end, mapping.offset, mapping.device, mapping.inode, mapping.path,
        mapping.deleted, mapping.executable, mapping.kind, mapping.name,
        (info.st_mtime_ns ^ info.st_size) & (1 << 64) - 1, mapping.writable,
    )  # fmt: skip


def _read_capped(path: str, limit: int) -> bytes:
    chunks = []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        while limit > 0 and (chunk := os.read(fd, min(limit, 1 << 20))):
            chunks.append(chunk)
            limit -= len(chunk)
    except OSError:
        return b""  # the process went away in the middle: half a list would name wrong files
    finally:
        os.close(fd)
    return b"".join(chunks)


def _own_vdso() -> int:
    """A memfd with this process's vdso; the kernel maps the same one into every 64-bit process."""
    with open("/proc/self/maps", "rb") as file:
        own = next((m for m in parse_maps(file.read(), executable_only=True) if m.kind == "vdso"), None)
    if own is None:
        raise FileNotFoundError("no vdso is mapped here")
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(own.start)
        image = memory.read(own.end - own.start)
    fd = os.memfd_create("vdso", os.MFD_CLOEXEC)
    os.write(fd, image)
    return fd
