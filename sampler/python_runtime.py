"""Finds CPython in a process, and where its structures have what a stack walk needs (3.9 to 3.15, x86-64).

`_PyRuntime` is an exported symbol of every build, static or shared, also stripped. From 3.13 on it begins
with _Py_DebugOffsets (Include/internal/pycore_debug_offsets.h): the cookie "xdebugpy", the version (u64 at
8), whether the build is free-threaded (u64 at 16), then offsets of fields at positions that change with each
minor version, so there is a table per minor version. Before that the offsets themselves are constants of each
minor version. An unknown version is refused by name: wrong offsets would give wrong names.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gpuprof.sampler.elf import ElfError, ElfFile, Segment, load_bias
from gpuprof.sampler.maps import Mapping, open_mapping

DEBUG_COOKIE = b"xdebugpy"
DEBUG_BLOCK_BYTES = 1024
MAX_INTERPRETERS = 8
_NAME = re.compile(r"(lib)?python\d")
_SYMBOLS = {"_PyRuntime", "Py_Version", "PyCode_Type", "_PyEval_EvalFrameDefault", "Py_Is", "PyFrame_GetCode"}


class UnsupportedPython(Exception):
    """A CPython whose structures are not known; the message names the version."""


@dataclass(frozen=True, slots=True)
class PythonLayout:
    """Addresses and byte offsets for the walk of one process's Python frames.

    `head` is the address of the main interpreter's pointer to its newest thread state, `heads` those of up to
    8 interpreters. `ts_*`: thread state; `cframe` 1: its `ts_frame` points to a C frame that holds the
    current frame at `cf_cur`; `f_*`: frame; `co_*`: code object; `str_*`: str object; `code_type`: address of
    PyCode_Type (0: not known).
    """

    version: tuple[int, int]
    free_threaded: bool
    binary: str
    head: int
    heads: tuple[int, ...]
    cframe: int
    cf_cur: int
    ts_frame: int
    ts_next: int
    ts_tid: int
    f_code: int
    f_prev: int
    f_instr: int
    f_owner: int
    co_bytecode: int
    co_firstlineno: int
    co_filename: int
    co_name: int
    co_qualname: int
    co_linetable: int
    str_length: int
    str_state: int
    str_ascii: int
    str_compact: int
    code_type: int

    @property
    def ob_type(self) -> int:
        """Offset of ob_type in an object."""
        return 24 if self.free_threaded else 8

    @property
    def bytes_size(self) -> int:
        """Offset of the length in a bytes object; the data follow after length and hash."""
        return 32 if self.free_threaded else 16

    @property
    def has_shim_frames(self) -> bool:
        """From 3.12 on each C call of the eval loop has an entry frame of its own, on the C stack."""
        return self.version >= (3, 12)


# Offsets in the order of _FIELDS, from DWARF of release builds.
_FIELDS = (
    "interpreters_head", "interp_next", "threads_head", "cframe", "cf_cur", "ts_frame", "ts_next", "ts_tid",
    "f_code", "f_prev", "f_instr", "f_owner", "co_bytecode", "co_firstlineno", "co_filename", "co_name",
    "co_qualname", "co_linetable", "str_ascii", "str_compact",
)  # fmt: skip
_STATIC: dict[tuple[int, int], tuple[int, ...]] = {
    (3, 9): (32, 0, 8, 0, 0, 24, 8, 176, 32, 24, 104, 0, 0, 40, 104, 112, 112, 120, 48, 72),
    (3, 10): (32, 0, 8, 0, 0, 24, 8, 176, 32, 24, 96, 0, 0, 40, 104, 112, 112, 120, 48, 72),
    (3, 11): (40, 0, 16, 1, 8, 56, 8, 152, 32, 48, 56, 68, 184, 72, 112, 120, 128, 136, 48, 72),
    (3, 12): (40, 0, 72, 1, 0, 56, 8, 136, 0, 8, 56, 70, 192, 68, 112, 120, 128, 136, 40, 56),
}

# Positions inside _Py_DebugOffsets of the offsets named in _DEBUG_FIELDS.
_DEBUG_FIELDS = (
    "interpreters_head", "interp_next", "threads_head", "ts_frame", "ts_next", "ts_tid", "f_code", "f_prev",
    "f_instr", "f_owner", "co_bytecode", "co_firstlineno", "co_filename", "co_name", "co_qualname",
    "co_linetable", "str_ascii",
)  # fmt: skip
_DEBUG: dict[tuple[int, int], tuple[int, ...]] = {
    (3, 13): (40, 64, 72, 184, 168, 192, 240, 232, 248, 264, 344, 312, 280, 288, 296, 304, 560),
    (3, 14): (40, 64, 72, 208, 192, 216, 264, 256, 272, 288, 384, 352, 320, 328, 336, 344, 640),
    (3, 15): (40, 64, 72, 208, 192, 240, 328, 320, 336, 352, 448, 416, 384, 392, 400, 408, 736),
}
_FRAME_BYTES = 112  # what the kernel side reads of a frame
_CODE_BYTES = 1024


def find_python(pid: int, mappings: Sequence[Mapping]) -> PythonLayout | None:
    """The layout of the CPython in a process; None when there is none, or it has not started up yet
    (`has_python` tells).

    Looks at files named (lib)python* and at the main program, which may embed it. Raises UnsupportedPython
    for a version whose structures are not known.
    """
    for mapping in candidates(mappings):
        image = _image(pid, mapping)
        if image is None or "_PyRuntime" not in image.symbols:
            continue
        bias = image.load_bias(mapping.start, mapping.offset)
        if bias is not None:
            addresses = {name: value + bias for name, (value, _) in image.symbols.items()}
            return _read_layout(pid, mapping.name, addresses)
    return None


@dataclass(frozen=True, slots=True)
class _Image:
    """What is kept of a file that was looked at, so that each is read once."""

    symbols: dict[str, tuple[int, int]]
    segments: tuple[Segment, ...]

    def load_bias(self, start: int, file_offset: int) -> int | None:
        return load_bias(self.segments, start, file_offset)


_images: dict[object, _Image] = {}
_MAX_IMAGES = 1024


def _image(pid: int, mapping: Mapping) -> _Image | None:
    image = _images.get(mapping.key)
    if image is None:
        try:
            with ElfFile(open_mapping(pid, mapping)) as elf:
                image = _Image(elf.dynamic_symbols(_SYMBOLS), tuple(elf.loads))
        except OSError:
            return None
        except ElfError:
            image = _Image({}, ())
        if len(_images) >= _MAX_IMAGES:
            _images.clear()
        _images[mapping.key] = image
    return image


def candidates(mappings: Sequence[Mapping]) -> list[Mapping]:
    """One mapping of each file that may hold an interpreter, likeliest first."""
    files: dict[object, Mapping] = {}
    for mapping in mappings:
        if mapping.kind == "file":
            files.setdefault(mapping.key, mapping)
    named = [mapping for mapping in files.values() if _NAME.match(mapping.name)]
    main = [mapping for mapping in list(files.values())[:1] if mapping not in named]
    return sorted(named, key=lambda mapping: not mapping.name.startswith("lib")) + main


def has_python(pid: int, mappings: Sequence[Mapping]) -> bool:
    """Whether an interpreter is mapped, started up or not."""
    images = (_image(pid, mapping) for mapping in candidates(mappings))
    return any(image is not None and "_PyRuntime" in image.symbols for image in images)


def _read_layout(pid: int, binary: str, addresses: dict[str, int]) -> PythonLayout | None:
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        runtime = addresses["_PyRuntime"]
        block = os.pread(memory, DEBUG_BLOCK_BYTES, runtime)
        if block[:8] == DEBUG_COOKIE and len(block) == DEBUG_BLOCK_BYTES:
            version, free_threaded, fields = _from_debug_offsets(block)
        else:
            version, free_threaded = _version(memory, addresses, binary), False
            if version not in _STATIC:
                raise _unsupported(version, binary)
            fields = dict(zip(_FIELDS, _STATIC[version], strict=True))
            fields |= {"str_length": 16, "str_state": 32}
        heads = _thread_heads(memory, runtime, fields)
        if not heads:
            return None
        for name in ("interpreters_head", "interp_next", "threads_head"):
            del fields[name]
        return PythonLayout(
            version=version, free_threaded=free_threaded, binary=binary, head=heads[0], heads=heads,
            code_type=addresses.get("PyCode_Type", 0), **fields,
        )  # fmt: skip
    except (OSError, OverflowError, struct.error):
        return None
    finally:
        os.close(memory)


def _from_debug_offsets(block: bytes) -> tuple[tuple[int, int], bool, dict[str, int]]:
    hex_version, free_threaded = struct.unpack_from("<QQ", block, 8)
    version = (hex_version >> 24 & 255, hex_version >> 16 & 255)
    positions = _DEBUG.get(version)
    if positions is None:
        raise _unsupported(version, "")
    fields = {
        name: struct.unpack_from("<Q", block, position)[0]
        for name, position in zip(_DEBUG_FIELDS, positions, strict=True)
    }
    state, length = struct.unpack_from("<QQ", block, positions[-1] - 16)
    fields |= {"cframe": 0, "cf_cur": 0, "str_state": state, "str_length": length}
    fields["str_compact"] = (
        fields["str_ascii"] + 16
    )  # a non-ASCII string has its UTF-8 pointer and length before its data
    for name, value in fields.items():
        limit = (
            _FRAME_BYTES
            if name.startswith(("f_", "str_"))
            else _CODE_BYTES
            if name.startswith("co_")
            else 1 << 16
        )
        if value >= limit:
            raise UnsupportedPython(
                f"CPython {version[0]}.{version[1]} with an offset out of range ({name} {value})"
            )
    return version, bool(free_threaded), fields


def _version(memory: int, addresses: dict[str, int], binary: str) -> tuple[int, int]:
    """(major, minor) of a CPython without _Py_DebugOffsets: Py_Version (3.11+), else exports that came with a
    version.
    """
    if "Py_Version" in addresses:
        (hex_version,) = struct.unpack("<I", os.pread(memory, 4, addresses["Py_Version"]))
        return hex_version >> 24 & 255, hex_version >> 16 & 255
    if "Py_Is" in addresses:
        return 3, 10
    if "PyFrame_GetCode" in addresses:
        return 3, 9
    named = re.search(r"python(\d)\.(\d+)", binary)
    return (int(named[1]), int(named[2])) if named else (0, 0)


def _unsupported(version: tuple[int, int], binary: str) -> UnsupportedPython:
    if version == (0, 0):
        return UnsupportedPython(f"CPython of unknown version, older than 3.9 ({binary})")
    return UnsupportedPython(f"CPython {version[0]}.{version[1]} (3.9 to 3.15 are known)")


def _thread_heads(memory: int, runtime: int, fields: dict[str, int]) -> tuple[int, ...]:
    """Addresses of threads.head of the interpreters, the main one first (new ones are put in front of it)."""

    def pointer(address: int) -> int:
        return int(struct.unpack("<Q", os.pread(memory, 8, address))[0])

    heads: list[int] = []
    interpreter = pointer(runtime + fields["interpreters_head"])
    while interpreter and interpreter < 1 << 47 and len(heads) < 64:
        heads.append(interpreter + fields["threads_head"])
        interpreter = pointer(interpreter + fields["interp_next"])
    return tuple(heads[::-1][:MAX_INTERPRETERS])
