"""One profiled process as the stack reader sees it: resolves its code addresses and code objects to frame
ids.

Lookups are dictionaries that resolve what they miss, so that a known address costs one C-level dictionary
access.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.jit_map import JitMap
from gpuprof.sampler.kallsyms import KernelSymbols
from gpuprof.sampler.maps import Mapping
from gpuprof.sampler.python_code import CodeReader
from gpuprof.sampler.python_runtime import PythonLayout
from gpuprof.sampler.symbol_store import SymbolStore
from gpuprof.snapshots.frames import FrameKind, ProcessDef

JIT_BINARY = "[jit]"
INJECTION_LIBRARY = "libgpuprof_inject.so"
SHIM = -1  # a shim frame: ends a group, is no frame itself
NO_FRAME = -2  # a frame that is not there yet: its code object is not one
NO_FRAME_ENTRY = -3  # the same, at the end of a group
_SHIM_OWNER = 3
_MAX_CACHED = 100_000
_NOT_ASKED = -(1 << 65)
_ADDRESS = (1 << 48) - 1


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
        self.replaced = False  # by another program in the same process (exec)
        self.since_ns = 0  # when its tables were first published
        self.scan_pause_ns = 0  # grows while looking at its mappings again finds nothing new
        self.next_scan_ns = 0
        self.next_python_scan_ns = 0
        self.python_attempts = 0
        self.table_threads: dict[tuple[int, bytes], int] = {}  # (tid, comm): id in the current tables
        self.outer_frames: dict[tuple[int, int], tuple[int, ...]] = {}  # see StackResolver
        self._symbols = symbols
        self._starts: list[int] = []
        self._biases: dict[int, int | None] = {}
        self._jit: JitMap | None = None
        self._jit_addresses: list[int] = []
        self._codes: CodeReader | None = None
        self.reset(ids)

    def reset(self, ids: FrameIds) -> None:
        """Forget all frame ids, as when a new set of them begins."""
        self._ids = ids
        self.native = NativeIds(self)
        self.code = CodeIds(self)
        self.outer_frames = {}

    def set_mappings(self, mappings: Sequence[Mapping], python: PythonLayout | None) -> None:
        """Take the executable mappings and the interpreter as they are now."""
        if list(mappings) != list(self.mappings):
            self.mappings = mappings
            self.injected = any(mapping.name == INJECTION_LIBRARY for mapping in mappings)
            self._starts = [mapping.start for mapping in mappings]
            self._biases = {}
            self.native.clear()
        if python != self.python:
            self.python = python
            self.code.clear()
            self._close_codes()
            if python is not None:
                self._codes = CodeReader(self.pid, python)

    def inherit(self, parent: ProcessStacks) -> None:
        """Take over what a parent has: a forked child runs the same code at the same addresses."""
        self.set_mappings(parent.mappings, parent.python)
        self.expects_library = parent.expects_library

    def expire(self) -> None:
        """Look at code objects and generated code anew: both may have been replaced at the same address."""
        self.code.clear()
        for address in self._jit_addresses:
            self.native.pop(address, None)
        self._jit_addresses.clear()
        if len(self.native) > _MAX_CACHED:
            self.native.clear()

    def close(self) -> None:
        """Give back the descriptor of the process's memory."""
        self._close_codes()

    def _close_codes(self) -> None:
        if self._codes is not None:
            self._codes.close()
            self._codes = None

    def resolve_native(self, address: int) -> int:
        """Frame id of a code address (of a return address, the address before it)."""
        at = bisect_right(self._starts, address) - 1
        mapping = self.mappings[at] if at >= 0 else None
        if mapping is None or address >= mapping.end:
            return self._ids.get("[unknown code]", "", "", FrameKind.UNKNOWN)
        if mapping.kind in {"anonymous", "memfd"}:
            jit = self._resolve_jit(address, mapping)
            if jit is not None:
                return jit
        binary = self._symbols.get(self.pid, mapping)
        if binary is None:
            return self._ids.native(f"[{mapping.name}]", mapping.name, known=False)
        bias = self._biases.get(at, _NOT_ASKED)
        if bias == _NOT_ASKED:
            bias = self._biases[at] = binary.load_bias(mapping.start, mapping.offset)
        if bias is None:
            return self._ids.native(f"[no symbols in {mapping.name}]", mapping.name, known=False)
        return self._ids.of_symbol(binary.lookup(address - bias), mapping.name)

    def _resolve_jit(self, address: int, mapping: Mapping) -> int | None:
        if self._jit is None:
            own_pid = self.definition.container_pid or self.pid
            self._jit = JitMap(self.pid, own_pid, self.definition.uid)
        self._jit_addresses.append(address)
        name = self._jit.lookup(address)
        if name is not None:
            return self._ids.get(name, "", JIT_BINARY, FrameKind.JIT)
        if mapping.kind == "anonymous":
            return self._ids.get(f"[generated code in {mapping.name}]", "", JIT_BINARY, FrameKind.JIT)
        return None

    def resolve_code(self, word: int, detail: int) -> int:
        """Of the two words of a Python frame: frame id * 2, plus 1 where it ends a group; or SHIM etc."""
        layout, codes = self.python, self._codes
        owner, address = word >> 56, word & _ADDRESS
        version = layout.version if layout is not None else (3, 12)
        if version >= (3, 12) and owner == _SHIM_OWNER:
            return SHIM
        ends_group = version <= (3, 10) or (version == (3, 11) and owner != 0)
        code = codes.get(address, detail >> 32 & 0xFFFFFF) if codes is not None else None
        if code is None or layout is None:
            return NO_FRAME_ENTRY if ends_group else NO_FRAME
        offset = detail & 0xFFFFFFFF
        line = code.line(offset - (1 << 32) if offset >= 1 << 31 else offset)
        frame = self._ids.get(code.name, code.file, layout.binary, FrameKind.PYTHON, line=line)
        return frame << 1 | ends_group


class NativeIds(dict[int, int]):
    """Frame id by code address."""

    def __init__(self, process: ProcessStacks) -> None:
        super().__init__()
        self._process = process

    def __missing__(self, address: int) -> int:
        found = self[address] = self._process.resolve_native(address)
        return found


class CodeIds(dict[tuple[int, int], int]):
    """Result of resolve_code by the two words of a Python frame."""

    def __init__(self, process: ProcessStacks) -> None:
        super().__init__()
        self._process = process

    def __missing__(self, words: tuple[int, int]) -> int:
        found = self._process.resolve_code(*words)
        if found != SHIM:  # shims are as many as calls
            self[words] = found
        return found


class KernelIds(dict[int, int]):
    """Frame id by kernel code address."""

    def __init__(self, ids: FrameIds, symbols: KernelSymbols) -> None:
        super().__init__()
        self._ids = ids
        self._symbols = symbols

    def __missing__(self, address: int) -> int:
        name, binary = self._symbols.lookup(address)
        found = self[address] = self._ids.get(name, "", binary, FrameKind.KERNEL_SPACE)
        return found
