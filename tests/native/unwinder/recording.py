"""Recordings of stacks, as compressed JSON: what a walk needs of a process (registers, stack, tables, a
little code and Python memory), and the tables made of it.

A recording is made by record_stack.py and played by test_unwinder.py. It holds no paths, and of each binary
only the unwind rows of addresses that occur on the stack.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from user_unwinder import TABLES, Start, UserUnwinder, Walk

from gpuprof.sampler import unwind_tables
from gpuprof.sampler.python_runtime import PythonLayout

KIND_TABLE = 0
ROWS_PER_BLOCK = 16
_PATH = re.compile(rb"[\x20-\x7e]*/[\x20-\x7e]{5,}")


def without_paths(data: bytes) -> bytes:
    """The bytes with everything that reads like a path replaced by dots."""
    return _PATH.sub(lambda match: b"." * len(match[0]), data)


@dataclass
class RecordedMapping:
    """An executable mapping; `rows`: (linked address, packed rule), each up to the next one."""

    start: int
    end: int
    bias: int
    kind: int
    name: str
    rows: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Recording:
    """One stack. `frames`: what is right, innermost first, as (program counter, stack pointer, name);
    `judge`: who says so.
    """

    about: str
    judge: str
    start: dict[str, int]
    stop: str
    flags: int
    mappings: list[RecordedMapping]
    memory: list[tuple[int, bytes]]
    frames: list[tuple[int, int, str]]
    python: dict[str, Any] | None = None
    python_codes: list[tuple[int, str]] = field(default_factory=list)  # (word 0 of the frame, name)

    def save(self, path: Path) -> None:
        """Write the file, the same bytes each time."""
        value = asdict(self)
        value["memory"] = [(address, data.hex()) for address, data in self.memory]
        text = json.dumps(value, separators=(",", ":")).encode()
        path.write_bytes(gzip.compress(text, 9, mtime=0))

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a file."""
        value = json.loads(gzip.decompress(path.read_bytes()))
        value["memory"] = [(address, bytes.fromhex(data)) for address, data in value["memory"]]
        value["mappings"] = [RecordedMapping(**mapping) for mapping in value["mappings"]]
        value["frames"] = [tuple(frame) for frame in value["frames"]]
        value["python_codes"] = [tuple(frame) for frame in value["python_codes"]]
        return cls(**value)

    def walk(self, unwinder: UserUnwinder) -> Walk:
        """The unwinder's walk of it."""
        arrays, counts = self._tables(unwinder.element_bytes)
        pid = self.start["pid"]
        unwinder.use_tables(arrays, counts)
        bias = self.python["bias"] if self.python else 0
        unwinder.use_process(
            pid, first=0, count=len(self.mappings), python=1 if self.python else 0, bias=bias
        )
        unwinder.use_memory(self.memory)
        return unwinder.walk(Start(**self.start))

    def _tables(self, element_bytes: dict[str, int]) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        mappings = np.zeros(len(self.mappings) + 1, unwind_tables.MAPPING)
        mappings[0]["start"] = 1  # the serial that use_process() gives
        rules: dict[int, int] = {0: 0}
        rows: list[int] = []
        pages: list[tuple[int, int]] = []
        for entry, mapping in zip(mappings[1:], self.mappings, strict=True):
            for name in ("start", "end", "kind"):
                entry[name] = getattr(mapping, name)
            entry["bias"] = mapping.bias & (1 << 64) - 1
            if not mapping.rows:
                continue
            first_page, last_page = mapping.rows[0][0] >> 16, mapping.rows[-1][0] >> 16
            entry["first_page"], entry["pages"], entry["page_base"] = (
                first_page,
                last_page - first_page + 1,
                len(pages),
            )
            rows.append(0)  # stands before all others and has no rule
            at = np.array([address >> 16 for address, _ in mapping.rows])
            begins = np.searchsorted(at, np.arange(first_page, last_page + 2)) + len(rows)
            pages += list(zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True))
            for address, rule in mapping.rows:
                rows.append(rules.setdefault(rule, len(rules)) << 16 | address & 0xFFFF)
        rows += [0] * (-len(rows) % ROWS_PER_BLOCK)
        layouts = np.zeros(2 * element_bytes["python_layouts"], np.uint8)
        if self.python is not None:
            known = {each.name for each in fields(PythonLayout)}
            values = {name: value for name, value in self.python.items() if name in known}
            values["version"] = tuple(values["version"])
            packed = unwind_tables._pack_layout(PythonLayout(**values))
            layouts[element_bytes["python_layouts"] :] = np.frombuffer(packed, np.uint8)
        arrays = {
            "unwind_mappings": mappings, "unwind_pages": np.array(pages or [(0, 0)], np.uint32),
            "unwind_rows": np.array(rows or [0] * ROWS_PER_BLOCK, np.uint32),
            "unwind_rules": np.array(list(rules), np.uint64), "python_layouts": layouts,
        }  # fmt: skip
        counts = {name: array.nbytes // element_bytes[name] for name, array in arrays.items()}
        assert set(arrays) == set(TABLES)
        return arrays, counts
