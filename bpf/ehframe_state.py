"""What the Python .eh_frame parser (ehframe_python.py) reads and keeps: encoded values, the rules at one
address, a CIE.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

CFA_NONE, CFA_RSP, CFA_RBP, CFA_PLT, CFA_DEREF_RBP, CFA_DEREF_RSP, CFA_STOP, CFA_SIGNAL, CFA_REGISTER = range(
    9
)
RBP_SAME, RBP_CFA, RBP_UNDEFINED, RBP_RELATIVE = range(4)
CALLER_NORMAL, CALLER_NONE, CALLER_OTHER = range(3)

RBP, RSP = 6, 7  # register numbers
MAX_UNSCALED = 0x7FFFFFFF
MASK = (1 << 64) - 1


class Reader:
    """Bounds-checked reads of data[at:end]; at the end they yield 0."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def fixed(self, size: int) -> int:
        at = self.at
        if self.end - at < size:
            self.at = self.end
            return 0
        self.at = at + size
        return int.from_bytes(self.data[at : at + size], "little")

    def signed(self, size: int) -> int:
        value = self.fixed(size)
        return value - (1 << 8 * size) if value >> (8 * size - 1) else value

    def uleb(self) -> int:
        value = shift = 0
        data, at, end = self.data, self.at, self.end
        while at < end:
            byte = data[at]
            at += 1
            if shift < 64:
                value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        self.at = at
        return value & MASK

    def sleb(self) -> int:
        value = shift = byte = 0
        while self.at < self.end:
            byte = self.data[self.at]
            self.at += 1
            if shift < 64:
                value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if shift < 64 and byte & 0x40:
            value |= -1 << shift
        value &= MASK
        return value - (1 << 64) if value >> 63 else value

    def block(self) -> Reader:
        length = self.uleb()
        start = self.at
        self.at = min(start + length, self.end)
        return Reader(self.data, start, self.at)

    def pointer(self, encoding: int, own_address: int) -> int | None:
        """A pointer in one of the DW_EH_PE formats; None for those that occur in no address of an FDE."""
        form = encoding & 0x0F
        if form in (0x00, 0x04, 0x0C):
            value = self.fixed(8)
        elif form == 0x01:
            value = self.uleb()
        elif form == 0x09:
            value = self.sleb()
        elif form in (0x02, 0x03):
            value = self.fixed(2 * form - 2)
        elif form in (0x0A, 0x0B):
            value = self.signed(2 * (form - 8) - 2)
        else:
            return None
        if encoding & 0xF0 == 0x10:
            value += own_address
        elif encoding & 0xF0:
            return None
        return value & MASK


@dataclass(slots=True)
class State:
    """The rules at one address: CFA, rbp, and whether there is a caller."""

    cfa: int = CFA_NONE
    cfa_register: int = 0
    cfa_offset: int = 0
    rbp: int = RBP_SAME
    rbp_offset: int = 0
    caller: int = CALLER_NORMAL

    def copy(self) -> State:
        return replace(self)

    def assign(self, other: State) -> None:
        """Take over all fields."""
        self.cfa, self.cfa_register, self.cfa_offset = other.cfa, other.cfa_register, other.cfa_offset
        self.rbp, self.rbp_offset, self.caller = other.rbp, other.rbp_offset, other.caller

    def set_cfa_register(self, register: int) -> None:
        self.cfa_register = min(register, 255)
        self.cfa = {RSP: CFA_RSP, RBP: CFA_RBP}.get(register, CFA_REGISTER)

    def set_cfa_offset(self, offset: int) -> None:
        self.cfa_offset = offset
        if abs(offset) > MAX_UNSCALED:
            self.cfa = CFA_NONE

    def set_rbp(self, kind: int, offset: int = 0) -> None:
        self.rbp, self.rbp_offset = kind, offset

    def pack(self, signal_frame: bool) -> int:
        """The rule as 8 bytes."""
        offset, rbp, rbp_offset = self.cfa_offset, self.rbp, 0
        if signal_frame:
            return CFA_SIGNAL
        if self.caller == CALLER_NONE:
            return CFA_STOP
        if self.caller == CALLER_OTHER or self.cfa == CFA_NONE:
            return CFA_NONE
        if self.cfa == CFA_REGISTER:
            if not -(1 << 22) <= offset < 1 << 22:
                return CFA_NONE
            offset = offset * 256 + self.cfa_register
        if not -(1 << 31) <= offset < 1 << 31:
            return CFA_NONE
        if rbp in (RBP_CFA, RBP_RELATIVE):
            if -(1 << 15) <= self.rbp_offset < 1 << 15:
                rbp_offset = self.rbp_offset
            else:
                rbp = RBP_UNDEFINED
        return self.cfa | rbp << 8 | (rbp_offset & 0xFFFF) << 16 | (offset & 0xFFFFFFFF) << 32


@dataclass(slots=True)
class Cie:
    """Defaults of the FDEs that refer to it."""

    valid: bool = False
    code_factor: int = 1
    data_factor: int = 1
    return_register: int = 16
    encoding: int = 0
    has_data: bool = False
    signal_frame: bool = False
    initial: State = field(default_factory=State)

    def save(self, state: State, register: int, unscaled: int) -> None:
        """A register is saved at CFA + unscaled * factor."""
        sane = abs(unscaled) <= MAX_UNSCALED
        offset = unscaled * self.data_factor if sane else 0
        if register == RBP:
            state.set_rbp(RBP_CFA if sane else RBP_UNDEFINED, offset)
        if register == self.return_register:
            state.caller = CALLER_NORMAL if sane and offset == -8 else CALLER_OTHER

    def lose(self, state: State, register: int, caller: int) -> None:
        if register == RBP:
            state.set_rbp(RBP_UNDEFINED)
        if register == self.return_register:
            state.caller = caller

    def restore(self, state: State, register: int) -> None:
        if register == RBP:
            state.set_rbp(self.initial.rbp, self.initial.rbp_offset)
        if register == self.return_register:
            state.caller = self.initial.caller
