"""Kernel names of one process: put together from their parts in the ring, demangled, numbered.

A name comes once in an attach epoch, in parts of up to 40 bytes in their order, under an id that keeps its
meaning for as long as the process lives. It is shown by a label (kernel_label.py): instantiations of one
kernel that differ in element types only are one row, with the name in full of the first that came.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.kernel_label import full_kernel_name, kernel_label
from gpuprof.sampler.text_parts import TextParts
from gpuprof.snapshots.frames import FrameKind

MAX_NAMES = 8192  # as names.h of the library; this id itself stands for all names after them
MAX_NAME_BYTES = 4096
MAX_FULL_BYTES = 512 << 10  # characters of a process's names in full
MAX_CALLS = 256  # distinct API calls that wait, each stream that they wait for counted
MAX_CALL_STREAMS = 128  # of them, those that name a stream; all others of a call are one
GPU_BINARY = "[gpu]"
WAIT_BINARY = "[cuda]"
COMMUNICATION = ("nccl", "nvshmem", "rccl")  # kernels of such names wait for other devices

Leaf = tuple[str, FrameKind]
COPIES = ("memcpy", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
COPY_LEAVES: tuple[Leaf, ...] = tuple(
    (f"memcpy {kind}" if kind != "memcpy" else kind, FrameKind.GPU_COPY) for kind in COPIES
)
MEMSET_LEAF: Leaf = ("memset", FrameKind.GPU_COPY)
NAMELESS: Leaf = ("[kernel without a name]", FrameKind.GPU_KERNEL)
OTHER_KERNELS: Leaf = ("[other kernels]", FrameKind.GPU_KERNEL)  # the tail of a process with very many names
_FIXED: tuple[Leaf, ...] = (NAMELESS, MEMSET_LEAF, OTHER_KERNELS, *COPY_LEAVES)
MEMSET_INDEX, OTHER_INDEX, FIRST_COPY_INDEX = 1, 2, 3


class NameTable:
    """Leaves of the GPU's tree for one process: `leaves[index]` is (name, kind); and the API calls that
    waited, `calls[index]`, whose names come in the same way. Not thread-safe.
    """

    def __init__(self) -> None:
        self.leaves: list[Leaf] = list(_FIXED)
        self.full: list[str] = [""] * len(
            _FIXED
        )  # by leaf: the first such kernel's name in full; "": the same
        self._full_left = MAX_FULL_BYTES
        self.calls: list[str] = ["[call without a name]"]
        self._index = np.zeros(MAX_NAMES + 1, np.uint32)  # leaf by id; 0 is NAMELESS
        self._index[MAX_NAMES] = OTHER_INDEX
        self._by_name: dict[str, int] = {}
        self._call: dict[int, int] = {}  # index in `calls` by id, and the stream above its bits
        self._call_by_name: dict[str, int] = {}
        self._call_streams = 0
        self._communication: list[int] = []  # indices in `leaves`
        self._parts = TextParts()

    def add(self, parts: NDArray[Any]) -> int:
        """Take rows of dtype gpu_ring.TEXTS; how many of them are of no name."""
        sound = (parts["id"] > 0) & (parts["id"] < MAX_NAMES) & (parts["total"] < MAX_NAME_BYTES)
        invalid = len(parts) - int(np.count_nonzero(sound))
        new = parts[sound]
        new = new[self._index[new["id"]] == 0]  # those of a later epoch repeat what is known
        columns = (new[name].tolist() for name in ("id", "offset", "total", "length"))
        for number, offset, total, length, text in zip(*columns, new["text"], strict=True):
            try:
                name = self._parts.add(number, offset, total, text.tobytes()[:length])
            except ValueError:
                invalid += 1
                continue
            if name is not None:
                self._name(number, name)
        return invalid

    def _name(self, number: int, raw: bytes) -> None:
        name = kernel_label(raw)
        index = self._by_name.get(name)
        if index is None:
            index = self._by_name[name] = len(self.leaves)
            kind = kernel_kind(name)
            if kind == FrameKind.GPU_COMM:
                self._communication.append(index)
            self.leaves.append((name, kind))
            full = full_kernel_name(raw)
            self.full.append(full if full != name and len(full) <= self._full_left else "")
            self._full_left -= len(self.full[-1])
        self._index[number] = index

    def kernels(self, ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Index in `leaves` of each kernel's name id."""
        if len(ids) and ids.max() > MAX_NAMES:
            ids = np.where(ids <= MAX_NAMES, ids, 0)
        return self._index[ids]

    def communication(self, leaves: NDArray[np.uint32]) -> NDArray[np.bool_] | None:
        """Which of these leaves communicate; None where the process has no such kernel."""
        return np.isin(leaves, self._communication) if self._communication else None

    def call_index(
        self, ids: NDArray[np.uint32], streams: NDArray[np.uint32], has_stream: NDArray[np.bool_]
    ) -> NDArray[np.uint32]:
        """Index in `calls` of the name of each API call, with the stream that it waited for, if any."""
        keys = np.minimum(ids, MAX_NAMES).astype(np.uint64)
        keys |= np.where(has_stream, streams.astype(np.uint64) + np.uint64(1), np.uint64(0)) << np.uint64(16)
        known, place = np.unique(keys, return_inverse=True)
        return np.array([self._call_of(key) for key in known.tolist()], np.uint32)[place.reshape(-1)]

    def _call_of(self, key: int) -> int:
        found = self._call.get(key)
        if found is None:
            number, stream = key & 0xFFFF, (key >> 16) - 1
            index = int(self._index[number]) if number < MAX_NAMES else 0
            if not index:
                return 0  # its name is not there, or not yet
            name = self.leaves[index][0]
            if stream < 0:
                return self._call_named(key, name)
            if self._call_streams < MAX_CALL_STREAMS:
                self._call_streams += 1
                return self._call_named(key, f"{name} (stream {stream})")
            found = self._call_named(-1 - number, f"{name} (other streams)")
        return found

    def _call_named(self, key: int, name: str) -> int:
        found = self._call_by_name.get(name)
        if found is None:
            if len(self.calls) >= MAX_CALLS:
                return 0
            found = self._call_by_name[name] = len(self.calls)
            self.calls.append(name)
        self._call[key] = found
        return found

    @staticmethod
    def copies(kinds: NDArray[np.uint8]) -> NDArray[np.uint32]:
        """Index in `leaves` of each CUpti_ActivityMemcpyKind."""
        kinds = np.where(kinds < len(COPIES), kinds, 0)
        return kinds.astype(np.uint32) + np.uint32(FIRST_COPY_INDEX)


def kernel_kind(name: str) -> FrameKind:
    """Whether a kernel computes, or communicates with other devices."""
    return FrameKind.GPU_COMM if name.startswith(COMMUNICATION) else FrameKind.GPU_KERNEL
