"""The one-line parts of the screen: the pinned range, the title over the tree, and the keys at the bottom;
and what stands where a tree cannot."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.snapshots.frames import Tree
from gpuprof.snapshots.names import clean
from gpuprof.tui.palette import Palette
from gpuprof.tui.session import Session
from gpuprof.tui.timescale import duration_text, wall_text
from gpuprof.tui.widgets.styled import Line, Paragraph, ink, pack_by_priority

SIDE_NOTES = 90  # cells from which a title has room for a hint

KEYS = (
    (0, "q", "quit"),
    (1, "?", "help"),
    (2, "v", "select"),
    (3, "/", "search"),
    (4, "f", "filter"),
    (5, "w", "save"),
    (6, "p", "processes"),
    (7, "i", "icicle"),
    (7, "Tab", "focus"),
    (8, "t", "threads"),
    (9, "space", "pause"),
)


def range_text(session: Session, start_ns: int, end_ns: int) -> str:
    """A range in wall-clock time with its length: "14:02:11.2 … 14:02:14.9 (3.7 s)"."""
    length = end_ns - start_ns
    resolution = 10**9 if length > 120 * 10**9 else 10**8 if length > 10**9 else 10**6
    start = wall_text(session.model.wall_ns(start_ns), resolution)
    end = wall_text(session.model.wall_ns(end_ns), resolution)
    return f"{start} … {end} ({duration_text(length)})"


def summary_line(session: Session, palette: Palette, width: int) -> Line:
    """What the answer says about the pinned range, in a sentence; empty when it says nothing."""
    line = Line()
    if session.feed.pinned is not None and session.tree is not None and session.tree.summary:
        line.add(" " + clean(session.tree.summary, 300), ink(palette.text), at_most=width - 1)
    return line


def tree_title(session: Session, palette: Palette, width: int, match: str, focused: bool) -> Line:
    """Which tree this is: kind, range, filter, number of samples, incomplete stacks, matches."""
    feed, tree = session.feed, session.tree
    text, dim, accent = ink(palette.text), ink(palette.dim), ink(palette.accent, bold=True)
    mark = "▌" if focused else " "
    items: list[tuple[int, Line]] = [(0, Line().add(mark, accent).add("[1 CPU]", accent))]
    if feed.pinned is not None:
        chosen = Line().add(range_text(session, *feed.pinned), ink(palette.accent))
        items.append((1, chosen.add("  Esc lets go", dim) if width >= SIDE_NOTES else chosen))
    elif session.file_span is not None:
        items.append((1, Line().add("whole recording", text)))
    elif feed.paused:
        items.append((1, Line().add("paused (space goes on)", ink(palette.warning))))
    else:
        items.append((1, Line().add("last 30 s, live", ink(palette.good))))
    if feed.filter:
        items.append(
            (1, Line().add("filter: ", dim).add(clean(feed.filter.text, 60), ink(palette.warning, bold=True)))
        )
    if match:
        items.append((2, Line().add(match, accent)))
    if tree is not None and _has_samples(session):
        items.append((3, Line().add(amount(tree), text)))
        if tree.truncated and tree.unit == "samples":
            share = 100 * tree.truncated / max(float(tree.total_weight[0]), 1.0)
            items.append(
                (4, Line().add(f"{tree.truncated:,} stacks cut short ({share:.1f} %)", ink(palette.warning)))
            )
    if feed.by_thread:
        items.append((5, Line().add("by thread", dim)))
    line = Line()
    for item in pack_by_priority(items, width - 1):
        line.add("  " if line.cells else "").extend(item)
    return line


def amount(tree: Tree) -> str:
    """The whole weight of a tree: "3,120 samples" or a length of time."""
    total = float(tree.total_weight[0])
    return f"{round(total):,} samples" if tree.unit == "samples" else duration_text(round(total))


def footer_line(palette: Palette, width: int, extra: Sequence[tuple[int, str, str]] = ()) -> Line:
    """The keys that matter, as many as fit."""
    items = []
    for priority, key, meaning in (*extra, *KEYS):
        items.append((priority, Line().add(key, ink(palette.accent)).add(" " + meaning, ink(palette.dim))))
    line = Line().add(" ")
    for item in pack_by_priority(items, width - 2, gap=3):
        line.add("   " if line.cells > 1 else "").extend(item)
    return line


def link_text(session: Session) -> str:
    """What is wrong with the connection, for the header; empty when nothing is."""
    state = session.link.state
    if state.state == "gone":
        return "sampler gone, reconnecting…"
    if state.state == "failed":
        return "cannot be read"
    late = session.model.late_s
    return f"no word from the sampler for {late:.0f} s" if late is not None else ""


def tree_message(session: Session, palette: Palette) -> list[Paragraph]:
    """What stands in place of a tree that cannot be shown, and why; empty when there is one."""
    model, state = session.model, session.link.state
    text, dim, error = ink(palette.text), ink(palette.dim), ink(palette.error)
    if state.state in ("gone", "failed") and session.tree is None:
        said = [(state.message, error), (state.hint, text)]
        return [*said, ("Trying again…", dim)] if state.state == "gone" else said
    if model.hello is None:
        doing = "connecting to" if session.transport.live else "reading"
        return [(f"{doing} {clean(session.transport.label, 80)}…", dim)]
    cpu = model.source("cpu")
    if cpu is not None and cpu.state in ("failed", "off") and not _has_samples(session):
        said = [
            ("No CPU stacks", ink(palette.warning, bold=True)),
            (cpu.reason or cpu.state, text),
            (cpu.hint, text),
        ]
        if model.hello.sudo_line and model.live:
            said += [("With CPU stacks of all processes:", dim)]
            said += [("    " + clean(model.hello.sudo_line, 400), ink(palette.accent, bold=True))]
        return said
    if cpu is not None and cpu.state == "starting" and not _has_samples(session):
        return [("CPU stacks are being set up…", dim), (cpu.reason, dim)]
    if session.failure is not None:
        return [(session.failure.message, error), (session.failure.hint, text)]
    if session.tree is None:
        return [("waiting for the first samples…", dim)]
    if not _has_samples(session):
        where = (
            "in this range"
            if session.feed.pinned
            else "yet"
            if session.file_span is None
            else "in this recording"
        )
        what = f"No CPU samples {where}"
        if session.feed.filter:
            what += f" that match the filter {clean(session.feed.filter.text, 60)} (f changes it)"
        return [(f"{what}.", dim)]
    return []


def _has_samples(session: Session) -> bool:
    tree = session.tree
    return tree is not None and len(tree.total_weight) > 0 and float(tree.total_weight[0]) > 0
