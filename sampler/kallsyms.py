"""Names of kernel code: /proc/kallsyms, lines "ADDRESS TYPE name[\\t[module]]", TYPE t, T, w or W for code.

Without CAP_SYSLOG, or with kptr_restrict 2, all addresses read as 0, and kernel frames then have no names.
"""

from __future__ import annotations

import re
import time
from array import array

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.demangle import display_name
from gpuprof.snapshots.names import clean

PATH = "/proc/kallsyms"
MAX_BYTES = 256 << 20
RELOAD_NS = 60 * 10**9  # modules come and go
KERNEL = "[kernel]"
_LINE = re.compile(rb"^([0-9a-f]{16}) [tTwW] ([^\t\n]{1,512})(?:\t\[([^\]\n]{1,64})\])?$", re.MULTILINE)
_MAX_SYMBOL_BYTES = 1 << 20  # an address further than this behind a symbol is not its code


class KernelSymbols:
    """Kernel functions, loaded when first asked for, and again, at most once a minute, for an unknown
    address.
    """

    def __init__(self, path: str = PATH) -> None:
        self._path = path
        self._next_load_ns = 0
        self._names = b""
        self._address: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._at: NDArray[np.uint32] = np.zeros(0, np.uint32)

    def lookup(self, address: int) -> tuple[str, str]:
        """(name, binary) of a kernel address; the binary is "[kernel]" or the module in brackets."""
        found = self._find(address)
        if found is None and time.monotonic_ns() >= self._next_load_ns:
            self._next_load_ns = time.monotonic_ns() + RELOAD_NS
            self._load()
            found = self._find(address)
        return found or ("[kernel code]", KERNEL)

    def _find(self, address: int) -> tuple[str, str] | None:
        index = int(self._address.searchsorted(np.uint64(address), "right")) - 1
        if index < 0 or address - int(self._address[index]) > _MAX_SYMBOL_BYTES:
            return None
        at = int(self._at[index])
        name, _, module = self._names[at : self._names.index(b"\n", at)].partition(b"\t")
        return display_name(name), f"[{clean(module, 64)}]" if module else KERNEL

    def _load(self) -> None:
        """Parse block by block: the whole file as Python objects would cost more memory than the table ever
        needs.
        """
        addresses, starts, names = array("Q"), array("I"), bytearray()
        try:
            with open(self._path, "rb") as file:
                rest, left = b"", MAX_BYTES
                while left > 0 and (block := file.read(1 << 18)):
                    left -= len(block)
                    text, _, rest = (rest + block).rpartition(b"\n")
                    for address, name, module in _LINE.findall(text):
                        addresses.append(int(address, 16))
                        starts.append(len(names))
                        names += name + (b"\t" + module if module else b"") + b"\n"
        except OSError:
            return
        column = np.array(addresses, np.uint64)
        order = np.argsort(column, kind="stable")
        order = order[column[order] > 0]
        self._address, self._at = column[order], np.array(starts, np.uint32)[order]
        self._names = bytes(names)
