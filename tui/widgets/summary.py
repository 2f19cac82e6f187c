"""What the answer says about the range, and what of the range it cannot know: the main answer of the program,
in as many lines as it needs and the screen has room for."""

from __future__ import annotations

from gpuprof.snapshots.gpu_tree import SUMMARY_SEPARATOR
from gpuprof.snapshots.names import clean, fit
from gpuprof.snapshots.work_frames import Counted
from gpuprof.tui.palette import Palette
from gpuprof.tui.session import Session
from gpuprof.tui.timescale import duration_text, wall_text
from gpuprof.tui.units import with_unit
from gpuprof.tui.widgets.styled import Line, ink, wrap

MAX_PART = 1000  # characters about one device
MORE = " m: all of it"
USUAL_ROWS = 3
_ROWS_FOR_THE_REST = 14


def rows_for_summary(height: int) -> int:
    """The most rows that it may take on a screen of so many: three at 24."""
    return max(1, min(USUAL_ROWS, (height - _ROWS_FOR_THE_REST) // 3), height // 10)


def summary_parts(session: Session) -> list[str]:
    """What there is to say: what of the range is not known, a text for each device, and one for the work
    rates of a pinned range."""
    missing = missing_text(session)
    said = [missing] if missing else []
    said += session.tree.summary.split(SUMMARY_SEPARATOR) if session.tree and session.tree.summary else []
    if session.feed.pinned is not None and session.rates.pinned:
        said.append(", ".join(rate_text(name, counted) for name, counted in session.rates.pinned))
    return [clean(part, MAX_PART) for part in said]


def missing_text(session: Session) -> str:
    """That a range that stays begins before the sampler's history, as after a restart of the sampler, and how
    much of it that is; empty where all of it is there."""
    held, status = session.feed.held, session.model.status if session.feed.held else None
    if held is None or status is None or not session.model.live or held[0] >= status.history_start_ns:
        return ""
    began = wall_text(session.model.wall_ns(status.history_start_ns), 10**8)
    if held[1] <= status.history_start_ns:
        way_out = "Esc lets go of it" if session.feed.pinned is not None else "space goes on"
        return f"Nothing of this range is in the sampler's history, which begins at {began} ({way_out})"
    length = duration_text(status.history_start_ns - held[0])
    return f"The first {length} of this range are not in the sampler's history, which begins at {began}"


def summary_lines(session: Session, palette: Palette, width: int, at_most: int) -> list[Line]:
    """The same in at most so many lines, of which the last says how to see what did not fit; none when there
    is nothing to say."""
    parts = summary_parts(session)
    cells = max(width - 2, 1)
    rows = [row for part in parts for row in wrap(part, cells)]
    if len(rows) > at_most and len(parts) > 1:  # devices then follow each other on one line
        rows = wrap(SUMMARY_SEPARATOR.join(parts), cells)
    cut = rows[at_most:]
    rows = rows[:at_most]
    lines = [Line().add(" " + row, ink(palette.text), at_most=width) for row in rows]
    if cut:
        left = max(cells - len(MORE), 1)
        last = Line().add(" " + fit(f"{rows[-1]} {cut[0]}", left), ink(palette.text))
        lines[-1] = last.add(MORE, ink(palette.accent))
    return lines


def rate_text(name: str, counted: Counted) -> str:
    """How often something was done in a range: "train step 5.02 /s (126 times)"."""
    if counted.reason or not counted.recorded_ns:
        return f"{clean(name, 60)}: {counted.reason or 'not recorded'}"
    per_s = 1e9 / counted.recorded_ns
    error = f" ± {with_unit(counted.error * per_s, '/s')}" if counted.error else ""
    return f"{clean(name, 60)} {with_unit(counted.total * per_s, '/s')}{error} ({counted.total:,.0f} times)"
