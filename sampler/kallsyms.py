"""Names of kernel code: /proc/kallsyms, lines "ADDRESS TYPE name[\\t[module]]", TYPE t, T, w or W for code.

Without CAP_SYSLOG, or with kptr_restrict 2, all addresses read as 0, and kernel frames then have no names.
"""

from __future__ import annotations

import time
import zlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.demangle import display_name
from gpuprof.snapshots.names import clean

PATH = "/proc/kallsyms"
MAX_BYTES = 256 << 20
RELOAD_NS = 60 * 10**9  # modules come and go
KERNEL = "[kernel]"
UNKNOWN_CODE = "[kernel code]"
_BLOCK_BYTES = 1 << 18
_CHUNK_BYTES = 1 << 15
_NAME_AT = 19
_MAX_NAME_BYTES = 600  # with the module
_NEWLINE, _SPACE = b"\n "
_DIGIT = np.full(256, 16, np.uint8)
_DIGIT[list(b"0123456789abcdef")] = range(16)
_IS_CODE = np.zeros(256, bool)
_IS_CODE[list(b"tTwW")] = True
_Part: TypeAlias = tuple[bytes, bytes, bytes]
_MAX_SYMBOL_BYTES = 1 << 20  # an address further than this behind a symbol is not its code


class KernelSymbols:
    """Kernel functions, loaded when first asked for, and again, at most once a minute, for an unknown
    address.
    """

    def __init__(self, path: str = PATH) -> None:
        self._path = path
        self._next_load_ns = 0
        self._names: list[bytes] = []  # compressed: 3 MB of names of which few are asked for
        self._address: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._at: NDArray[np.uint32] = np.zeros(0, np.uint32)

    def lookup(self, address: int) -> tuple[str, str]:
        """(name, binary) of a kernel address; the binary is "[kernel]" or the module in brackets."""
        found = self._find(address)
        if found is None and time.monotonic_ns() >= self._next_load_ns:
            self._next_load_ns = time.monotonic_ns() + RELOAD_NS
            self._load()
            found = self._find(address)
        return found or (UNKNOWN_CODE, KERNEL)

    def starts(self, addresses: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Of each address the start of the function that holds it, as far as known now; 0: there is none."""
        if not len(self._address):
            return np.zeros(len(addresses), np.uint64)
        index = self._address.searchsorted(addresses, "right") - 1
        found: NDArray[np.uint64] = self._address[index]
        found[(index < 0) | (addresses - found > _MAX_SYMBOL_BYTES)] = 0
        return found

    def _find(self, address: int) -> tuple[str, str] | None:
        index = int(self._address.searchsorted(np.uint64(address), "right")) - 1
        if index < 0 or address - int(self._address[index]) > _MAX_SYMBOL_BYTES:
            return None
        number, at = divmod(int(self._at[index]), _CHUNK_BYTES)
        names = zlib.decompress(self._names[number])
        name, _, module = names[at : names.index(b"\n", at)].partition(b"\t")
        return display_name(name), f"[{clean(module.strip(b'[]'), 64)}]" if module else KERNEL

    def _load(self) -> None:
        """Parse block by block: the whole file at once would cost more memory than the table ever needs."""
        parts: list[_Part] = []
        try:
            with open(self._path, "rb") as file:
                rest, left = b"", MAX_BYTES
                while left > 0 and (block := file.read(_BLOCK_BYTES)):
                    left -= len(block)
                    text, newline, rest = (rest + block).rpartition(b"\n")
                    parts.append(_parse(text + newline))
        except OSError:
            return
        column, size, names = (b"".join(part[i] for part in parts) for i in range(3))
        address, sizes = np.frombuffer(column, np.uint64), np.frombuffer(size, np.uint32)
        starts = np.cumsum(sizes, dtype=np.uint32) - sizes
        order = np.argsort(address, kind="stable")
        order = order[address[order] > 0]
        self._address, self._at = address[order], starts[order]
        # A name may end in the next chunk, so each has the longest name's length of the next one.
        self._names = [
            zlib.compress(names[at : at + _CHUNK_BYTES + _MAX_NAME_BYTES + 1], 1)
            for at in range(0, len(names), _CHUNK_BYTES)
        ]


def _parse(text: bytes) -> _Part:
    """(addresses u64, lengths u32 of the names with their newlines, the names) of the functions in whole
    lines.
    """
    chars = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(chars == _NEWLINE)
    begins = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))[: len(ends)]
    length = ends - begins
    fits = (length > _NAME_AT) & (length <= _NAME_AT + _MAX_NAME_BYTES)
    begins, ends = begins[fits], ends[fits]
    # "ADDRESS TYPE name": all fields but the name have their places.
    fits = _IS_CODE[chars[begins + 17]] & (chars[begins + 16] == _SPACE) & (chars[begins + 18] == _SPACE)
    begins, ends = begins[fits], ends[fits]
    digits = _DIGIT[chars[begins[:, None] + np.arange(16)]]
    fits = digits.max(axis=1, initial=0) < 16
    begins, ends, digits = begins[fits], ends[fits], digits[fits]
    address = np.zeros(len(begins), np.uint64)
    for place in range(16):
        address = address << np.uint64(4) | digits[:, place]
    edge = np.zeros(len(chars) + 1, np.int8)
    edge[begins + _NAME_AT] = 1
    edge[ends + 1] -= 1
    names = chars[np.cumsum(edge[:-1], dtype=np.int8) > 0]
    return address.tobytes(), (ends + 1 - begins - _NAME_AT).astype(np.uint32).tobytes(), names.tobytes()
