"""Compares our unwind rows of a library with those of `readelf --debug-dump=frames-interp`.

usage: python tests/bench/readelf_rows.py FILE...    (libtorch_cpu.so: some minutes, most of them readelf's)

A row is *wrong* when our rule differs where readelf has one; *left out* when we have no rule there (an
expression that is not supported), which ends a stack early but never wrongly.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gpuprof.bpf.ehframe import UnwindRows, build_rows
from gpuprof.sampler.elf import PF_X, ElfFile

_FDE = re.compile(r"cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")
_ROW = re.compile(r"[0-9a-f]{16}")
_CFA = re.compile(r"(\w+?)([+-]\d+)")
_REGISTER_NOTE = re.compile(r" \(\w+\)")  # readelf writes registers as "r10 (r10)"
_KINDS = {"rsp": 1, "rbp": 2}
_REGISTER_NUMBERS = {"rax": 0, "rdx": 1, "rcx": 2, "rbx": 3, "rsi": 4, "rdi": 5} | {
    f"r{n}": n for n in range(8, 16)
}
_BATCH = 100_000


@dataclass(frozen=True)
class Row:
    """One row of readelf: linked addresses [begin, end), CFA, other columns by name, in a signal frame."""

    begin: int
    end: int
    cfa: str
    columns: dict[str, str]
    signal: bool


@dataclass
class Comparison:
    """Counts over a file; `wrong`: a description of each wrong row."""

    rows: int = 0
    left_out: int = 0
    wrong: list[str] = field(default_factory=list)


def packed(*, cfa: int, rbp: int, rbp_offset: int, cfa_offset: int) -> int:
    """A rule as struct unwind_rule of layout.bpf.h."""
    return int(struct.unpack("<Q", struct.pack("<BBhi", cfa, rbp, rbp_offset, cfa_offset))[0])


def rows_by_readelf(path: str) -> Iterator[Row]:
    """All rows, in the order of the file, as they come out of readelf."""
    process = subprocess.Popen(
        ["readelf", "--wide", "--debug-dump=frames-interp", path], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={"LC_ALL": "C", "PATH": os.environ.get("PATH", "")}, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    signal_cies: set[str] = set()
    inside = signal = False
    end, names = 0, [""]
    waiting: Row | None = None  # until it is known where it ends
    for line in process.stdout:
        if line.startswith("Contents of the "):
            inside = " .eh_frame section" in line  # .debug_frame is another table
        if not inside:
            continue
        fields = _REGISTER_NOTE.sub("", line).split()
        if " CIE " in line or " FDE " in line:
            if waiting is not None:
                yield Row(waiting.begin, end, waiting.cfa, waiting.columns, waiting.signal)
            waiting, end = None, 0
            match = _FDE.search(line)
            if match is not None:
                end, signal = int(match[3], 16), match[1] in signal_cies
            elif "S" in line.split('"')[1]:
                signal_cies.add(fields[0])
        elif fields[:2] == ["LOC", "CFA"]:
            names = fields[2:]
        elif end and len(fields) >= 2 and _ROW.fullmatch(fields[0]):
            begin = int(fields[0], 16)
            if (
                waiting is not None and waiting.begin < begin
            ):  # of several rows at one address the last counts
                yield Row(waiting.begin, begin, waiting.cfa, waiting.columns, waiting.signal)
            waiting = Row(begin, end, fields[1], dict(zip(names, fields[2:], strict=False)), signal)
    if waiting is not None:
        yield Row(waiting.begin, end, waiting.cfa, waiting.columns, waiting.signal)
    process.stdout.close()
    process.wait()


def agrees(rule: int, row: Row) -> str:
    """ "same", "left out" or "wrong"."""
    kind, rbp, rbp_offset, offset = struct.unpack("<BBhi", struct.pack("<Q", rule))
    if row.signal:
        return "same" if kind == 7 else "wrong"
    ra = row.columns.get("ra")
    if ra == "u":
        return "same" if kind == 6 else "wrong"
    if kind == 0:
        return "left out"
    if ra not in (None, "c-8"):
        return "wrong"
    if row.cfa == "exp":
        if kind not in (1, 2, 3, 4, 5):
            return "wrong"
    else:
        match = _CFA.fullmatch(row.cfa)
        if match is None:
            return "wrong"
        value, wanted = int(match[2]), _KINDS.get(match[1], 8)
        if wanted == 8 and offset & 255 != _REGISTER_NUMBERS.get(match[1]):
            return "wrong"
        if kind != wanted or (offset >> 8 if wanted == 8 else offset) != value:
            return "wrong"
    column = row.columns.get("rbp")
    if column is None or column in ("u", "s"):  # a register that is saved later in the function shows as u
        return "same" if rbp in (0, 2) else "wrong"
    if column.startswith("c"):
        return "same" if rbp == 1 and rbp_offset == int(column[1:]) else "wrong"
    return "same" if rbp in (2, 3) else "wrong"  # exp, or in another register


def our_rows(path: str) -> UnwindRows:
    """The rows that the kernel would get for a file."""
    with ElfFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as elf:
        location = elf.eh_frame()
        if location is None:
            raise SystemExit(f"{path} has no .eh_frame")
        offset, size, address = location
        ranges = [(s.vaddr, s.vaddr + s.file_size) for s in elf.loads if s.flags & PF_X]
        return build_rows(elf.read(offset, size), address, ranges)


def compare(path: str) -> Comparison:
    """All rows of readelf against ours, each at its first and at its last address."""
    table = our_rows(path)
    addresses, rules = table.addresses(), table.rules[table.rows[1:] >> 16]
    result = Comparison()
    batch: list[Row] = []
    for row in rows_by_readelf(path):
        if row.begin < row.end:
            batch.append(row)
        if len(batch) >= _BATCH:
            _judge(batch, addresses, rules, result)
            batch = []
    _judge(batch, addresses, rules, result)
    return result


def _judge(batch: list[Row], addresses: np.ndarray, rules: np.ndarray, result: Comparison) -> None:
    if not batch:
        return
    for attribute, back in (("begin", 0), ("end", 1)):
        wanted = np.array([getattr(row, attribute) - back for row in batch], np.uint64)
        found = np.searchsorted(addresses, wanted, "right") - 1
        for row, address, index in zip(batch, wanted.tolist(), found.tolist(), strict=True):
            rule = int(rules[index]) if index >= 0 else 0
            verdict = agrees(rule, row)
            if verdict == "wrong":
                result.wrong.append(f"{address:#x}: readelf {row.cfa} {row.columns}, ours {rule:#x}")
            elif verdict == "left out" and not back:
                result.left_out += 1
    result.rows += len(batch)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+")
    wrong = 0
    for path in parser.parse_args().files:
        began = time.monotonic()
        result = compare(path)
        wrong += len(result.wrong)
        seconds = time.monotonic() - began
        name = os.path.basename(path)
        counts = f"{result.rows} rows, {len(result.wrong)} wrong, {result.left_out} left out"
        print(f"{name}: {counts}, {seconds:.0f} s")
        for text in result.wrong[:10]:
            print(f"  {text}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
