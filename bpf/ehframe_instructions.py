"""The instructions of .eh_frame entries, run for the Python parser (ehframe_python.py) as
ehframe_instructions.h does in C.
"""

from __future__ import annotations

from gpuprof.bpf.ehframe_rows import TOO_COMPLEX, Failed, Rows
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

_MAX_REMEMBERED = 16
_PLT_HEAD, _PLT_TAIL = bytes((0x77, 0x08, 0x80, 0x00, 0x3F, 0x1A)), bytes((0x2A, 0x33, 0x24, 0x22))
_INSANE = 1 << 63


class Instructions:
    """Writes `rows`. `address`: of the section; `work_left`: instructions that may still be run, else the
    build ends. What is not supported is counted.
    """

    def __init__(self, rows: Rows, address: int, work_left: int) -> None:
        self.rows = rows
        self.address = address
        self.work_left = work_left
        self.unsupported = 0

    def run(self, cie: Cie, r: Reader, state: State, pc: int, end: int, *, emit: bool) -> tuple[int, State]:
        """Run instructions, with rows for addresses from `pc` up to `end` when `emit`; (address, state) at
        the end.

        Without `emit` the state that was passed in is the one that changes (remembered states are copied into
        it).
        """
        remembered: list[State] = []
        while r.at < r.end:
            if self.work_left == 0:
                raise Failed(TOO_COMPLEX)
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
                    self.rows.add(pc, state.pack(cie.signal_frame))
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


def _sane(offset: int) -> int:
    return offset if offset <= MAX_UNSCALED else _INSANE
