"""How large the maps of the BPF programs are made: by the machine's memory, its CPUs and the sampling
rate."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

LAUNCH_RING_BYTES = 4 << 20  # 40,000 launches whose stacks were seen before
WAIT_RING_BYTES = 4 << 20  # 25,000 waits whose stacks were seen before
PAGE_BYTES = 4096
_ROW_BLOCK_BYTES = 64


@dataclass(frozen=True, slots=True)
class TableSizes:
    """Elements of the unwind tables' maps; a row block holds 16 rows."""

    row_blocks: int
    mappings: int = 65536
    pages: int = 65536
    rules: int = 65536
    python_layouts: int = 1024


def choose_sizes(memory_bytes: int) -> TableSizes:
    """Rows for the machine: 1/512 of its memory, as a power of two from 8 to 64 MB."""
    wanted = min(max(memory_bytes // 512, 8 << 20), 64 << 20)
    return TableSizes(row_blocks=(1 << (wanted.bit_length() - 1)) // _ROW_BLOCK_BYTES)


def choose_ring_bytes(cpus: int, hz: int) -> int:
    """A power of two that holds a quarter second of samples of 1 KB."""
    wanted = min(max(cpus * hz * 256, 256 << 10), 8 << 20)
    return 1 << (wanted - 1).bit_length()


def config_of(hz: int, sizes: TableSizes | None = None) -> dict[str, int]:
    """The macros of inventory.SIZES for this machine; `sizes` instead of those that its memory suggests."""
    sizes = sizes or choose_sizes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return {
        "ROW_BLOCKS": sizes.row_blocks,
        "MAPPINGS": sizes.mappings,
        "PAGES": sizes.pages,
        "RULES": sizes.rules,
        "PYTHON_LAYOUTS": sizes.python_layouts,
        "SAMPLE_RING_PAGES": choose_ring_bytes(os.cpu_count() or 1, hz) // PAGE_BYTES,
        "LAUNCH_RING_PAGES": LAUNCH_RING_BYTES // PAGE_BYTES,
        "WAIT_RING_PAGES": WAIT_RING_BYTES // PAGE_BYTES,
    }


def sizes_of(config: Mapping[str, int]) -> TableSizes:
    """The sizes that a config asks for."""
    return TableSizes(
        config["ROW_BLOCKS"], config["MAPPINGS"], config["PAGES"], config["RULES"], config["PYTHON_LAYOUTS"]
    )
