"""Builds the BPF unwinder as an ordinary library and walks stacks with it: of a living, stopped process or
recorded ones.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from gpuprof.bpf import ehframe, syscalls
from gpuprof.bpf.records import Batch, RecordFlag, StopReason, batch_of
from gpuprof.bpf.sizes import TableSizes
from gpuprof.sampler.maps import read_maps
from gpuprof.sampler.python_runtime import PythonLayout, find_python
from gpuprof.sampler.unwind_tables import UnwindTables

HERE = Path(__file__).resolve().parent
BPF_FOLDER = Path(ehframe.__file__).resolve().parent
RING_BYTES = 1 << 16
TABLES = ("unwind_mappings", "unwind_pages", "unwind_rows", "unwind_rules", "python_layouts")
ADDRESS = (1 << 47) - 1  # of a user word; the bit above marks a guessed frame


class _Tables(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in TABLES),
        *((f"{name}_count", ctypes.c_uint64) for name in TABLES),
    )


class Start(ctypes.Structure):
    """Registers of a thread, as a walk begins with them."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("pc", "sp", "bp", "r10", "r13", "fsbase")),
        ("pid", ctypes.c_uint32),
        ("tid", ctypes.c_uint32),
    )


class Region(ctypes.Structure):
    """Bytes of a recorded process."""

    _fields_ = (("start", ctypes.c_uint64), ("size", ctypes.c_uint64), ("bytes", ctypes.c_char_p))


@dataclass(frozen=True)
class Walk:
    """What a walk found, innermost frame first. `counters`: program counters, the first exact, the others
    return addresses; `python`: (word 0, word 1) as in records.py.
    """

    stop: StopReason
    flags: RecordFlag
    counters: list[int]
    stack_pointers: list[int]
    python: list[tuple[int, int]]

    @classmethod
    def of_record(cls, batch: Batch, index: int) -> Walk:
        """From a record of the kernel's ring, or of this library."""
        first = int(batch.first[index]) + int(batch.n_kernel[index])
        words = batch.words[first : first + int(batch.n_user[index])]
        rest = batch.words[first + len(words) : first + len(words) + 2 * int(batch.n_python[index])].tolist()
        distances = (words >> np.uint64(48)).tolist()
        return cls(
            StopReason(int(batch.stop[index])),
            RecordFlag(int(batch.flags[index])),
            (words & np.uint64(ADDRESS)).tolist(),
            [int(batch.sp0[index]) + 8 * above for above in accumulate(distances)],
            list(zip(rest[::2], rest[1::2], strict=True)),
        )


class _Hashes:
    """Stands in for the system calls on hash maps."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, bytes], bytes] = {}

    def map_lookup(self, fd: int, key: bytes, value_size: int) -> bytes | None:
        return self.values.get((fd, key))

    def map_update(self, fd: int, key: bytes, value: bytes) -> None:
        self.values[fd, key] = value

    def map_delete(self, fd: int, key: bytes) -> bool:
        return self.values.pop((fd, key), None) is not None


class MemoryTables:
    """The unwind tables' maps in memory files, filled by the sampler's own UnwindTables."""

    def __init__(self, sizes: TableSizes, element_bytes: dict[str, int]) -> None:
        self.sizes = sizes
        counts = (sizes.mappings, sizes.pages, sizes.row_blocks, sizes.rules, sizes.python_layouts)
        self.counts = dict(zip(TABLES, counts, strict=True))
        self.maps = {name: os.memfd_create(name) for name in TABLES}
        for name in TABLES:
            os.ftruncate(self.maps[name], self.counts[name] * element_bytes[name] + 4095 & ~4095)
        self.maps |= {"processes": -1, "unwind_binaries": -2, "thread_states": -3}
        self._hashes = _Hashes()
        self._tables = self._replaced(lambda: UnwindTables(self))  # type: ignore[arg-type]

    def _replaced(self, call: Callable[[], Any]) -> Any:
        with (
            mock.patch.object(syscalls, "map_lookup", self._hashes.map_lookup),
            mock.patch.object(syscalls, "map_update", self._hashes.map_update),
            mock.patch.object(syscalls, "map_delete", self._hashes.map_delete),
        ):
            return call()

    def publish(self, pid: int) -> PythonLayout | None:
        """Fill the tables for a living process; the layout of its CPython."""
        mappings = read_maps(pid)
        python = find_python(pid, mappings)
        self._replaced(lambda: self._tables.publish(pid, mappings, python))
        return python

    def process(self, pid: int) -> bytes:
        """Its struct process_tables."""
        return self._hashes.values[self.maps["processes"], struct.pack("<I", pid)]

    def arrays(self) -> dict[str, np.ndarray]:
        """The maps' contents."""
        return {name: np.memmap(f"/proc/self/fd/{self.maps[name]}", np.uint8, "r") for name in TABLES}

    def close(self) -> None:
        """Give the memory back."""
        for name in TABLES:
            os.close(self.maps[name])


class UserUnwinder:
    """The compiled library. One process at a time."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("gcc")
        if compiler is None:
            raise FileNotFoundError("no C compiler")
        path = folder / "unwinder.so"
        warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-sign-compare", "-Wno-unused"]
        options = [
            "-std=gnu11", "-O2", "-fno-strict-aliasing", "-shared", "-fPIC", "-fvisibility=hidden",
            "-fsanitize=undefined", "-fno-sanitize=alignment", "-fsanitize-undefined-trap-on-error",
        ]  # fmt: skip
        includes = [f"-I{HERE}", f"-I{BPF_FOLDER}"]
        source = str(HERE / "unwinder.c")
        subprocess.run([compiler, *warnings, *options, *includes, "-o", str(path), source], check=True)
        self._library = ctypes.CDLL(str(path))
        self._library.unwinder_walk.restype = ctypes.c_int64
        self._library.unwinder_counter.restype = ctypes.c_uint64
        self._library.unwinder_reads.restype = ctypes.c_uint32
        sizes = (ctypes.c_uint64 * len(TABLES))()
        self._library.unwinder_element_bytes(sizes)
        self.element_bytes = dict(zip(TABLES, sizes, strict=True))
        self._out = np.zeros(RING_BYTES // 8, np.uint64)
        self._kept: list[object] = []  # what the library points to

    def use_tables(self, arrays: dict[str, np.ndarray], counts: dict[str, int]) -> None:
        """The arrays of layout.bpf.h by name, and the number of elements of each."""
        tables = _Tables()
        for name in TABLES:
            setattr(tables, name, arrays[name].ctypes.data)
            setattr(tables, f"{name}_count", counts[name])
        self._kept = [arrays]
        self._library.unwinder_set_tables(ctypes.byref(tables))

    def use_process(self, pid: int, *, first: int, count: int, python: int, bias: int) -> None:
        """Where the tables have a process: its head entry (whose serial is 1), mappings, Python layout."""
        self._library.unwinder_set_process(
            *(ctypes.c_uint32(value) for value in (pid, first, count, python)), ctypes.c_uint64(bias)
        )

    def use_published(self, tables: MemoryTables, pid: int) -> None:
        """The tables of a living process."""
        self.use_tables(tables.arrays(), tables.counts)
        self._library.unwinder_set_packed_process(ctypes.c_uint32(pid), ctypes.c_char_p(tables.process(pid)))
        self._library.unwinder_use_living(pid)

    def use_memory(self, regions: Sequence[tuple[int, bytes]]) -> None:
        """Recorded memory: sorted (address, bytes)."""
        array = (Region * len(regions))(*(Region(at, len(data), data) for at, data in regions))
        self._kept.append((array, regions))
        self._library.unwinder_use_recorded(array, ctypes.c_uint64(len(regions)))

    def walk(self, start: Start) -> Walk:
        """One walk. AssertionError when the unwinder sent no record, or did not end."""
        size = self._library.unwinder_walk(ctypes.byref(start), ctypes.c_void_p(self._out.ctypes.data))
        assert size > 0, f"the walk ended with {size}"
        return Walk.of_record(batch_of(self._out[: size // 8].copy(), np.zeros(1, np.int64)), 0)

    def reads(self) -> list[tuple[int, int]]:
        """(address, size) of what the last walk over a living process read."""
        log = np.zeros((65536, 2), np.uint64)
        count = self._library.unwinder_reads(ctypes.c_void_p(log.ctypes.data))
        return [(int(address), int(size)) for address, size in log[:count].tolist()]

    def counter(self, which: int) -> int:
        """A counter of layout.bpf.h (COUNTER_...)."""
        return int(self._library.unwinder_counter(which))
