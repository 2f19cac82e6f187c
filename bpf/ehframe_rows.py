"""The rows of the Python .eh_frame parser (ehframe_python.py): addresses with the number of a rule, and the
pages by which they are found.
"""

from __future__ import annotations

import numpy as np

from gpuprof.bpf.ehframe import UnwindRows
from gpuprof.bpf.ehframe_state import CFA_NONE

TOO_LARGE, TOO_COMPLEX = 2, 3
_MAX_RULES = 8192
_MAX_PAGES = 16384
_MAX_ROWS = 16 << 20


class Failed(Exception):
    """Ends the build; the argument is the status."""


class Rows:
    """Rows in the order of their addresses; rule 0 is that there is none."""

    def __init__(self) -> None:
        self.rules: dict[int, int] = {CFA_NONE: 0}
        self.row_pc: list[int] = []
        self.row_rule: list[int] = []

    def __len__(self) -> int:
        return len(self.row_pc)

    def add(self, pc: int, rule: int) -> None:
        index = self.rules.get(rule)
        if index is None:
            index = self.rules[rule] = len(self.rules) if len(self.rules) < _MAX_RULES else 0
            if not index:
                del self.rules[rule]
        pcs, rules = self.row_pc, self.row_rule
        if pcs and pc <= pcs[-1]:
            if pc == pcs[-1]:
                rules[-1] = index
                if len(rules) > 1 and rules[-2] == index:
                    del pcs[-1], rules[-1]
            return
        if rules and rules[-1] == index:
            return
        if len(pcs) >= _MAX_ROWS:
            raise Failed(TOO_LARGE)
        pcs.append(pc)
        rules.append(index)

    def pack(self, fde_count: int, unsupported: int) -> UnwindRows:
        pcs = np.array(self.row_pc, np.uint64)
        pages = pcs >> np.uint64(16)
        first_page, last_page = int(pages[0]), int(pages[-1])
        if last_page - first_page >= _MAX_PAGES:
            raise Failed(TOO_LARGE)
        rows = np.zeros(len(pcs) + 1, np.uint32)
        rows[1:] = np.array(self.row_rule, np.uint32) << np.uint32(16) | (pcs & np.uint64(0xFFFF)).astype(
            np.uint32
        )
        edges = np.arange(first_page, last_page + 2, dtype=np.uint64)
        return UnwindRows(
            rows=rows,
            page_starts=(np.searchsorted(pages, edges) + 1).astype(np.uint32),
            first_page=first_page,
            rules=np.array(list(self.rules), np.uint64),
            fde_count=fde_count,
            unsupported=unsupported,
        )
