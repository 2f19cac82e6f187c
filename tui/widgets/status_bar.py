"""The one-line parts of the screen: the pinned range, the title over the tree, and the keys at the bottom;
and what stands where a tree cannot."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.snapshots.frames import Tree
from gpuprof.snapshots.names import clean
from gpuprof.tui.palette import Palette
from gpuprof.tui.session import Session
from gpuprof.tui.timescale import duration_text, wall_text
from gpuprof.tui.tree_feed import GPU_TREES
from gpuprof.tui.widgets.styled import Line, Paragraph, ink, pack_by_priority

SIDE_NOTES = 90  # cells from which a title has room for a hint
ROOMY_KEYS = 100  # and the keys have room between them
# As much of them as the line has room for beside the range, the filter and the search; they never go.
TABS = (
    (("cpu", "[1 CPU]"), ("gpu", "[2 GPU time]"), ("idle", "[3 GPU idle]"), ("offcpu", "[4 off-CPU]")),
    (("cpu", "[1 CPU]"), ("gpu", "[2 GPU]"), ("idle", "[3 idle]"), ("offcpu", "[4 off]")),
    (("cpu", "[1]"), ("gpu", "[2]"), ("idle", "[3]"), ("offcpu", "[4]")),
)
NAMES = {"gpu": "GPU time", "idle": "idle GPU time", "offcpu": "off-CPU time"}
_AMOUNTS = {"gpu": "of GPU time", "idle": "of idle GPU time", "offcpu": "of waiting"}
RUN_LINE = "gpuprof-tui run -- python train.py"
RECORD_LINE = "gpuprof-tui record -o run.gpuprof -- python train.py"

KEYS = (
    (0, "q", "quit"),
    (1, "?", "help"),
    (1, "1-4", "trees"),
    (1, "v", "select"),
    (1, "w", "save"),
    (3, "/", "search"),
    (4, "f", "filter"),
    (5, "Tab", "focus"),
    (6, "u", "bottom up"),
    (6, "p", "processes"),
    (7, "m", "notes"),
    (7, "i", "icicle"),
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


def tree_title(session: Session, palette: Palette, width: int, match: str, focused: bool) -> Line:
    """Which tree this is: kind, range, filter, number of samples, incomplete stacks, matches."""
    feed, tree = session.feed, session.tree
    text, dim, accent = ink(palette.text), ink(palette.dim), ink(palette.accent, bold=True)
    items: list[tuple[int, Line]] = []
    if feed.pinned is not None:
        chosen = Line().add(range_text(session, *feed.pinned), ink(palette.accent))
        items.append((1, chosen.add("  Esc lets go", dim) if width >= SIDE_NOTES else chosen))
    elif session.file_span is not None:
        items.append((1, Line().add("whole recording", text)))
    elif feed.paused:
        items.append((1, Line().add("paused (space goes on)", ink(palette.warning))))
    elif session.link.was_open:
        items.append((1, Line().add("tree: last 30 s, live", ink(palette.good))))
    if feed.filter:
        kept = Line().add("filter: ", dim).add(clean(feed.filter.text, 60), ink(palette.warning, bold=True))
        items.append(
            (1, kept.add(f" (cores do not apply to {NAMES[feed.tree]})", dim) if feed.without_cpus else kept)
        )
    if feed.tree in GPU_TREES and feed.gpu is not None:
        items.append((1, Line().add(f"{_gpu_name(session, feed.gpu)} only (g)", ink(palette.warning))))
    if match:
        items.append((2, Line().add(match, accent)))
    if tree is not None and _has_samples(session):
        items.append((3, Line().add(amount(tree), text)))
        if tree.truncated and tree.unit == "samples":
            share = 100 * tree.truncated / max(float(tree.total_weight[0]), 1.0)
            what = "stacks cut short" if width >= 130 else "cut short"
            items.append((4, Line().add(f"{tree.truncated:,} {what} ({share:.1f} %)", ink(palette.warning))))
        elif tree.truncated:
            cut = f"{duration_text(tree.truncated)} below stacks cut short"
            items.append((4, Line().add(cut, ink(palette.warning))))
    if feed.by_range and feed.tree == "gpu":
        items.append((5, Line().add("by NVTX range (b)", dim)))
    if tree is not None and tree.bottom_up:
        items.append((2, Line().add("bottom up (u)", ink(palette.warning))))
    if feed.by_thread:
        items.append((5, Line().add("by thread", dim)))
    tabs = _tabs(session, palette, width - 2 - sum(2 + item.cells for place, item in items if place <= 2))
    if session.hidden_rows:
        count = f"{session.hidden_rows:,}"
        left = width - 4 - tabs.cells - sum(item.cells + 2 for _, item in items)
        texts = (
            f"{count} internal frames hidden, x shows them",
            f"{count} internal frames: x",
            f"{count} internals: x",
        )
        said = next((text for text in texts if len(text) <= left), texts[-1])
        items.append((5, Line().add(said, dim)))
    elif session.internals:
        items.append((5, Line().add("internal frames shown (x)", dim)))
    line = Line().add("▌" if focused else " ", accent)
    line.extend(tabs)
    for item in pack_by_priority(items, max(width - 4 - tabs.cells, 0)):
        line.add("  ").extend(item)
    return line


def _tabs(session: Session, palette: Palette, room: int) -> Line:
    """The four trees, the one that is shown lit, in the longest form that fits."""
    for forms in TABS:
        line = Line()
        for kind, title in forms:
            shown = kind == session.feed.tree
            known = ink(palette.text if _available(session, kind) else palette.dim)
            lit = ink(palette.accent, bold=True) if shown else known
            line.add(" " * (2 if forms is TABS[0] else 1) if line.cells else "").add(title, lit)
        if line.cells <= room:
            break
    return line


def _available(session: Session, kind: str) -> bool:
    """Whether a tree has, or may get, something to show."""
    if kind in GPU_TREES:
        return session.gpu_time_available
    if kind == "offcpu":
        waits = session.model.source("offcpu")
        return (waits is not None and waits.state in ("ok", "degraded")) or session.has_waits
    cpu = session.model.source("cpu")
    return cpu is None or cpu.state not in ("failed", "off") or cpu.samples > 0


def _gpu_name(session: Session, uuid: str) -> str:
    known = (f"GPU {gpu.index}" for gpu in session.model.gpus if gpu.uuid == uuid)
    return next(known, clean(uuid, 20))


def amount(tree: Tree) -> str:
    """The whole weight of a tree: "3,120 samples", "1.3 s of GPU time" or "2.1 s of waiting"."""
    total = float(tree.total_weight[0])
    return (
        f"{round(total):,} samples"
        if tree.unit == "samples"
        else f"{duration_text(round(total))} {_AMOUNTS.get(tree.tree, '')}".rstrip()
    )


def footer_line(palette: Palette, width: int, extra: Sequence[tuple[int, str, str]] = ()) -> Line:
    """The keys that matter, as many as fit."""
    items = []
    gap = 3 if width >= ROOMY_KEYS else 2
    for priority, key, meaning in (*extra, *KEYS):
        items.append((priority, Line().add(key, ink(palette.accent)).add(" " + meaning, ink(palette.dim))))
    line = Line().add(" ")
    for item in pack_by_priority(items, width - 2, gap=gap):
        line.add(" " * gap if line.cells > 1 else "").extend(item)
    return line


def too_small_lines(width: int, height: int, needs: str, palette: Palette) -> list[Line]:
    """In the middle of a window of no use: that it is too small, and the size that would be of use."""
    texts = [[f"window too small (needs {needs})"], ["window too small", f"(needs {needs})"]]
    texts += [["too small", needs], ["too small"], [needs]]
    fitting = (rows for rows in texts if max(map(len, rows)) <= width and len(rows) <= height)
    rows = next(fitting, [needs[:width]])
    lines = [Line() for _ in range((height - len(rows)) // 2)]
    for row in rows:
        lines.append(Line().add(" " * ((width - len(row)) // 2)).add(row, ink(palette.warning)))
    return lines


def link_text(session: Session) -> str:
    """What is wrong with the connection, for the header; empty when nothing is."""
    state = session.link.state
    if state.state == "gone":
        return "sampler gone, reconnecting…" if session.link.was_open else "not connected, trying again…"
    if state.state == "failed":
        return "cannot connect" if session.transport.live else "cannot be read"
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
        said = [(f"{doing} {clean(session.transport.label, 80)}…", dim)]
        return [*said, (state.message, text), (state.hint, text)] if state.message else said
    if session.feed.tree in GPU_TREES:
        return _gpu_message(session, palette)
    if session.feed.tree == "offcpu":
        return _wait_message(session, palette)
    cpu = model.source("cpu")
    if cpu is not None and cpu.state in ("failed", "off") and not _has_samples(session):
        said = [
            ("No CPU stacks", ink(palette.warning, bold=True)),
            (cpu.reason or cpu.state, text),
            (cpu.hint, text),
        ]
        if model.hello.sudo_line and model.live and model.hello.sudo_line not in cpu.reason + cpu.hint:
            said += [("With CPU stacks of all processes:", dim)]
            said += [("    " + clean(model.hello.sudo_line, 400), ink(palette.accent, bold=True))]
        return said
    if cpu is not None and cpu.state == "starting" and not _has_samples(session):
        return [("CPU stacks are being set up…", dim), (cpu.reason, dim)]
    if session.failure is not None:
        return [(session.failure.message, error), (session.failure.hint, text)]
    if session.tree is None:
        return [("waiting for the first samples…", dim)]
    return [] if _has_samples(session) else [(_nothing(session, "CPU samples"), dim)]


def _gpu_message(session: Session, palette: Palette) -> list[Paragraph]:
    """What stands in place of the tree of GPU time."""
    if session.tree is not None and _has_samples(session):
        return []
    text, dim = ink(palette.text), ink(palette.dim)
    model, source = session.model, session.model.source("gpu")
    if session.gpu_time_available:
        if session.failure is not None:
            return [(session.failure.message, ink(palette.error)), (session.failure.hint, text)]
        if session.tree is None:
            return [(f"waiting for {NAMES[session.feed.tree]}…", dim)]
        what = "GPU work" if session.feed.tree == "gpu" else "idle time of a GPU that is observed"
        return [(_nothing(session, what), dim), (source.reason if source else "", dim)]
    command = ink(palette.accent, bold=True)
    said = [("No GPU time", ink(palette.warning, bold=True))]
    if not model.live:
        said += [("This recording holds no work of a GPU.", text), ("Recorded with it:", dim)]
        return [*said, ("    " + RECORD_LINE, command), ("or, of a workload started with:", dim),
                ("    " + RUN_LINE, command)]  # fmt: skip
    reason = source.reason or f"its source is {source.state}" if source else "this sampler does not record it"
    said.append((clean(reason, 500), text))
    nvml = model.source("nvml")
    if nvml is not None and nvml.state == "off" and not model.gpus:
        said.append(("There is no NVIDIA GPU here.", text))
    if source is not None and source.state not in ("off", "starting"):
        said.append((clean(source.hint, 500), text))
    said += [("GPU time is recorded of workloads that are started with:", dim), ("    " + RUN_LINE, command)]
    return said


def _wait_message(session: Session, palette: Palette) -> list[Paragraph]:
    """What stands in place of the tree of off-CPU time."""
    if session.tree is not None and _has_samples(session):
        return []
    text, dim, model = ink(palette.text), ink(palette.dim), session.model
    source = model.source("offcpu")
    if session.failure is None:
        if session.tree is None:
            return [("waiting for off-CPU time…", dim)]
        return [(_nothing(session, "waits"), dim), (source.reason if source else "", dim)]
    said = [("No off-CPU time", ink(palette.warning, bold=True))]
    if not model.live:
        said.append(("This recording holds no waits of threads.", text))
    elif source is not None and source.reason:
        said.append((clean(source.reason, 500), text))
    hint = clean(session.failure.hint, 500)
    said.append((hint, text))
    if model.hello is not None and model.hello.sudo_line and model.live and model.hello.sudo_line not in hint:
        said.append(("    " + clean(model.hello.sudo_line, 400), ink(palette.accent, bold=True)))
    return said


def _nothing(session: Session, what: str) -> str:
    """That there is none of `what`, where, and under which filter."""
    feed = session.feed
    where = "in this range" if feed.pinned else "yet" if session.file_span is None else "in this recording"
    said = f"No {what} {where}"
    if feed.filter:
        said += f" that match the filter {clean(feed.filter.text, 60)} (f changes it)"
    if feed.tree in GPU_TREES and feed.gpu is not None:
        said += f", on {_gpu_name(session, feed.gpu)} (g shows all)"
    return f"{said}."


def _has_samples(session: Session) -> bool:
    tree = session.tree
    return tree is not None and len(tree.total_weight) > 0 and float(tree.total_weight[0]) > 0
