"""The .eh_frame parser of ehframe.c in Python, for machines without a compiler: the same rows, some thirty
times slower.

The format and the meaning of rules and rows are described in ehframe.c and layout.bpf.h; limits and order of
the work are the same, so that both give identical results on any input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from gpuprof.bpf.ehframe import MAX_RANGES, STATUS_WORDS, EhFrameError, UnwindRows
from gpuprof.bpf.ehframe_state import (
    CALLER_NONE,
    CALLER_OTHER,
    CFA_DEREF_RBP,
    CFA_DEREF_RSP,
    CFA_NONE,
    CFA_PLT,
    CFA_RBP,
    CFA_RSP,
    MASK,
    MAX_UNSCALED,
    RBP,
    RBP_RELATIVE,
    RBP_SAME,
    RSP,
    Cie,
    Reader,
    State,
)  # fmt: skip

_TOO_LARGE, _TOO_COMPLEX, _EMPTY = 2, 3, 4
_MAX_REMEMBERED = 16
_MAX_RULES = 8192
_MAX_PAGES = 16384
_MAX_SECTION = 64 << 20
_MAX_ROWS = 16 << 20
_MAX_FACTOR = 0xFFFF
_WORK_PER_BYTE, _WORK_FREE = 16, 65536
_ALIGNMENT_GAP = 16
_PLT_HEAD, _PLT_TAIL = bytes((0x77, 0x08, 0x80, 0x00, 0x3F, 0x1A)), bytes((0x2A, 0x33, 0x24, 0x22))
_INSANE = 1 << 63


class _Failed(Exception):
    """Ends the build; the argument is the status."""


@dataclass(frozen=True, slots=True)
class _Fde:
    begin: int
    end: int
    offset: int
    cie: Cie


class _Builder:
    """One build: entries are collected, sorted by address, run, packed."""

    def __init__(self, section: bytes, address: int, ranges: Sequence[tuple[int, int]]) -> None:
        self.section, self.address, self.ranges = section, address & MASK, list(ranges[:MAX_RANGES])
        self.work_left = len(section) * _WORK_PER_BYTE + _WORK_FREE
        self.cies: dict[int, Cie] = {}
        self.fdes: list[_Fde] = []
        self.rules: dict[int, int] = {CFA_NONE: 0}
        self.row_pc: list[int] = []
        self.row_rule: list[int] = []
        self.unsupported = 0

    def build(self) -> UnwindRows:
        self.collect()
        self.fdes.sort(key=attrgetter("begin", "offset"))
        for index, fde in enumerate(self.fdes):
            following = self.fdes[index + 1].begin if index + 1 < len(self.fdes) else MASK
            self.run_fde(fde, min(fde.end, following))
            if following - fde.end >= _ALIGNMENT_GAP:
                self.add_row(fde.end, CFA_NONE)
        if not self.row_pc:
            raise _Failed(_EMPTY)
        return self.pack()

    def add_row(self, pc: int, rule: int) -> None:
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
            raise _Failed(_TOO_LARGE)
        pcs.append(pc)
        rules.append(index)

    # ------------------------------------------------------------------------------------------------ entries

    def entry(self, offset: int) -> Reader | None:
        """The body of the entry at an offset; None at the end of what is well-formed."""
        size = len(self.section)
        if size - offset < 4:
            return None
        reader = Reader(self.section, offset, size)
        length = reader.fixed(4)
        if length == 0xFFFFFFFF:
            if reader.end - reader.at < 8:
                return None
            length = reader.fixed(8)
        if length > size - reader.at or 0 < length < 4:
            return None
        reader.end = reader.at + length
        return reader

    def collect(self) -> None:
        offset = 0
        while offset < len(self.section):
            body = self.entry(offset)
            if body is None:
                return
            end = body.end
            if body.at < end:
                id_at = body.at
                identity = body.fixed(4)
                if identity and identity <= id_at:
                    self.add_fde(offset, body, self.cie(id_at - identity))
            offset = end

    def cie(self, offset: int) -> Cie:
        cie = self.cies.get(offset)
        if cie is None:
            cie = self.cies[offset] = Cie()
            cie.valid = self.parse_cie(offset, cie)
            self.unsupported += not cie.valid
        return cie

    def parse_cie(self, offset: int, cie: Cie) -> bool:
        reader = self.entry(offset)
        if reader is None or reader.end - reader.at < 8 or reader.fixed(4) != 0:
            return False
        version = reader.fixed(1)
        if version not in (1, 3, 4):
            return False
        terminator = self.section.find(b"\0", reader.at, reader.end)
        if terminator < 0:
            return False
        augmentation = self.section[reader.at : terminator]
        reader.at = terminator + 1
        if version == 4:
            reader.at = min(reader.at + 2, reader.end)
        cie.code_factor, cie.data_factor = reader.uleb(), reader.sleb()
        cie.return_register = reader.fixed(1) if version == 1 else reader.uleb() & 0xFFFFFFFF
        if not 0 < cie.code_factor <= _MAX_FACTOR or abs(cie.data_factor) > _MAX_FACTOR:
            return False
        if augmentation[:1] == b"z":
            cie.has_data = True
            data = reader.block()
            for letter in augmentation[1:]:
                if letter == ord("R"):
                    cie.encoding = data.fixed(1)
                elif letter == ord("L"):
                    data.fixed(1)
                elif letter == ord("P"):
                    data.pointer(data.fixed(1) & 0x0F, 0)
                elif letter == ord("S"):
                    cie.signal_frame = True
                else:
                    break
        elif augmentation:
            return False
        if cie.encoding & 0xE0:
            return False
        self.run(cie, reader, cie.initial, 0, 0, emit=False)
        return True

    def add_fde(self, offset: int, body: Reader, cie: Cie) -> None:
        if not cie.valid:
            return
        begin = body.pointer(cie.encoding, self.address + body.at)
        length = body.pointer(cie.encoding & 0x0F, 0)
        if begin is None or not length:
            return
        for low, high in self.ranges:
            if low <= begin < high:
                end = high if length > high - begin else begin + length
                self.fdes.append(_Fde(begin, end, offset, cie))
                return

    def run_fde(self, fde: _Fde, end: int) -> None:
        cie = fde.cie
        body = self.entry(fde.offset)
        if body is None:
            return
        body.fixed(4)
        body.pointer(cie.encoding & 0x0F, 0)
        body.pointer(cie.encoding & 0x0F, 0)
        if cie.has_data:
            body.block()
        state = cie.initial.copy()
        pc, state = self.run(cie, body, state, fde.begin, end, emit=True)
        if pc < end:
            self.add_row(pc, state.pack(cie.signal_frame))

    # ------------------------------------------------------------------------------------------- instructions

    def run(self, cie: Cie, r: Reader, state: State, pc: int, end: int, *, emit: bool) -> tuple[int, State]:
        """Run instructions, with rows for addresses from `pc` up to `end` when `emit`; (address, state) at
        the end.

        Without `emit` the state that was passed in is the one that changes (remembered states are copied into
        it).
        """
        remembered: list[State] = []
        while r.at < r.end:
            if self.work_left == 0:
                raise _Failed(_TOO_COMPLEX)
            self.work_left -= 1
            op = r.data[r.at]
            r.at += 1
            low = op & 0x3F
            advance = -1
            if op >= 0xC0:
                cie.restore(state, low)
            elif op >= 0x80:
                cie.save(state, low, r.uleb())
            elif op >= 0x40:
                advance = low * cie.code_factor
            elif op == 0x00:
                pass
            elif op == 0x01:
                to = r.pointer(cie.encoding, self.address + r.at)
                if to is None or to < pc:
                    self.unsupported += 1
                    return pc, state
                advance = to - pc
            elif op in (0x02, 0x03, 0x04):
                advance = r.fixed(1 << (op - 2)) * cie.code_factor
            elif op == 0x0A:
                if len(remembered) < _MAX_REMEMBERED:
                    remembered.append(state.copy())
            elif op == 0x0B:
                if remembered:
                    state.assign(remembered.pop())
            elif not self.run_other(cie, r, state, op):
                self.unsupported += 1
                return pc, state
            if advance >= 0:
                if emit and pc < end:
                    self.add_row(pc, state.pack(cie.signal_frame))
                pc = min(pc + advance, MASK)
        return pc, state

    def run_other(self, cie: Cie, r: Reader, state: State, op: int) -> bool:
        """The instructions that neither move nor remember; False for an unknown one."""
        if op == 0x05:
            register = r.uleb()
            cie.save(state, register, r.uleb())
        elif op == 0x06:
            cie.restore(state, r.uleb())
        elif op == 0x07:
            cie.lose(state, r.uleb(), CALLER_NONE)
        elif op == 0x08:
            register = r.uleb()
            cie.lose(state, register, CALLER_OTHER)
            if register == RBP:
                state.set_rbp(RBP_SAME)
        elif op in (0x09, 0x14, 0x15):
            register = r.uleb()
            r.uleb()
            cie.lose(state, register, CALLER_OTHER)
        elif op == 0x0C:
            state.set_cfa_register(r.uleb())
            state.set_cfa_offset(_sane(r.uleb()))
        elif op == 0x0D:
            state.set_cfa_register(r.uleb())
        elif op == 0x0E:
            state.set_cfa_offset(_sane(r.uleb()))
        elif op == 0x0F:
            self.set_cfa_expression(state, r.block())
        elif op == 0x10:
            register = r.uleb()
            expression = r.block()
            cie.lose(state, register, CALLER_OTHER)
            if register == RBP and expression.end - expression.at >= 2 and r.data[expression.at] == 0x76:
                expression.at += 1
                offset = expression.sleb()
                if expression.at == expression.end:
                    state.set_rbp(RBP_RELATIVE, offset)
        elif op == 0x11:
            register = r.uleb()
            cie.save(state, register, r.sleb())
        elif op == 0x12:
            register, offset = r.uleb(), r.sleb()
            state.set_cfa_register(register)
            state.set_cfa_offset(offset * cie.data_factor if abs(offset) <= MAX_UNSCALED else _INSANE)
        elif op == 0x13:
            offset = r.sleb()
            state.set_cfa_offset(offset * cie.data_factor if abs(offset) <= MAX_UNSCALED else _INSANE)
        elif op == 0x16:
            register = r.uleb()
            r.block()
            cie.lose(state, register, CALLER_OTHER)
        elif op == 0x2E:
            r.uleb()
        else:
            return False
        return True

    def set_cfa_expression(self, state: State, e: Reader) -> None:
        """CFA expressions that compilers and linkers emit; the others are counted and have no rule."""
        data = e.data[e.at : e.end]
        state.cfa, state.cfa_offset = CFA_NONE, 0
        if len(data) == 11 and data[:6] == _PLT_HEAD and data[7:] == _PLT_TAIL and data[6] in (0x3A, 0x3B):
            state.cfa, state.cfa_offset = CFA_PLT, data[6] - 0x30
            return
        if len(data) >= 2 and data[0] in (0x70 + RBP, 0x70 + RSP):
            rsp = data[0] == 0x70 + RSP
            e.at += 1
            offset = e.sleb()
            in_range = -(1 << 22) <= offset < 1 << 22
            if e.at == e.end and in_range:
                state.cfa, state.cfa_offset = (CFA_RSP if rsp else CFA_RBP), offset
                return
            if e.at < e.end and e.data[e.at] == 0x06 and in_range:
                e.at += 1
                add = 0
                if e.at < e.end and e.data[e.at] == 0x23:
                    e.at += 1
                    add = e.uleb()
                if e.at == e.end and add < 256 * 8 and add % 8 == 0:
                    state.cfa = CFA_DEREF_RSP if rsp else CFA_DEREF_RBP
                    state.cfa_offset = offset * 256 + add // 8
                    return
        self.unsupported += 1

    # ------------------------------------------------------------------------------------------------- result

    def pack(self) -> UnwindRows:
        pcs = np.array(self.row_pc, np.uint64)
        pages = pcs >> np.uint64(16)
        first_page, last_page = int(pages[0]), int(pages[-1])
        if last_page - first_page >= _MAX_PAGES:
            raise _Failed(_TOO_LARGE)
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
            fde_count=len(self.fdes),
            unsupported=self.unsupported,
        )


def _sane(offset: int) -> int:
    return offset if offset <= MAX_UNSCALED else _INSANE


def build_rows_in_python(section: bytes, address: int, ranges: Sequence[tuple[int, int]]) -> UnwindRows:
    """As ehframe.build_rows, without the C parser."""
    if len(section) > _MAX_SECTION:
        raise EhFrameError(STATUS_WORDS[_TOO_LARGE])
    try:
        return _Builder(section, address, ranges).build()
    except _Failed as failed:
        raise EhFrameError(STATUS_WORDS[failed.args[0]]) from None
