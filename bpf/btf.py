"""Reader of BTF, the kernel's own type description: where a field lies in a structure.

The format (kernel, Documentation/bpf/btf.rst): a header {u16 magic 0xeb9f, u8 version, u8 flags, u32 header
length, u32 type offset, u32 type length, u32 string offset, u32 string length}, then types {u32 name, u32
info, u32 size or type} numbered from 1, each followed by data that depends on its kind: info bits 24-28 are
the kind, bits 0-15 a count. Members of a structure are {u32 name, u32 type, u32 bit offset}; with info bit 31
set only the low 24 bits of the offset are the offset.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from pathlib import Path

VMLINUX = Path("/sys/kernel/btf/vmlinux")

_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
_POINTER, _STRUCT, _UNION, _TYPEDEF, _VOLATILE, _CONST, _FUNC_PROTO = 2, 4, 5, 8, 9, 10, 13
_FIXED_EXTRA = {1: 4, 3: 12, 14: 4, 17: 4}  # INT, ARRAY, VAR, DECL_TAG
_PER_COUNT = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}  # STRUCT, UNION, ENUM, FUNC_PROTO, DATASEC, ENUM64


class BtfError(Exception):
    """Not BTF, or a field that this kernel does not have."""


class Btf:
    """Types of one BTF blob."""

    def __init__(self, blob: bytes) -> None:
        if len(blob) < _HEADER.size:
            raise BtfError("not BTF")
        magic, _, _, header, type_offset, type_size, string_offset, _ = _HEADER.unpack_from(blob)
        if magic != _MAGIC:
            raise BtfError("not BTF")
        self._blob = blob
        self._strings = header + string_offset
        self._at = [0]  # type id -> position
        self._structs: dict[str, int] = {}
        self._typedefs: dict[str, int] = {}
        position, end = header + type_offset, header + type_offset + type_size
        while position + _TYPE.size <= end:
            name, info, _ = _TYPE.unpack_from(blob, position)
            kind = info >> 24 & 31
            if kind == _STRUCT and name:
                self._structs.setdefault(self._string(name), len(self._at))
            elif kind == _TYPEDEF and name:
                self._typedefs.setdefault(self._string(name), len(self._at))
            self._at.append(position)
            position += _TYPE.size + _FIXED_EXTRA.get(kind, 0) + _PER_COUNT.get(kind, 0) * (info & 0xFFFF)

    @classmethod
    def of_kernel(cls, path: Path = VMLINUX) -> Btf:
        """The running kernel's. BtfError when it has none."""
        try:
            return cls(path.read_bytes())
        except OSError as error:
            raise BtfError(f"this kernel has no type information: {error}") from None

    def offset(self, structure: str, *fields: str) -> int:
        """Byte offset of a field, through nested structures: offset("task_struct", "thread", "fsbase")."""
        current = self._structs.get(structure)
        if current is None:
            raise BtfError(f"no struct {structure} in this kernel")
        total = 0
        for field in fields:
            found = self._member(current, field)
            if found is None:
                raise BtfError(f"no field {'.'.join(fields)} in struct {structure} of this kernel")
            total += found[0]
            current = self._strip(found[1])
        return total

    def first_offset(self, fields: Sequence[Sequence[str]]) -> int:
        """Offset of the first of some fields (structure, names as of `offset`) that this kernel has.
        BtfError when it has none.
        """
        for structure, *path in fields[:-1]:
            with contextlib.suppress(BtfError):
                return self.offset(structure, *path)
        structure, *path = fields[-1]
        return self.offset(structure, *path)

    def tracepoint_arguments(self, name: str) -> list[bool]:
        """Of each argument of a raw tracepoint whether it is a pointer. BtfError when there is no such one.

        Its type is that of the kernel's btf_trace_NAME, less the first argument, which is not passed on.
        """
        found = self._typedefs.get(f"btf_trace_{name}")
        if found is None:
            raise BtfError(f"no tracepoint {name} in this kernel")
        _, info, target = _TYPE.unpack_from(self._blob, self._at[self._strip(found)])
        position = self._at[self._strip(target)] if info >> 24 & 31 == _POINTER else 0
        _, info, _ = _TYPE.unpack_from(self._blob, position)
        if not position or info >> 24 & 31 != _FUNC_PROTO:
            raise BtfError(f"tracepoint {name} is no function")
        arguments = []
        for index in range(1, info & 0xFFFF):
            _, argument = struct.unpack_from("<II", self._blob, position + _TYPE.size + 8 * index)
            kind = self._at[self._strip(argument)] if argument else 0
            arguments.append(bool(kind) and _TYPE.unpack_from(self._blob, kind)[1] >> 24 & 31 == _POINTER)
        return arguments

    def _string(self, offset: int) -> str:
        start = self._strings + offset
        return self._blob[start : self._blob.index(b"\0", start)].decode("latin-1")

    def _strip(self, type_id: int) -> int:
        """The type behind typedefs and qualifiers."""
        while True:
            _, info, target = _TYPE.unpack_from(self._blob, self._at[type_id])
            if info >> 24 & 31 not in (_TYPEDEF, _VOLATILE, _CONST):
                return type_id
            type_id = target

    def _member(self, type_id: int, wanted: str) -> tuple[int, int] | None:
        """(byte offset, type) of a member, also inside anonymous members."""
        position = self._at[type_id]
        _, info, _ = _TYPE.unpack_from(self._blob, position)
        if info >> 24 & 31 not in (_STRUCT, _UNION):
            return None
        for index in range(info & 0xFFFF):
            name, member_type, bits = _TYPE.unpack_from(self._blob, position + _TYPE.size * (1 + index))
            offset = (bits & 0xFFFFFF if info >> 31 else bits) // 8
            if name:
                if self._string(name) == wanted:
                    return offset, member_type
            else:
                inner = self._member(self._strip(member_type), wanted)
                if inner is not None:
                    return offset + inner[0], inner[1]
        return None
