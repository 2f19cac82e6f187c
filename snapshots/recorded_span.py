"""From when to when something was recorded: what its recorder says, as far as its rows bear it out."""

from __future__ import annotations

from gpuprof.snapshots.gaps import MAX_NS

BEYOND_NS = 10 * 10**9  # no source of a sampler that lives is silent for so long


def span_of(rows: tuple[int, int] | None, recorded: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the range [start, end) in ns that holds every row (`rows`: the range of those, None: there are
    none) and the time that the recorder says (`recorded`, None: it does not); None where nothing is known.

    What the recorder says comes from a file and may be anything: it is believed up to BEYOND_NS before the
    first row and after the last one, or after its own start where there are no rows. A row that was cut ends
    where the recording does, and is no instant that would need one nanosecond more.
    """
    if recorded is None or not 0 <= recorded[0] < recorded[1]:
        return rows
    start, end = recorded
    if rows is None:
        return (start, min(end, start + BEYOND_NS)) if start < MAX_NS else None
    first, last = rows
    last -= last - 1 == end
    return min(first, max(start, first - BEYOND_NS)), max(last, min(end, last + BEYOND_NS))
