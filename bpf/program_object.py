"""The compiled BPF programs as bytes: code, the maps that it names, and where both meet.

What the compiler gives and the cache keeps. The code of a program is an array of 8-byte instructions
(kernel, Documentation/bpf/standardization): opcode u8, registers u8 (the high half is the source register),
offset s16, immediate s32. An instruction with opcode 0x18 takes two, for a 64-bit immediate; with source
register 1 that is a map, by a descriptor in the first immediate. Here descriptors are 0 until link() puts in
the real ones, and the seed of the hashes is 0 until then, too.

A file of it: magic, SHA-256 of all that follows, length of the header (u32), header (JSON), code. All of
it is checked when it is read, in size, type and place.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAGIC = b"gpuprof bpf 1\n\0\0"
MAX_BYTES = 4 << 20
MAX_MAPS = 128
MAX_PROGRAMS = 128
MAX_MAP_NUMBER = (1 << 32) - 1
INSTRUCTION_BYTES = 8

_LOAD_64 = 0x18
_PSEUDO_MAP_FD = 1
_CALL = 0x85
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_DIGEST_BYTES = 32
_HEADER_AT = len(MAGIC) + _DIGEST_BYTES + 4


class ObjectError(Exception):
    """Not such a file, or not such code; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class MapSpec:
    """What BPF_MAP_CREATE is told; `type` is enum bpf_map_type."""

    name: str
    type: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int


@dataclass(frozen=True, slots=True)
class Program:
    """One program. `maps`: (instruction, map name) of each reference; `seeds`: instructions that load the
    seed.
    """

    name: str
    code: bytes
    maps: tuple[tuple[int, str], ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProgramObject:
    """All programs and maps, by name."""

    maps: Mapping[str, MapSpec]
    programs: Mapping[str, Program]


def take(name: str, code: bytes, map_of: Callable[[int], str], seed: int) -> Program:
    """A program from code with real descriptors and `seed` in it. `map_of`: the map of a descriptor
    (KeyError: none).

    Raises ObjectError for what cannot be linked again.
    """
    words = bytearray(code)
    maps: list[tuple[int, str]] = []
    seeds: list[int] = []
    for at, source, value in _wide_loads(code):
        if source == _PSEUDO_MAP_FD:
            try:
                maps.append((at, map_of(value & 0xFFFFFFFF)))
            except KeyError:
                raise ObjectError(f"{name} names a map that is none of ours") from None
            _put(words, at, 0)
        elif source:
            raise ObjectError(f"{name} refers to what is neither a map nor a number")
        elif value == seed:
            seeds.append(at)
            _put(words, at, 0)
    return Program(name, bytes(words), tuple(maps), tuple(seeds))


def link(program: Program, descriptors: Mapping[str, int], seed: int) -> bytes:
    """Code for BPF_PROG_LOAD. KeyError for a map that has no descriptor."""
    words = bytearray(program.code)
    for at, name in program.maps:
        _put(words, at, descriptors[name])
    for at in program.seeds:
        _put(words, at, seed)
    return bytes(words)


def helpers(program: Program) -> set[int]:
    """Numbers of the kernel's helper functions that a program calls (enum bpf_func_id)."""
    found = set()
    for at in range(0, len(program.code), INSTRUCTION_BYTES):
        if program.code[at] == _CALL and not program.code[at + 1]:
            found.add(struct.unpack_from("<i", program.code, at + 4)[0])
    return found


def pack(programs: ProgramObject) -> bytes:
    """The object as a file."""
    header = json.dumps(
        {
            "maps": [
                [m.name, m.type, m.key_size, m.value_size, m.max_entries, m.flags]
                for m in programs.maps.values()
            ],
            "programs": [[p.name, len(p.code), p.maps, p.seeds] for p in programs.programs.values()],
        }
    ).encode()
    code = b"".join(p.code for p in programs.programs.values())
    body = struct.pack("<I", len(header)) + header + code
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(data: bytes) -> ProgramObject:
    """The object of a file. Raises ObjectError, and nothing else, whatever the bytes are."""
    if len(data) > MAX_BYTES or len(data) < _HEADER_AT or not data.startswith(MAGIC):
        raise ObjectError("not a file of compiled programs")
    body_at = len(MAGIC) + _DIGEST_BYTES
    if hashlib.sha256(memoryview(data)[body_at:]).digest() != data[len(MAGIC) : body_at]:
        raise ObjectError("its checksum does not match")
    (size,) = struct.unpack_from("<I", data, body_at)
    if size > len(data) - _HEADER_AT:
        raise ObjectError("its header is cut off")
    try:
        header = json.loads(data[_HEADER_AT : _HEADER_AT + size])
        return _object_of(header, data[_HEADER_AT + size :])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ObjectError(f"its header is not right: {error!r:.200}") from None


def _object_of(header: Any, code: bytes) -> ProgramObject:
    maps = {name: MapSpec(name, *map(_number, numbers)) for name, *numbers in header["maps"]}
    programs: dict[str, Program] = {}
    at = 0
    for name, size, references, seeds in header["programs"]:
        part = code[at : at + _number(size)]
        at += size
        if size % INSTRUCTION_BYTES or len(part) != size or not size:
            raise ObjectError("its code is cut off")
        program = Program(
            name, part, tuple((_number(i), n) for i, n in references), tuple(map(_number, seeds))
        )
        loads = {i: source for i, source, _ in _wide_loads(part)}
        if any(loads.get(i) != _PSEUDO_MAP_FD or n not in maps for i, n in program.maps):
            raise ObjectError(f"{name:.64} names a map where none can be")
        if any(loads.get(i) != 0 for i in program.seeds):
            raise ObjectError(f"{name:.64} has its seed where none can be")
        programs[name] = program
    if at != len(code):
        raise ObjectError("there is more code than programs")
    names = [*maps, *programs]
    if len(maps) > MAX_MAPS or len(programs) > MAX_PROGRAMS or not programs:
        raise ObjectError("too many maps or programs, or none")
    if not all(isinstance(name, str) and _NAME.match(name) for name in names):
        raise ObjectError("a name is not one")
    return ProgramObject(maps, programs)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_MAP_NUMBER:
        raise ValueError("not a number that can be")
    return value


def _wide_loads(code: bytes) -> list[tuple[int, int, int]]:
    """(instruction, source register, 64-bit immediate) of each two-part load. ObjectError for torn code."""
    if len(code) % INSTRUCTION_BYTES:
        raise ObjectError("code is a whole number of instructions")
    found = []
    at, count = 0, len(code) // INSTRUCTION_BYTES
    while at < count:
        if code[at * INSTRUCTION_BYTES] == _LOAD_64:
            if at + 1 == count:
                raise ObjectError("code ends within an instruction")
            _, registers, _, low = struct.unpack_from("<BBhI", code, at * INSTRUCTION_BYTES)
            (high,) = struct.unpack_from("<I", code, at * INSTRUCTION_BYTES + 12)
            found.append((at, registers >> 4, high << 32 | low))
            at += 1
        at += 1
    return found


def _put(code: bytearray, at: int, value: int) -> None:
    """Set the 64-bit immediate of the load at an instruction."""
    struct.pack_into("<I", code, at * INSTRUCTION_BYTES + 4, value & 0xFFFFFFFF)
    struct.pack_into("<I", code, at * INSTRUCTION_BYTES + 12, value >> 32)
