"""The longer messages of the kernel side: a mapping that it found by itself, who a new process is, its
code.

Layouts as in layout.bpf.h (struct mapping_message, who_message, code_message). Each comes once per process,
so that processes can be named that are gone before anybody could look at /proc.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from gpuprof.bpf.records import MESSAGE, ControlMessage, MessageReason

DEVICE_VDSO = 0xFFFFFFFF
BINARY_KEY = struct.Struct("<QQI4x")  # struct binary_key: inode, stamp, device
_MAPPING = struct.Struct("<IIQQQQQI4xI4xQQ")
_CODE = struct.Struct("<IIQ4Q224s192s256s512s")
_WHO = struct.Struct("<IIQIIII16s192s")


@dataclass(frozen=True, slots=True)
class MappingMessage:
    """An executable mapping [start, end) of a process, as it was at `time_ns`; `offset` is the file offset
    of `start`.

    `key` is Mapping.key of the sampler: (device, inode, stamp), ("vdso",), or None for anonymous memory.
    `known`: the kernel has the binary's tables.
    """

    reason: ClassVar[MessageReason] = MessageReason.MAPPING
    pid: int
    start_ns: int
    time_ns: int
    start: int
    end: int
    offset: int
    key: Hashable
    known: bool


@dataclass(frozen=True, slots=True)
class WhoMessage:
    """A process whose tables were not published when it was sampled. `own_pid`: in its own pid namespace;
    `command`: its arguments, each ended by a NUL, cut at 192 bytes.
    """

    reason: ClassVar[MessageReason] = MessageReason.WHO
    pid: int
    start_ns: int
    uid: int
    parent: int
    own_pid: int
    name: bytes
    command: bytes


@dataclass(frozen=True, slots=True)
class CodeMessage:
    """Memory that makes up a code object of CPython: (address, bytes) of the object, its name, its file's
    name and its line table, as far as they could be read, each cut.
    """

    reason: ClassVar[MessageReason] = MessageReason.CODE
    pid: int
    start_ns: int
    parts: tuple[tuple[int, bytes], ...]


Message = ControlMessage | MappingMessage | WhoMessage | CodeMessage


def parse_message(raw: bytes | memoryview) -> Message:
    """One record of the ring of messages (longer than it needs to be). ValueError for a reason that is not
    known.
    """
    pid, reason, address = MESSAGE.unpack_from(raw)
    if reason == MessageReason.MAPPING:
        _, _, start, end, offset, inode, stamp, device, known, time_ns, start_ns = _MAPPING.unpack_from(raw)
        key = _key(inode, stamp, device)
        return MappingMessage(pid, start_ns, time_ns, start, end, offset, key, bool(known))
    if reason == MessageReason.WHO:
        _, _, start_ns, uid, parent, own_pid, size, name, command = _WHO.unpack_from(raw)
        return WhoMessage(pid, start_ns, uid, parent, own_pid, name.partition(b"\0")[0], command[:size])
    if reason == MessageReason.CODE:
        _, _, start_ns, *rest = _CODE.unpack_from(raw)
        return CodeMessage(
            pid, start_ns, tuple(part for part in zip(rest[:4], rest[4:], strict=True) if part[0])
        )
    return ControlMessage(pid, MessageReason(reason), address)


def pack_key(key: Hashable) -> bytes | None:
    """struct binary_key of a Mapping.key; None for one that the kernel cannot make."""
    if key == ("vdso",):
        return BINARY_KEY.pack(0, 0, DEVICE_VDSO)
    if not isinstance(key, tuple) or len(key) != 3:
        return None
    device, inode, stamp = key
    major, _, minor = device.partition(":")
    return BINARY_KEY.pack(inode, stamp & (1 << 64) - 1, int(major, 16) << 20 | int(minor, 16))


def _key(inode: int, stamp: int, device: int) -> Hashable:
    if device == DEVICE_VDSO:
        return ("vdso",)
    if device == 0:
        return None
    return (f"{device >> 20:02x}:{device & 0xFFFFF:02x}", inode, stamp)
