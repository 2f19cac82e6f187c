"""What this kernel offers the BPF programs, found by trying it: versions say little, since distributions
backport.

`python -m gpuprof.bpf.features` tries everything and prints one JSON object a line, for the doctor:
{"name", "state": "ok", "note" (works without it) or "missing", "detail"}. It needs the privileges of the
sampler, changes nothing and takes some milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuprof.bpf import syscalls
from gpuprof.bpf.btf import Btf, BtfError
from gpuprof.bpf.inventory import (
    KERNEL_MAPPING_OFFSETS,
    KERNEL_OFFSETS,
    PROG_KPROBE,
    PROG_PERF_EVENT,
    PROG_RAW_TRACEPOINT,
    family_of,
)
from gpuprof.bpf.program_object import ProgramObject, helpers
from gpuprof.snapshots.errors import GpuprofError

_LOG_BYTES = 16 << 10
_MAP_HASH, _MAP_ARRAY, _MAP_PROG_ARRAY, _MAP_PERCPU_ARRAY, _MAP_LRU_HASH, _MAP_RINGBUF = 1, 2, 3, 6, 9, 27
_MMAPABLE = 1024
_GET_CURRENT_TASK_BTF, _TASK_PT_REGS = 158, 175
_UPROBE_TYPE = Path("/sys/bus/event_source/devices/uprobe/type")
_NO_SUCH_HELPER = ("unknown func", "invalid func", "cannot use helper")
# enum bpf_func_id, and the release that brought it
_HELPERS = {
    14: ("bpf_get_current_pid_tgid", "4.2"),
    16: ("bpf_get_current_comm", "4.2"),
    35: ("bpf_get_current_task", "4.8"),
    67: ("bpf_get_stack", "4.18"),
    112: ("bpf_probe_read_user", "5.5"),
    113: ("bpf_probe_read_kernel", "5.5"),
    130: ("bpf_ringbuf_output", "5.8"),
    _GET_CURRENT_TASK_BTF: ("bpf_get_current_task_btf", "5.11"),
    _TASK_PT_REGS: ("bpf_task_pt_regs", "5.15"),
}


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that was tried. `needed`: without it there are no stacks; `without`: what is lost, or done
    instead.
    """

    name: str
    since: str
    works: bool
    needed: bool
    without: str = ""
    problem: str = ""


def _instruction(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | target, offset, value)


def _call(helper: int) -> bytes:
    return _instruction(0x85, value=helper)


_RETURN_0 = _instruction(0xB7) + _instruction(0x95)  # r0 = 0; exit
_LOOP = (  # r1 = 0; do { r1 += 1 } while (r1 < 100)
    _instruction(0xB7, 1) + _instruction(0x07, 1, value=1) + _instruction(0xA5, 1, offset=-2, value=100)
) + _RETURN_0
_REGISTERS = _call(_GET_CURRENT_TASK_BTF) + _instruction(0xBF, 1, 0) + _call(_TASK_PT_REGS) + _RETURN_0


def macros() -> dict[str, int]:
    """Macros for the C source that depend on what this kernel has."""
    return {"HAVE_TASK_PT_REGS": int(not _try_program(PROG_PERF_EVENT, _REGISTERS))}


def has_helper(kind: int, helper: int) -> bool:
    """Whether programs of a kind may call a helper. The call has no arguments, so it is refused one way
    or the other; how tells.
    """
    try:
        os.close(syscalls.program_load("probe", kind, _call(helper) + _RETURN_0, log_bytes=_LOG_BYTES))
    except syscalls.ProgramRefused as error:
        return not any(words in error.log for words in _NO_SUCH_HELPER)
    return True


def explained(error: GpuprofError, programs: ProgramObject | None = None) -> GpuprofError:
    """A refusal of the kernel, with the features that it lacks, where that may be why."""
    missing = [f"{f.name} (Linux {f.since})" for f in probe() if f.needed and not f.works]
    if programs is not None:
        missing += missing_helpers(programs)
    if not missing:
        return error
    message = f"this kernel lacks {', '.join(dict.fromkeys(missing))}; {error.message}"
    return GpuprofError(message, "Use a newer kernel.", error.exit_code)


def missing_helpers(programs: ProgramObject) -> list[str]:
    """The helpers that compiled programs call and this kernel does not let them, in words."""
    wanted = set()
    for program in programs.programs.values():
        with contextlib.suppress(KeyError):
            wanted |= {(family_of(program.name).kind, helper) for helper in helpers(program)}
    return [_helper_words(helper) for kind, helper in sorted(wanted) if not has_helper(kind, helper)]


def probe() -> Iterator[Feature]:
    """Try everything that the programs need or use where it is there."""

    def program(name: str, since: str, kind: int, code: bytes, without: str = "") -> Feature:
        problem = _try_program(kind, code)
        return Feature(name, since, not problem, not without, without, problem)

    def map_(
        name: str, since: str, kind: int, sizes: tuple[int, int], *, entries: int = 1, flags: int = 0
    ) -> Feature:
        problem = _try(lambda: syscalls.map_create("probe", kind, *sizes, max_entries=entries, flags=flags))
        return Feature(name, since, not problem, True, "", problem)

    yield program("programs on perf events", "4.9", PROG_PERF_EVENT, _RETURN_0)
    yield program("programs on raw tracepoints", "4.17", PROG_RAW_TRACEPOINT, _RETURN_0)
    yield program("bounded loops", "5.3", PROG_PERF_EVENT, _LOOP)
    yield map_("hash maps", "4.9", _MAP_HASH, (4, 8))
    yield map_("LRU hash maps", "4.10", _MAP_LRU_HASH, (8, 8))
    yield map_("per-CPU arrays", "4.6", _MAP_PERCPU_ARRAY, (4, 8))
    yield map_("tail calls", "4.2", _MAP_PROG_ARRAY, (4, 4))
    yield map_("mappable arrays", "5.5", _MAP_ARRAY, (4, 8), flags=_MMAPABLE)
    yield map_("ring buffers", "5.8", _MAP_RINGBUF, (0, 0), entries=4096)
    for helper in (67, 112, 113, 130):
        name, since = _HELPERS[helper]
        yield Feature(name, since, has_helper(PROG_PERF_EVENT, helper), True)
    yield program(
        "bpf_task_pt_regs", "5.15", PROG_PERF_EVENT, _REGISTERS,
        "registers of system calls are read from where this kernel's stacks end",
    )  # fmt: skip
    uprobes = program("programs on uprobes", "4.17", PROG_KPROBE, _RETURN_0, "GPU time has no launch stacks")
    if not _UPROBE_TYPE.exists():
        uprobes = Feature(uprobes.name, uprobes.since, False, False, uprobes.without, f"no {_UPROBE_TYPE}")
    yield uprobes
    problem = _try(syscalls.enable_run_time_stats)
    yield Feature("run time of programs", "5.8", not problem, False, "their cost is not shown", problem)
    yield from type_features(Btf.of_kernel)


def finding(feature: Feature) -> dict[str, str]:
    """What the doctor prints of it."""
    if feature.works:
        return {"name": feature.name, "state": "ok", "detail": ""}
    detail = f"since Linux {feature.since}" + (f": {feature.problem}" if feature.problem else "")
    if feature.needed:
        return {"name": feature.name, "state": "missing", "detail": detail}
    return {"name": feature.name, "state": "note", "detail": f"{detail}; {feature.without}"}


def type_features(types_of: Callable[[], Btf]) -> Iterator[Feature]:
    """What the kernel's type information (BTF), which `types_of` reads or is BtfError, says of the structures
    that the programs read.
    """
    mappings = "a process's mappings as a maple tree"
    without = "new processes have stacks only once their tables are published"
    try:
        types = types_of()
        for field in KERNEL_OFFSETS.values():
            types.offset(*field)
    except BtfError as error:
        yield Feature("kernel type information", "5.2, CONFIG_DEBUG_INFO_BTF", False, True, "", str(error))
        return
    yield Feature("kernel type information", "5.2", True, True)
    try:
        for fields in KERNEL_MAPPING_OFFSETS.values():
            types.first_offset(fields)
    except BtfError as error:
        yield Feature(mappings, "6.1", False, False, without, str(error))
        return
    yield Feature(mappings, "6.1", True, False, without)


def _helper_words(helper: int) -> str:
    name, since = _HELPERS.get(helper, (f"helper function {helper}", "a later release"))
    return f"{name} (Linux {since})"


def _try_program(kind: int, code: bytes) -> str:
    return _try(lambda: syscalls.program_load("probe", kind, code))


def _try(make: Callable[[], int]) -> str:
    """Why a descriptor cannot be had; empty when it can."""
    try:
        os.close(make())
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "") or str(error)
    return ""


def main() -> int:
    """Entry point."""
    missing = False
    for feature in probe():
        found = finding(feature)
        missing |= found["state"] == "missing"
        print(json.dumps(found), flush=True)
    for found in _kept_programs():
        missing |= found["state"] == "missing"
        print(json.dumps(found), flush=True)
    return int(missing)


def _kept_programs() -> Iterator[dict[str, str]]:
    """Whether the compiled programs of an earlier start can be used, and the helpers that they call."""
    from gpuprof.bpf.program_cache import ProgramCache, folder
    from gpuprof.bpf.program_source import OPTIONAL, REQUIRED, cache_key

    cache = ProgramCache(folder())
    found = [cache.read(cache_key(part)) for part in (OPTIONAL, REQUIRED)]
    if found[-1] is None:
        detail = f"none in {folder() or 'any folder'} ({cache.problem}): a start compiles them, for a second"
        yield {"title": "kept programs", "name": "kept programs", "state": "note", "detail": detail}
        return
    yield {"title": "kept programs", "name": "kept programs", "state": "ok", "detail": str(folder())}
    for words in {words: None for programs in found if programs for words in missing_helpers(programs)}:
        yield {"name": words, "state": "missing", "detail": "the BPF programs call it"}


if __name__ == "__main__":
    sys.exit(main())
