"""Where the launch probe of a process lies: which file it maps, and the offset of the function's first
instruction.

The file is the process's own and may be anything: it is opened through the mapping itself, parsed with
bounds, and refused unless the function begins with the 5-byte nop, on which a uprobe costs a quarter of a
microsecond (on other instructions up to 17, single-stepped).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.sampler.elf import ElfError, ElfFile
from gpuprof.sampler.maps import map_file_path, open_mapping, read_maps
from gpuprof.sampler.process_stacks import INJECTION_LIBRARY, INJECTION_NAMES
from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, GpuprofError

FUNCTION = "gpuprof_launch"
NOP = bytes((0x0F, 0x1F, 0x44, 0x00, 0x00))  # nopl 0(%rax,%rax,1)


@dataclass(frozen=True, slots=True)
class ProbeSite:
    """What a uprobe needs."""

    path: str
    offset: int


def find_probe(pid: int) -> ProbeSite:
    """The launch probe of a process. GpuprofError with what is missing."""
    for mapping in read_maps(pid):
        if mapping.name not in INJECTION_NAMES or mapping.kind not in {"file", "memfd"}:
            continue
        try:
            with ElfFile(open_mapping(pid, mapping)) as elf:
                return ProbeSite(map_file_path(pid, mapping), probe_offset(elf))
        except (OSError, ElfError) as error:
            raise GpuprofError(f"its {INJECTION_LIBRARY} cannot be read: {error}") from None
    raise GpuprofError(f"it does not map {INJECTION_LIBRARY}", "", EXIT_UNAVAILABLE)


def probe_offset(elf: ElfFile) -> int:
    """File offset of the probe function. GpuprofError: there is none, or it does not begin with the nop."""
    symbol = elf.dynamic_symbols({FUNCTION}).get(FUNCTION)
    offset = elf.offset_of(symbol[0]) if symbol is not None else None
    if offset is None:
        raise GpuprofError(f"its {INJECTION_LIBRARY} has no function {FUNCTION}")
    if elf.read(offset, len(NOP)) != NOP:
        raise GpuprofError(f"{FUNCTION} of its {INJECTION_LIBRARY} does not begin with a 5-byte nop")
    return offset
