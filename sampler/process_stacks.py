"""One profiled process as the stack reader sees it: names its code addresses and code objects.

What is named is kept by StackResolver, by a number that this process has there: 0 says that nothing is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from gpuprof.sampler.frame_ids import FrameIds, Role
from gpuprof.sampler.generated_code import PLAIN, runtime_of
from gpuprof.sampler.jit_map import JitMap
from gpuprof.sampler.maps import Mapping
from gpuprof.sampler.python_code import CodeReader
from gpuprof.sampler.python_runtime import PythonLayout
from gpuprof.sampler.symbol_store import SymbolStore
from gpuprof.sampler.symbols import BinarySymbols, Symbol
from gpuprof.snapshots.frames import FrameKind, ProcessDef

INJECTION_LIBRARY = "libgpuprof_inject.so"
# As it is mapped: from its file, or from memory where attaching found that the process cannot see the file.
INJECTION_NAMES = frozenset({INJECTION_LIBRARY, f"memfd:{INJECTION_LIBRARY}"})
SHIM = -1  # a shim frame: ends a group, is no frame itself
NO_FRAME = -2  # a frame that is not there yet: its code object is not one
NO_FRAME_ENTRY = -3  # the same, at the end of a group
SHIM_OWNER = 3
MAX_VOLATILE = 1 << 14
MAX_SYMBOLS = 1 << 14
_NOT_ASKED = -(1 << 65)
_ADDRESS = (1 << 48) - 1
_SIGNAL_RETURN_NAMES = {"__restore_rt", "runtime.sigreturn__sigaction"}
_SIGNAL_RETURN_CODE = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"  # mov $15 (rt_sigreturn), %rax; syscall


class ProcessStacks:
    """A process, told apart by pid and start time. Not thread-safe."""

    def __init__(self, definition: ProcessDef, ids: FrameIds, symbols: SymbolStore) -> None:
        self.pid = definition.pid
        self.start_ns = definition.start_ns
        self.definition = definition
        self.mappings: Sequence[Mapping] = ()
        self.python: PythonLayout | None = None
        self.unsupported_python: str | None = None
        self.injected = False  # it maps the injection library
        self.expects_library: bool | None = None  # the CUDA driver was told to load it; None: not looked at
        self.last_seen_ns = 0
        self.gone_ns: int | None = None
        self.since_ns = 0  # when it became this program (exec); 0: it was from the start
        self.published_ns = 0  # when its tables were published last
        self.scan_pause_ns = 0  # grows while looking at its mappings again finds nothing new
        self.next_scan_ns = 0
        self.table_threads: dict[int, tuple[bytes, int]] = {}  # by tid: comm, id in the current tables
        self.outer_frames: dict[tuple[int, int], tuple[int, ...]] = {}  # see StackResolver
        self.native_number = 0  # of its addresses in the resolver's table
        self.code_number = 0  # of its code objects there
        self.stale: list[int] = []  # addresses that are to be named anew
        self._volatile: list[int] = []  # addresses whose names may change: generated or unknown code
        self._symbols = symbols
        self._starts: list[int] = []
        self._biases: dict[int, int | None] = {}
        self._jit: JitMap | None = None
        self._jit_reads = 0
        self._runtime = PLAIN
        self._codes: CodeReader | None = None
        self.reset(ids)

    def reset(self, ids: FrameIds) -> None:
        """Forget all frame ids, as when a new set of them begins."""
        self._ids = ids
        self.forget_native()
        self.code_number = 0
        self.outer_frames = {}

    def forget_native(self) -> None:
        """Have every address named anew."""
        self.native_number = 0
        self.stale = []
        self._volatile = []

    def set_mappings(self, mappings: Sequence[Mapping], python: PythonLayout | None) -> None:
        """Take the executable mappings and the interpreter as they are now."""
        if list(mappings) != list(self.mappings):
            if set(self.mappings) <= set(mappings):
                self._forget_volatile()
            else:
                self.forget_native()
            self.mappings = mappings
            self.injected = any(mapping.name in INJECTION_NAMES for mapping in mappings)
            self._runtime = runtime_of(mappings)
            self._starts = [mapping.start for mapping in mappings]
            self._biases = {}
        if python != self.python:
            self.python = python
            self.code_number = 0
            self._close_codes()
            if python is not None:
                self._codes = CodeReader(self.pid, python)

    def inherit(self, parent: ProcessStacks) -> None:
        """Take over what a parent has: a forked child runs the same code at the same addresses."""
        self.set_mappings(parent.mappings, parent.python)
        self.expects_library = parent.expects_library

    def refresh_generated(self) -> None:
        """Name generated code anew when its perf map has changed."""
        if self._jit is not None and self._volatile:
            self._jit.refresh()
            if self._jit.reads != self._jit_reads:
                self._jit_reads = self._jit.reads
                self._forget_volatile()

    def remember(self, parts: Sequence[tuple[int, bytes]]) -> None:
        """Keep copies of memory that makes up code objects: (address, bytes)."""
        if self._codes is not None:
            self._codes.remember(parts)

    def expire(self) -> None:
        """Look at code objects and generated code anew: both may have been replaced at the same address."""
        self.code_number = 0
        self._forget_volatile()

    def close(self) -> None:
        """Give back the descriptor of the process's memory."""
        self._close_codes()

    def _close_codes(self) -> None:
        if self._codes is not None:
            self._codes.close()
            self._codes = None

    def _forget_volatile(self) -> None:
        self.stale += self._volatile
        self._volatile = []
        if len(self.stale) > MAX_VOLATILE:
            self.forget_native()

    def resolve_native(self, addresses: Sequence[int]) -> list[int]:
        """Frame ids of code addresses (of return addresses, the addresses before them), which ascend."""
        found: list[int] = []
        while len(found) < len(addresses):
            address = addresses[len(found)]
            at = bisect_right(self._starts, address) - 1
            mapping = self.mappings[at] if at >= 0 else None
            if mapping is None or address >= mapping.end:
                self._note_volatile(address)
                found.append(self._ids.get("[unknown code]", "", "", FrameKind.UNKNOWN))
                continue
            after = bisect_left(addresses, mapping.end, len(found) + 1)
            if mapping.kind in {"anonymous", "memfd"}:
                jit = self._resolve_jit(address, mapping)
                if jit is not None:
                    found.append(jit)
                    continue
                after = len(found) + 1
            found += self._resolve_in(at, mapping, addresses[len(found) : after])
        return found

    def _resolve_in(self, at: int, mapping: Mapping, addresses: Sequence[int]) -> list[int]:
        """Frame ids of addresses in the mapping of this index."""
        ids, name = self._ids, mapping.name
        binary = self._symbols.get(self.pid, mapping)
        if binary is None:
            return [ids.native(f"[{name}]", name, known=False)] * len(addresses)
        bias = self._biases.get(at, _NOT_ASKED)
        if bias == _NOT_ASKED:
            bias = self._biases[at] = binary.load_bias(mapping.start, mapping.offset)
        if bias is None:
            return [ids.native(f"[no symbols in {name}]", name, known=False)] * len(addresses)
        found: list[int] = []
        end = frame = 0
        for address in addresses:
            linked = address - bias
            if linked >= end:
                symbol, end = binary.lookup_span(linked)
                known = ids.symbols.get(symbol)
                if known is None:
                    known = ids.symbols[symbol] = _frame_of(ids, binary, symbol, name)
                frame = known
            found.append(frame)
        if len(ids.symbols) > MAX_SYMBOLS:
            ids.symbols.clear()  # they keep the symbols of files alive that nobody maps any more
        return found

    def _resolve_jit(self, address: int, mapping: Mapping) -> int | None:
        if self._jit is None:
            own_pid = self.definition.container_pid or self.pid
            self._jit = JitMap(self.pid, own_pid, self.definition.uid)
        self._note_volatile(address)
        name = self._jit.lookup(address)
        runtime = self._runtime
        if name is not None:
            return self._ids.get(name, "", runtime.binary, FrameKind.JIT)
        if mapping.kind == "anonymous":
            label = runtime.label or f"[generated code in {mapping.name}]"
            return self._ids.get(label, "", runtime.binary, FrameKind.JIT)
        return None

    def _note_volatile(self, address: int) -> None:
        self._volatile.append(address)
        if len(self._volatile) > MAX_VOLATILE:
            self.forget_native()

    def resolve_code(self, word: int, detail: int) -> int:
        """Of the two words of a Python frame: frame id * 2, plus 1 where it ends a group; or SHIM etc."""
        layout, codes = self.python, self._codes
        owner, address = word >> 56, word & _ADDRESS
        version = layout.version if layout is not None else (3, 12)
        if version >= (3, 12) and owner == SHIM_OWNER:
            return SHIM
        ends_group = version <= (3, 10) or (version == (3, 11) and owner != 0)
        code = codes.get(address, detail >> 32 & 0xFFFFFF) if codes is not None else None
        if code is None or layout is None:
            return NO_FRAME_ENTRY if ends_group else NO_FRAME
        offset = detail & 0xFFFFFFFF
        line = code.line(offset - (1 << 32) if offset >= 1 << 31 else offset)
        frame = self._ids.get(code.name, code.file, layout.binary, FrameKind.PYTHON, line=line)
        return frame << 1 | ends_group

    @property
    def has_shims(self) -> bool:
        """Whether Python frames whose owner is SHIM_OWNER are shims (3.12 and newer)."""
        return self.python is None or self.python.version >= (3, 12)


def _frame_of(ids: FrameIds, binary: BinarySymbols, symbol: Symbol, name: str) -> int:
    """The frame id of a function of the file `name`. Where a signal handler returns to, C libraries hide the
    name; it is known by its instructions then, as to every unwinder, behind the nop that its rules begin at.
    """
    if symbol.known:
        if symbol.name not in _SIGNAL_RETURN_NAMES:
            return ids.native(symbol.name, name, known=True)
    elif binary.code(symbol.start + 1, len(_SIGNAL_RETURN_CODE)) != _SIGNAL_RETURN_CODE:
        return ids.native(symbol.name, name, known=False)
    own_name = symbol.name if symbol.known else "__restore_rt"
    return ids.get(own_name, "", name, FrameKind.NATIVE, role=Role.SIGNAL_RETURN)
