"""Unwind rows of a binary from its .eh_frame section: the C parser where it was built, else the same in
Python.
"""

from __future__ import annotations

import ctypes
import importlib.resources
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARY = "libgpuprof_ehframe.so"
MAX_RANGES = 64
STATUS_WORDS = {
    1: "not enough memory for its unwind rows",
    2: "its .eh_frame is too large",
    3: "its .eh_frame is needlessly complex",
    4: "its .eh_frame describes no code",
}


class EhFrameError(Exception):
    """No rows can be had from this section; the text says why."""


@dataclass(frozen=True, slots=True, eq=False)
class UnwindRows:
    """Rows sorted by linked address, row 0 being the one before all others, without a rule.

    rows u32[n]: index into `rules` << 16 | low half of the address; page_starts u32[pages + 1]: first row in
    each 64 KiB from `first_page` (address >> 16) on; rules u64[k]: packed struct unwind_rule, rule 0 is none.
    """

    rows: NDArray[np.uint32]
    page_starts: NDArray[np.uint32]
    first_page: int
    rules: NDArray[np.uint64]
    fde_count: int
    unsupported: int  # instructions, expressions and CIEs that were not understood

    def addresses(self) -> NDArray[np.uint64]:
        """Linked address of each row but row 0."""
        pages = np.repeat(np.arange(len(self.page_starts) - 1, dtype=np.uint64), np.diff(self.page_starts))
        return (pages + np.uint64(self.first_page) << np.uint64(16)) | (
            self.rows[1:] & np.uint32(0xFFFF)
        ).astype(np.uint64)


class _Result(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.POINTER(ctypes.c_uint32)),
        ("page_starts", ctypes.POINTER(ctypes.c_uint32)),
        ("rules", ctypes.POINTER(ctypes.c_uint64)),
        ("first_page", ctypes.c_uint64),
        ("row_count", ctypes.c_uint32),
        ("page_count", ctypes.c_uint32),
        ("rule_count", ctypes.c_uint32),
        ("fde_count", ctypes.c_uint32),
        ("unsupported", ctypes.c_uint32),
        ("status", ctypes.c_uint32),
    )


def library_paths() -> Iterator[Path]:
    """Where the built parser may lie: beside this package, or, for an editable install, in site-packages."""
    yield Path(str(importlib.resources.files("gpuprof.bpf"))) / LIBRARY
    yield Path(__file__).parent / LIBRARY
    yield Path(sysconfig.get_paths()["platlib"]) / "gpuprof" / "bpf" / LIBRARY


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL | None:
    """The C parser, or None when it was not built (no compiler at installation)."""
    for path in library_paths():
        if path.is_file():
            try:
                return open_library(path)
            except OSError:
                continue
    return None


def open_library(path: Path) -> ctypes.CDLL:
    """The C parser in this file; OSError when it is none."""
    library = ctypes.CDLL(str(path))
    array = (ctypes.c_void_p, ctypes.c_uint64)
    library.gpuprof_ehframe_build.argtypes = (*array, ctypes.c_uint64, *array, ctypes.POINTER(_Result))
    library.gpuprof_ehframe_build.restype = ctypes.c_int
    library.gpuprof_ehframe_free.argtypes = (ctypes.POINTER(_Result),)
    library.gpuprof_ehframe_free.restype = None
    return library


def build_rows(section: bytes, address: int, ranges: Sequence[tuple[int, int]]) -> UnwindRows:
    """Rows of an .eh_frame section linked at `address`; FDEs outside of `ranges` (executable, [begin, end))
    are dropped.

    Raises EhFrameError. The C parser takes about 0.4 us a function (and releases the GIL), the Python one
    about 10 us.
    """
    library = load_library()
    if library is None:
        from gpuprof.bpf.ehframe_python import build_rows_in_python

        return build_rows_in_python(section, address, ranges)
    return build_rows_in_c(library, section, address, ranges)


def build_rows_in_c(
    library: ctypes.CDLL, section: bytes, address: int, ranges: Sequence[tuple[int, int]]
) -> UnwindRows:
    """build_rows by the C parser."""
    limits = np.array(ranges[:MAX_RANGES], np.uint64).reshape(-1)
    result = _Result()
    data = ctypes.cast(ctypes.c_char_p(section), ctypes.c_void_p)
    status = library.gpuprof_ehframe_build(
        data,
        len(section),
        address & (1 << 64) - 1,
        limits.ctypes.data,
        len(limits) // 2,
        ctypes.byref(result),
    )
    if status:
        raise EhFrameError(STATUS_WORDS.get(status, f"status {status}"))
    try:
        return UnwindRows(
            rows=_copy(result.rows, result.row_count, np.uint32),
            page_starts=_copy(result.page_starts, result.page_count + 1, np.uint32),
            first_page=result.first_page,
            rules=_copy(result.rules, result.rule_count, np.uint64),
            fde_count=result.fde_count,
            unsupported=result.unsupported,
        )
    finally:
        library.gpuprof_ehframe_free(ctypes.byref(result))


def _copy(pointer: Any, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """A copy of a C array. Not by np.ctypeslib.as_array: it makes a type for every length, which stays."""
    return np.frombuffer(ctypes.string_at(pointer, count * np.dtype(dtype).itemsize), dtype)
