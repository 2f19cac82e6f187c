"""Finds CPython in a process, and where its structures have what a stack walk needs (3.9 to 3.15, x86-64).

`_PyRuntime` is an exported symbol of every build, static or shared, also stripped. From 3.13 on it begins
with _Py_DebugOffsets (Include/internal/pycore_debug_offsets.h): the cookie "xdebugpy", the version (u64 at
8), whether the build is free-threaded (u64 at 16), then offsets of fields at positions that change with each
minor version, so there is a table per minor version. Before that the offsets themselves are constants of each
minor version. An unknown version is refused by name: wrong offsets would give wrong names.

All of this is in the file: a process need not have come so far as to start its interpreter, nor be alive.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from gpuprof.sampler.elf import ElfError, ElfFile, Segment, load_bias
from gpuprof.sampler.maps import Mapping, open_mapping

DEBUG_COOKIE = b"xdebugpy"
DEBUG_BLOCK_BYTES = 1024
_NAME = re.compile(r"(lib)?python\d")
_SYMBOLS = {"_PyRuntime", "Py_Version", "PyCode_Type", "_PyEval_EvalFrameDefault", "Py_Is", "PyFrame_GetCode"}


class UnsupportedPython(Exception):
    """A CPython whose structures are not known; the message names the version."""


@dataclass(frozen=True, slots=True)
class PythonLayout:
    """Addresses and byte offsets for the walk of one process's Python frames.

    `interpreters` is the address of the pointer to the newest interpreter, `bias` what was added to the
    linked addresses of the file `key`. `interp_*`, `threads_head`: interpreter; `ts_*`: thread state;
    `cframe` 1: its `ts_frame` points to a C frame that holds the current frame at `cf_cur`; `f_*`: frame;
    `co_*`: code object; `str_*`: str object; `code_type`: address of PyCode_Type (0: not known).
    """

    version: tuple[int, int]
    free_threaded: bool
    binary: str
    key: Hashable
    bias: int
    interpreters: int
    interp_next: int
    threads_head: int
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

    def at(self, bias: int) -> PythonLayout:
        """The same build in a process that has loaded it elsewhere."""
        moved = bias - self.bias
        code_type = self.code_type + moved if self.code_type else 0
        return replace(self, bias=bias, interpreters=self.interpreters + moved, code_type=code_type)

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
    """The layout of the CPython that a process maps; None when there is none.

    Looks at files named (lib)python* and at the main program, which may embed it. Raises UnsupportedPython
    for a version whose structures are not known.
    """
    for mapping in candidates(mappings):
        image = _image(pid, mapping)
        if image is None or image.python is None:
            continue
        bias = load_bias(image.segments, mapping.start, mapping.offset)
        if bias is not None:
            if isinstance(image.python, UnsupportedPython):
                raise image.python
            return image.python.at(bias)
    return None


@dataclass(frozen=True, slots=True)
class _Image:
    """What is kept of a file that was looked at, so that each is read once. `python`: its interpreter, as
    linked.
    """

    segments: tuple[Segment, ...]
    python: PythonLayout | UnsupportedPython | None


_images: dict[object, _Image] = {}
_MAX_IMAGES = 512


def _image(pid: int, mapping: Mapping) -> _Image | None:
    image = _images.get(mapping.key)
    if image is None:
        try:
            with ElfFile(open_mapping(pid, mapping)) as elf:
                image = _Image(tuple(elf.loads), read_layout(elf, mapping.name, mapping.key))
        except OSError:
            return None
        except ElfError:
            image = _Image((), None)
        except UnsupportedPython as error:
            image = _Image(tuple(elf.loads), error)
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


def read_layout(elf: ElfFile, binary: str, key: Hashable) -> PythonLayout | None:
    """The interpreter in a file, at its linked addresses; None when there is none. Raises
    UnsupportedPython, ElfError.
    """
    symbols = elf.dynamic_symbols(_SYMBOLS)
    if "_PyRuntime" not in symbols:
        return None
    addresses = {name: value for name, (value, _) in symbols.items()}
    runtime = addresses["_PyRuntime"]
    block = _linked_bytes(elf, runtime, DEBUG_BLOCK_BYTES)
    if block[:8] == DEBUG_COOKIE and len(block) == DEBUG_BLOCK_BYTES:
        version, free_threaded, fields = _from_debug_offsets(block)
    else:
        version, free_threaded = _version(elf, addresses, binary), False
        if version not in _STATIC:
            raise _unsupported(version, binary)
        fields = dict(zip(_FIELDS, _STATIC[version], strict=True))
        fields |= {"str_length": 16, "str_state": 32}
    return PythonLayout(
        version=version, free_threaded=free_threaded, binary=binary, key=key, bias=0,
        interpreters=runtime + fields.pop("interpreters_head"),
        code_type=addresses.get("PyCode_Type", 0), **fields,
    )  # fmt: skip


def _linked_bytes(elf: ElfFile, address: int, size: int) -> bytes:
    """What a file has at a linked address; b"" where it has nothing."""
    offset = elf.offset_of(address)
    return elf.read(offset, min(size, elf.size - offset)) if offset is not None else b""


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


def _version(elf: ElfFile, addresses: dict[str, int], binary: str) -> tuple[int, int]:
    """(major, minor) of a CPython without _Py_DebugOffsets: Py_Version (3.11+), else exports that came with a
    version.
    """
    if "Py_Version" in addresses:
        raw = _linked_bytes(elf, addresses["Py_Version"], 4)
        return (raw[3], raw[2]) if len(raw) == 4 else (0, 0)
    if "Py_Is" in addresses:
        return 3, 10
    if "PyFrame_GetCode" in addresses:
        return 3, 9
    named = re.search(r"python(\d)\.(\d+)", binary)
    return (int(named[1]), int(named[2])) if named else (0, 0)


def _unsupported(version: tuple[int, int], binary: str) -> UnsupportedPython:
    if version == (0, 0):
        return UnsupportedPython(f"CPython of unknown version, older than 3.9, has no Python rows ({binary})")
    return UnsupportedPython(f"CPython {version[0]}.{version[1]} has no Python rows (3.9 to 3.15 have)")
