"""What of a snapshot file was read and what was not, and both in words, with times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuprof.snapshots import chunks
from gpuprof.snapshots.chunks import ChunkHeader
from gpuprof.snapshots.history import History
from gpuprof.snapshots.timerange import wall_text

_MAX_SAID = 3  # missing parts that are named
_LEAST_NS = 50_000_000  # less would be shown as 0.0 s
_NO_END = "its end mark is missing, and nothing else"
_KILLED = "a recorder that is killed loses 10 s at most"


@dataclass(slots=True)
class Findings:
    """What was read of a file and what was not; parts are (start_ns, end_ns)."""

    history: History | None = None
    read: list[tuple[int, int]] = field(default_factory=list)  # data chunks
    lost: list[tuple[int, int, str]] = field(default_factory=list)  # those that cannot be used, and why
    headers: set[ChunkHeader] = field(default_factory=set)  # of those that were read
    repeated: int = 0  # chunks that are there once more
    another_bytes: int = 0  # of another snapshot file that follows
    raw_bytes: int = 0
    skipped_bytes: int = 0  # that belong to no chunk
    cut: ChunkHeader | None = None  # the chunk that the file ends within
    index: list[list[int]] | None = None
    span: tuple[int, int] | None = None  # of the whole file; (0, 0): it was not closed; None: not said
    closed: bool = False  # it has its end mark
    too_large: bool = False

    @property
    def was_closed(self) -> bool:
        """Whether the recorder ended the file, whatever has happened to it since."""
        return self.closed or self.index is not None or (self.span is not None and self.span[1] > 0)


def damage(findings: Findings, *, growing: bool = False) -> str | None:
    """Say in one or more sentences what is kept and what is missing; None when nothing is missing.

    `growing`: the file is still being written, so that an end is not to be expected.
    """
    history = findings.history
    assert history is not None
    first, last = history.span
    missing = _missing(findings)
    said: list[str] = []
    if findings.too_large:
        said.append(f"only its first {_seconds(last - first)} are shown: it unpacks to more than 1 GiB")
    elif findings.index is None and not growing:
        said += _end_is_missing(findings, history)
    of_total = f" of {len(findings.index)}" if findings.index is not None else ""
    for start_ns, end_ns, why in missing[:_MAX_SAID]:
        part = _part(history, start_ns, end_ns)
        said.append(f"{part} is missing: a chunk{of_total} is {f'damaged ({why})' if why else 'gone'}")
    if len(missing) > _MAX_SAID:
        whole = _seconds(sum(end - start for start, end, _ in missing[_MAX_SAID:]))
        said.append(f"{len(missing) - _MAX_SAID} more chunks, {whole} in all, are damaged or gone")
    if missing and findings.index is not None:
        kept, total = _length(findings.read), _length([(entry[2], entry[3]) for entry in findings.index])
        said.append(f"kept are {_seconds(kept)} of {_seconds(total)}")
    if not said and not growing and not findings.skipped_bytes and not findings.closed:
        said.append(_NO_END)
    elif not said and not growing and findings.skipped_bytes:
        may = "no chunk is missing" if findings.index is not None else "what was found of it is shown"
        said.append(f"some bytes between or after its chunks are damaged; {may}")
    if findings.repeated:
        said.append(f"{findings.repeated} of its chunks are there more than once, and are counted once")
    if findings.another_bytes:
        size = f"{findings.another_bytes / 1e6:.2f} MB"
        said.append(
            f"another snapshot follows in the same file ({size}), which is not read: open it by itself"
        )
    return "; ".join(said) or None


def nothing_left(findings: Findings) -> str:
    """Return the next step for a file of which no chunk can be used."""
    whole = ""
    if findings.span is not None and findings.span[1] > 0:
        whole = f" Of the {_seconds(findings.span[1] - findings.span[0])} that were recorded nothing is kept."
    if findings.lost:
        return f"Its first chunk cannot be used: {findings.lost[0][2]}.{whole}"
    if findings.was_closed:
        return f"It was cut within its first part: copy it again from where it is whole.{whole}"
    if findings.cut is not None:
        length = _seconds(findings.cut.end_ns - findings.cut.start_ns)
        return f"It was cut within its first part, of {length}: copy it again from where it is whole."
    if findings.span is not None:
        return "The recorder was ended before it wrote its first part, a second after the start."
    return "It was cut before its first part: copy it again from where it is whole."


def _end_is_missing(findings: Findings, history: History) -> list[str]:
    """Say what is missing at the end of a file without an index."""
    first, last = history.span
    kept = f"the first {_seconds(last - first)} are kept ({_times(history, first, last)})"
    cut = findings.cut if findings.cut is not None and findings.cut.kind == chunks.DATA else None
    if findings.span is not None and findings.span[1] > 0:
        end = findings.span[1]
        if end - last < _LEAST_NS:
            return [_NO_END]
        after = f"the {_seconds(end - last)} after them, to {wall_text(history, end)}, are missing"
        return [f"the file was cut: {kept}; {after}, of {_seconds(end - findings.span[0])} in all"]
    if cut is not None:
        least = _seconds(cut.end_ns - cut.start_ns)
        number = len(findings.read) + len(findings.lost) + 1
        after = f"what came after them is missing, {least} or more"
        return [f"the file was cut within chunk {number}: {kept}; {after}"]
    return [f"it was not closed: {kept}; what came after them is missing ({_KILLED})"]


def _missing(findings: Findings) -> list[tuple[int, int, str]]:
    """Return the parts that are missing between those that were read, and why ("": it is not there)."""
    found = list(findings.lost)
    if findings.index is not None and not findings.too_large:
        known = {*findings.read, *((start, end) for start, end, _ in found)}
        found += [(entry[2], entry[3], "") for entry in findings.index if (entry[2], entry[3]) not in known]
    return sorted(found)


def _length(parts: Sequence[tuple[int, int]]) -> int:
    return sum(max(end - start, 0) for start, end in parts)


def _part(history: History, start_ns: int, end_ns: int) -> str:
    """Return a part as a range from the start of what is kept: 2.0 to 3.0 s (14:02:13.200 to …)."""
    first = history.span[0]
    if start_ns < first:
        whole = _seconds(end_ns - start_ns)
        return f"a part of {whole} before what is kept ({_times(history, start_ns, end_ns)})"
    low, high = (start_ns - first) / 1e9, (end_ns - first) / 1e9
    return f"the part from {low:.1f} s to {high:.1f} s ({_times(history, start_ns, end_ns)})"


def _times(history: History, start_ns: int, end_ns: int) -> str:
    return f"{wall_text(history, start_ns)} to {wall_text(history, end_ns)}"


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.1f} s"
