"""How one row of the flame tree, its details, the legend and the breadcrumb are drawn."""

from __future__ import annotations

import math

from rich.cells import cell_len
from rich.style import Style

from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.moved_text import moved_text
from gpuprof.snapshots.names import MAX_FULL_NAME, clean, fit, short_path
from gpuprof.tui.palette import Palette, binary_color, frame_color
from gpuprof.tui.timescale import duration_text
from gpuprof.tui.widgets.flame_rows import FlameRows
from gpuprof.tui.widgets.styled import Line, bar, ink, percent

NAME_CELLS = 64  # longer names are cut; the details line has the whole
_PERCENT_CELLS = 8
_SELF_CELLS = 9
_NARROW = 100
_TIME_CELLS = 10
_TIME_FROM = 60  # cells from which a tree of time has a column for it
_MAX_ANCESTORS = 2000
_LAST_KIND = max(int(kind) for kind in FrameKind)
_KERNELS = (FrameKind.GPU_KERNEL, FrameKind.GPU_COMM)  # their file is their full name
_CONTAINERS = (FrameKind.ROOT, FrameKind.PROCESS, FrameKind.THREAD)


def kind_of(rows: FlameRows, node: int) -> FrameKind:
    """The kind of a node; a number that this version does not know is UNKNOWN."""
    number = int(rows.tree.kind[node])
    return FrameKind(number) if 0 <= number <= _LAST_KIND else FrameKind.UNKNOWN


def weight_text(rows: FlameRows, weight: float) -> str:
    """A weight in the unit of the tree: "1,234 samples" or "1.3 s"."""
    if rows.tree.unit == "ns":
        return duration_text(max(0, int(weight)))
    count = round(weight)
    return f"{count:,} sample" + ("" if count == 1 else "s")


def _short_time(weight_ns: float) -> str:
    """A length of time in at most nine cells: "412 ms", "78.2 s", "3,204 s"."""
    seconds = weight_ns / 1e9
    if seconds < 60:
        return duration_text(max(0, int(weight_ns)))
    return (
        f"{seconds:.1f} s" if seconds < 600 else f"{seconds:,.0f} s" if seconds < 1e5 else f"{seconds:.1e} s"
    )


def name_of(rows: FlameRows, node: int) -> str:
    """The clean name of a node, whole."""
    return "all" if node == 0 else clean(rows.tree.strings[rows.tree.name[node]])


def place_of(rows: FlameRows, node: int) -> str:
    """Where a node's code is, short: "train.py:88", or the binary for native code; empty when not known."""
    tree = rows.tree
    kind = kind_of(rows, node)
    path = tree.strings[tree.file[node]] if tree.file[node] and kind not in _KERNELS else ""
    if path:
        line = int(tree.line[node])
        return clean(short_path(path), 60) + (f":{line}" if line else "")
    if kind in (FrameKind.NATIVE, FrameKind.JIT) and tree.binary[node]:
        return clean(tree.strings[tree.binary[node]], 60)
    return ""


def marked_estimate(share: str) -> str:
    """A share that was estimated, with a ~ in the last of the spaces before it: "  ~1.2 %"."""
    bare = share.lstrip()
    if len(bare) == len(share):  # "100.0 %"
        bare = bare.replace(".0", "")
    return ("~" + bare).rjust(len(share))


class RowPainter:
    """Draws rows of one FlameRows at one width."""

    def __init__(self, rows: FlameRows, palette: Palette, width: int, needle: str) -> None:
        self._rows = rows
        self._palette = palette
        self._width = width
        self._needle = needle.casefold()
        self._bar_cells = 8 if width < _NARROW else 16
        self._time_cells = _TIME_CELLS if rows.tree.unit == "ns" and width >= _TIME_FROM else 0

    def line(self, node: int) -> Line:
        """The row of `node`: percent, bar, guides, name, place, and its own share at the right edge."""
        rows, palette = self._rows, self._palette
        tree = rows.tree
        base = max(float(tree.total_weight[rows.root]), 1e-300)
        fraction = float(tree.total_weight[node]) / base
        own = 0.0 if tree.bottom_up else float(tree.self_weight[node]) / base
        kind = kind_of(rows, node)
        color = frame_color(kind, tree.strings[tree.binary[node]], palette)
        dim = ink(palette.dim)
        bar_color = palette.dim if kind in _CONTAINERS else color
        share = percent(fraction, _PERCENT_CELLS - 1)
        if tree.estimated[node]:
            share = marked_estimate(share)
        line = Line().add(share + " ", ink(palette.text))
        if self._time_cells:
            line.add(_short_time(float(tree.total_weight[node])).rjust(self._time_cells - 1) + " ", dim)
        line.add(bar(fraction, self._bar_cells) + " ", ink(bar_color))
        guides = self.guides(node)
        line.add(guides, ink(palette.rule))
        marker = ("▾ " if rows.expanded[node] else "▸ ") if rows.has_children[node] else "  "
        line.add(marker, dim)
        room = self._width - line.cells - _SELF_CELLS - 1
        self._add_name(line, node, kind, color, room)
        if own >= 0.0005 and kind is not FrameKind.OTHER:
            line.pad_to(self._width - _SELF_CELLS).add(
                percent(own, _SELF_CELLS - 1), ink(palette.text if own >= 0.05 else palette.dim)
            )
        return line

    def _add_name(self, line: Line, node: int, kind: FrameKind, color: str, room: int) -> None:
        rows, palette = self._rows, self._palette
        name = fit(name_of(rows, node), max(min(room, NAME_CELLS), 4))
        if node == 0:
            name = f"all  {weight_text(rows, float(rows.tree.total_weight[0]))}"
        style = ink(color, bold=kind in _CONTAINERS, italic=kind in (FrameKind.OTHER, FrameKind.UNKNOWN))
        start = line.cells
        if self._needle and rows.matches is not None and rows.matches[node]:
            self._add_highlighted(line, name, color)
        else:
            line.add(name, style)
        place = place_of(rows, node)
        left = room - (line.cells - start) - 3
        if place and left > 6:
            line.add(" (", ink(palette.dim)).add(place, ink(palette.dim), at_most=left).add(
                ")", ink(palette.dim)
            )

    def _add_highlighted(self, line: Line, name: str, color: str) -> None:
        marked = ink(
            self._palette.background if self._palette.background != "default" else "black",
            self._palette.accent,
        )
        at = name.casefold().find(self._needle)
        if at < 0 or len(name.casefold()) != len(name):
            line.add(name, ink(self._palette.accent, underline=True))
            return
        end = at + len(self._needle)
        line.add(name[:at], ink(color)).add(name[at:end], marked).add(name[end:], ink(color))

    def guides(self, node: int) -> str:
        """The lines that join a row to its siblings; deep ones are cut at the left so that the name stays in
        sight."""
        rows = self._rows
        parts: list[str] = []
        place = node
        for _ in range(_MAX_ANCESTORS):
            if place == rows.root:
                break
            parent = int(rows.parent[place])
            if rows.branches[parent]:
                if place == node:
                    parts.append("├ " if rows.has_next[place] else "└ ")
                else:
                    parts.append("│ " if rows.has_next[place] else "  ")
            place = parent
        text = "".join(reversed(parts))
        limit = max(8, self._width // 3)
        return text if len(text) <= limit else "⋯ " + text[-(limit - 2) :]

    def expander_cells(self, node: int) -> tuple[int, int]:
        """First and last column of the open/close marker of a row."""
        start = _PERCENT_CELLS + self._time_cells + self._bar_cells + 1 + len(self.guides(node))
        return start, start + 1


def details(rows: FlameRows, node: int, palette: Palette, width: int, max_lines: int) -> list[Line]:
    """Everything about one node: weights, whole name, kind, bytes of copies, file (of a kernel: its name in
    full) and binary; what is long goes on over further lines."""
    tree = rows.tree
    text, dim, bold = ink(palette.text), ink(palette.dim), ink(palette.text, bold=True)
    total, own = float(tree.total_weight[node]), float(tree.self_weight[node])
    whole = max(rows.total, 1e-300)
    line = Line().add(" ")
    about, error = ("~" if tree.estimated[node] else ""), float(tree.error[node])
    said = f"total {about}{weight_text(rows, total)} ({100 * total / whole:.1f} %)"
    if about and math.isfinite(error) and error >= 0:
        said += f" ± {weight_text(rows, error)}"
    line.add(said, text).add("  ")
    if not tree.bottom_up:
        line.add(f"self {weight_text(rows, own)} ({100 * own / whole:.1f} %)", text).add("  ")
    words: list[tuple[str, Style]] = [(name_of(rows, node), bold)]
    kind = kind_of(rows, node)
    if kind not in _CONTAINERS:
        words.append((kind.label, dim))
    moved = float(tree.bytes[node])
    if kind == FrameKind.GPU_COPY and math.isfinite(moved) and moved > 0:
        words.append((moved_text(moved, total), text))
    if tree.file[node] and kind in _KERNELS:
        words.append((clean(tree.strings[tree.file[node]], MAX_FULL_NAME), dim))
    elif tree.file[node]:
        number = int(tree.line[node])
        words.append((clean(tree.strings[tree.file[node]]) + (f":{number}" if number else ""), dim))
    if tree.binary[node]:
        words.append((clean(tree.strings[tree.binary[node]]), dim))
    lines = [line]
    for word, style in words:
        rest = word
        while rest:
            line = lines[-1]
            room = width - 1 - line.cells
            if len(lines) == max_lines:
                line.add(rest, style, at_most=max(room, 0))
                break
            if cell_len(rest) > room and line.cells > 3:
                lines.append(Line().add("   "))
                continue
            head = chop(rest, room)
            line.add(head, style)
            rest = rest[len(head) :]
        if lines[-1].cells + 2 < width:
            lines[-1].add("  ")
    return lines


def chop(text: str, cells: int) -> str:
    """The beginning of `text` that fits in `cells`, at least one character."""
    used = 0
    for place, character in enumerate(text):
        used += cell_len(character)
        if used > cells:
            return text[: max(place, 1)]
    return text


def legend(rows: FlameRows, palette: Palette, width: int) -> Line:
    """Binaries by own weight, each with its colour and share, as many as fit; of a tree of GPU time kernels
    and copies, then the binaries that launched them."""
    whole = max(float(rows.tree.total_weight[rows.root]), 1e-300)
    line = Line().add(" ")
    entries: list[tuple[str, str, float]] = []
    if rows.tree.tree == "gpu":
        works = (
            ("GPU kernels", FrameKind.GPU_KERNEL),
            ("communication", FrameKind.GPU_COMM),
            ("copies", FrameKind.GPU_COPY),
        )
        for title, work in works:
            weight = rows.weight_by_kind(work)
            if weight:
                entries.append((title, frame_color(work, "", palette), weight))
    elif rows.tree.unit == "ns":
        weight = rows.weight_by_kind(FrameKind.WAIT)
        if weight:
            entries.append(("waits", frame_color(FrameKind.WAIT, "", palette), weight))
    for name, weight in rows.weight_by_binary():
        color = palette.python if name == "python" else binary_color(name, palette)
        entries.append((name if rows.tree.tree != "gpu" else f"by {name}", color, weight))
    for name, color, weight in entries:
        item = Line().add("■ ", ink(color)).add(fit(clean(name), 24), ink(palette.text))
        item.add(f" {100 * weight / whole:.0f} %  ", ink(palette.dim))
        if line.cells + item.cells > width:
            break
        line.extend(item)
    return line


def breadcrumb(rows: FlameRows, palette: Palette, width: int) -> Line:
    """Names from the root to the zoom root, cut at the left when they do not fit."""
    names = [fit(name_of(rows, node), 30) for node in reversed([rows.root, *rows.ancestors(rows.root)[:40]])]
    while len(names) > 2 and sum(len(name) + 3 for name in names) > width - 24:
        del names[1]
        names[0] = "…"
    line = Line().add(" zoom: ", ink(palette.accent))
    line.add(" › ".join(names), ink(palette.text), at_most=max(8, width - 20))
    return line.add("  Esc out", ink(palette.dim))
