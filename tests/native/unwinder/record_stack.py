"""Records the stack of a running thread, so that a fault seen in the field becomes a test.

usage: record_stack.py PID [--tid TID] -o FILE      one thread, which is stopped for a moment
       record_stack.py --samples                    makes the recordings of this folder anew

Where gdb is installed its backtrace becomes what the recording says is right; else what was found is, and a
person corrects it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from recording import KIND_TABLE, RecordedMapping, Recording, without_paths  # noqa: E402
from user_unwinder import MemoryTables, Start, UserUnwinder, Walk  # noqa: E402

from gpuprof.bpf.ehframe import EhFrameError, build_rows  # noqa: E402
from gpuprof.bpf.sizes import TableSizes  # noqa: E402
from gpuprof.sampler.elf import PF_X, ElfError, ElfFile  # noqa: E402
from gpuprof.sampler.maps import Mapping, open_mapping, read_maps  # noqa: E402
from gpuprof.sampler.python_code import CodeReader  # noqa: E402
from gpuprof.sampler.python_runtime import PythonLayout  # noqa: E402

ROOT_TESTS = HERE.parent.parent / "root"
RECORDINGS = HERE / "recordings"
MAX_STACK_BYTES = 64 << 10  # of a walk that did not end at the root
AROUND = 64  # bytes beside each read that are kept too
KIND_FRAME_POINTER, KIND_NO_TABLE = 1, 2
SHIM_OWNER = 3
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_GETREGSET, _PTRACE_DETACH = 0x4206, 0x4207, 0x4204, 17
_NT_PRSTATUS = 1
# Places in struct user_regs_struct of x86-64.
_REGISTERS = {"r13": 2, "bp": 4, "r10": 7, "pc": 16, "sp": 19, "fsbase": 21}


def registers_of(tid: int) -> dict[str, int]:
    """The user registers of a thread, which is stopped for a moment."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long

    def ptrace(request: int, address: int | None, data: Any) -> None:
        if libc.ptrace(request, tid, address, data) < 0:
            raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")

    values = (ctypes.c_uint64 * 27)()
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(values), ctypes.sizeof(values))
    ptrace(_PTRACE_SEIZE, None, None)
    try:
        ptrace(_PTRACE_INTERRUPT, None, None)
        os.waitpid(tid, 0x40000000)  # __WALL
        ptrace(_PTRACE_GETREGSET, _NT_PRSTATUS, ctypes.addressof(vector))
    finally:
        libc.ptrace(_PTRACE_DETACH, tid, None, None)
    return {name: values[place] for name, place in _REGISTERS.items()}


class StoppedProcess:
    """A process that is held with SIGSTOP while it is looked at."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "Tt":
            time.sleep(0.001)
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)

    def read(self, address: int, size: int) -> bytes:
        """What can be read there, in whole or from its beginning."""
        try:
            return os.pread(self._memory, size, address)
        except OSError:
            return b""

    def go_on(self) -> None:
        os.close(self._memory)
        os.kill(self.pid, signal.SIGCONT)


def frames_by_gdb(pid: int) -> list[tuple[int, int, str]] | None:
    """gdb's frames of the newest thread; None without gdb."""
    if shutil.which("gdb") is None:
        return None
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "GPUPROF_ORACLE_FD": str(theirs.fileno()), "GPUPROF_ORACLE_PID": str(pid)}
    command = [
        "gdb",
        "-nx",
        "-batch",
        "-iex",
        "set debuginfod enabled off",
        "-x",
        str(ROOT_TESTS / "gdb_stops.py"),
    ]
    with theirs:
        gdb = subprocess.Popen(
            command, env=environment, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL
        )
    with ours, ours.makefile("rw") as lines:
        lines.write("here\n")
        lines.flush()
        answer = json.loads(lines.readline())
        lines.write("quit\n")
    gdb.wait()
    return [(pc, sp, name) for pc, sp, name in answer["frames"]]


def stack_words(stack: bytes) -> np.ndarray:
    """Its words, each an address or anything else."""
    return np.frombuffer(stack[: len(stack) & -8], np.uint64)


def record_mapping(pid: int, mapping: Mapping, wanted: np.ndarray) -> RecordedMapping:
    """A mapping with the rows of the wanted code addresses."""
    plain = RecordedMapping(mapping.start, mapping.end, 0, KIND_NO_TABLE, mapping.name)
    if mapping.kind == "anonymous":
        plain.kind = KIND_FRAME_POINTER
        return plain
    try:
        with ElfFile(open_mapping(pid, mapping)) as elf:
            bias, location = elf.load_bias(mapping.start, mapping.offset), elf.eh_frame()
            if bias is None or location is None:
                return plain
            offset, size, address = location
            ranges = [(s.vaddr, s.vaddr + s.file_size) for s in elf.loads if s.flags & PF_X]
            table = build_rows(elf.read(offset, size), address, ranges)
    except (OSError, ElfError, EhFrameError):
        return plain
    addresses, rules = table.addresses(), table.rules[table.rows[1:] >> 16]
    inside = wanted[(wanted >= mapping.start) & (wanted < mapping.end)].astype(np.int64) - bias
    kept = np.unique(np.searchsorted(addresses, inside.astype(np.uint64), "right") - 1)
    rows: dict[int, int] = {}
    for index in kept[kept >= 0].tolist():
        rows[int(addresses[index])] = int(rules[index])
        if index + 1 < len(addresses):  # what is not kept has no rule, rather than the wrong one
            rows.setdefault(int(addresses[index + 1]), 0)
    for index in kept[kept >= 0].tolist():
        rows[int(addresses[index])] = int(rules[index])
    return RecordedMapping(mapping.start, mapping.end, bias, KIND_TABLE, mapping.name, sorted(rows.items()))


def merged(spans: Sequence[tuple[int, int]], process: StoppedProcess) -> list[tuple[int, bytes]]:
    """The memory of (address, end) spans, joined where they touch."""
    joined: list[list[int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    memory = [(begin, without_paths(process.read(begin, end - begin))) for begin, end in joined]
    return [(address, data) for address, data in memory if data]


def spans_to_keep(
    process: StoppedProcess,
    start: Start,
    walk: Walk,
    reads: list[tuple[int, int]],
    mappings: Sequence[Mapping],
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """(spans of memory, code addresses that occur)."""
    complete = walk.stop.name == "ROOT"
    end = walk.stack_pointers[-1] + 16 if complete else start.sp + MAX_STACK_BYTES
    stack = process.read(start.sp, end - start.sp)
    spans = [(start.sp, start.sp + len(stack))]
    words = stack_words(stack)
    in_code = np.zeros(len(words), bool)
    for mapping in mappings:
        in_code |= (words > mapping.start) & (words <= mapping.end)
    for word in np.unique(words[in_code]).tolist():
        code = process.read(word - 16, 16)
        spans.append((word - 16, word + 16))
        if len(code) == 16 and code[11] == 0xE8:  # call rel32: it may lead to a linkage stub
            target = word + struct.unpack("<i", code[12:])[0]
            spans.append((target, target + 16))
    for address, size in reads:
        page_end = (address + size + 4095) & -4096
        spans.append((max(address - AROUND, address & -4096), min(address + size + AROUND, page_end)))
    wanted = np.concatenate((words[in_code] - np.uint64(1), np.array([start.pc, *walk.counters], np.uint64)))
    return spans, np.concatenate((wanted, np.array(walk.counters, np.uint64) - np.uint64(1)))


def python_names(pid: int, layout: PythonLayout | None, walk: Walk) -> list[tuple[int, str]]:
    """Word 0 of each Python frame, and its function."""
    if layout is None:
        return []
    codes = CodeReader(pid, layout)
    names = []
    for word, detail in walk.python:
        shim = layout.has_shim_frames and word >> 56 == SHIM_OWNER
        code = None if shim else codes.get(word & (1 << 48) - 1, detail >> 32 & 0xFFFFFF)
        names.append((word, "(shim)" if shim else code.name if code is not None else "?"))
    codes.close()
    return names


def record(pid: int, tid: int, about: str, unwinder: UserUnwinder, *, ask_gdb: bool = True) -> Recording:
    """Record the stack of a thread."""
    tables = MemoryTables(TableSizes(row_blocks=1 << 19), unwinder.element_bytes)
    layout = tables.publish(pid)
    unwinder.use_published(tables, pid)
    process = StoppedProcess(pid)
    try:
        start = Start(**registers_of(tid), pid=pid, tid=tid)
        walk = unwinder.walk(start)
        mappings = read_maps(pid)
        spans, wanted = spans_to_keep(process, start, walk, unwinder.reads(), mappings)
        frames = frames_by_gdb(pid) if ask_gdb else None
        judge = "gdb" if frames is not None else "the unwinder itself"
        if frames is None:
            frames = [(pc, sp, "?") for pc, sp in zip(walk.counters, walk.stack_pointers, strict=True)]
        return Recording(
            about, judge, {name: getattr(start, name) for name, *_ in Start._fields_}, walk.stop.name,
            int(walk.flags), [record_mapping(pid, mapping, wanted) for mapping in mappings],
            merged(spans, process), frames, asdict(layout) if layout is not None else None,
            python_names(pid, layout, walk),
        )  # fmt: skip
    finally:
        process.go_on()
        tables.close()


# Standing stacks for the recordings of this folder. The first two are native, without frame pointers.
PYTHON = """
import sys
def inner():
    print("ready", flush=True)
    for _ in iter(int, 1): pass
def numbers(depth):
    if depth: yield from numbers(depth - 1)
    else: inner()
    yield depth
class Outer:
    def method(self, _):
        sum(numbers(3))
        return 0
def main(): [0].sort(key=Outer().method)
main()
"""


def make_samples(unwinder: UserUnwinder) -> None:
    """All recordings of this folder."""
    versions = Path.home() / ".pyenv" / "versions"
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/planted"
        flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"]
        subprocess.run(["gcc", *flags, "-o", program, str(ROOT_TESTS / "planted.c")], check=True)
        samples: dict[str, tuple[str, list[str]]] = {
            "signal": ("a signal handler, over the signal frame", [program, "signal"]),
            "assembly": (
                "assembly without unwind rules: a frame of 1,208 bytes is scanned",
                [program, "assembly"],
            ),
            "generated": ("generated code with a frame pointer", [program, "generated"]),
        }
        for version in ("3.10", "3.11", "3.13"):
            python = next(versions.glob(f"{version}.*/bin/python"), None)
            if python is not None:
                about = f"CPython {version}: generators, and a callback out of list.sort"
                samples[f"python{version}"] = (about, [str(python), "-c", PYTHON])
        for name, (about, command) in samples.items():
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            try:
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(0.1)
                known = name not in {"assembly", "generated"}  # gdb has nothing to go by there
                found = record(process.pid, process.pid, about, unwinder, ask_gdb=known)
                found.save(RECORDINGS / f"{name}.json.gz")
                print(
                    name,
                    found.stop,
                    len(found.frames),
                    "frames",
                    (RECORDINGS / f"{name}.json.gz").stat().st_size,
                )
            finally:
                process.kill()
                process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pid", type=int, nargs="?")
    parser.add_argument("--tid", type=int)
    parser.add_argument("--about", default="")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--samples", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        unwinder = UserUnwinder(Path(folder))
        if arguments.samples:
            make_samples(unwinder)
            return 0
        if arguments.pid is None or arguments.output is None:
            parser.error("PID and -o FILE are needed")
        tid = arguments.tid or arguments.pid
        found = record(arguments.pid, tid, arguments.about, unwinder, ask_gdb=tid == arguments.pid)
    found.save(arguments.output)
    print(
        f"{found.stop}, {len(found.frames)} frames by {found.judge}, {arguments.output.stat().st_size} bytes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
