"""The process table: a scroll view of lines, sorted, with a cursor; Enter keeps the tree to the process, and
key a has its GPU work recorded."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpuprof.snapshots.names import clean
from gpuprof.tui.attach_marks import mark, note
from gpuprof.tui.process_rows import SORT_KEYS, ProcessRow, sort_rows
from gpuprof.tui.widgets.styled import ABSENT, Drawn, Line, ink, palette_for

# Title, sort key, cells, right-aligned; the name takes what is left.
_COLUMNS: tuple[tuple[str, str, int, bool], ...] = (
    ("GPU", "", 4, True),
    ("PID", "pid", 8, True),
    ("USER", "user", 9, False),
    ("NAME", "name", 0, False),
    ("SM %", "sm", 6, True),
    ("GPU MEM", "mem", 9, True),
    ("CPU %", "cpu", 7, True),
)
_RECORDING = ("REC", "", 3, False)  # only where something is known about it
_NAME_AT_LEAST = 8
_NAME_AT_MOST = 64


class ProcessTable(Drawn, ScrollView, can_focus=True):
    """Rows of processes; the cursor follows its process when the order changes."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "move(-10)", "page up", show=False),
        Binding("pagedown", "move(10)", "page down", show=False),
        Binding("home,g", "move(-100000)", "first", show=False),
        Binding("end,G", "move(100000)", "last", show=False),
        Binding("enter", "choose", "filter the tree to this process", show=False),
        Binding("s", "sort(1)", "sort by the next column", show=False),
        Binding("S,r", "reverse", "reverse the order", show=False),
        Binding("a", "attach", "record this process", show=False),
    ]

    class Chosen(Message):
        """A process was chosen by Enter or a double click."""

        def __init__(self, pid: int) -> None:
            super().__init__()
            self.pid = pid

    class AttachWanted(Message):
        """The GPU work of a process is to be recorded."""

        def __init__(self, row: ProcessRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.sort_key = "mem"
        self.reversed_order = False
        self._sorted_by_hand = False
        self._unsorted: list[ProcessRow] = []
        self._rows: list[ProcessRow] = []
        self._shows_recording = False
        self.live = True  # processes of a file cannot be attached to
        self._cursor = 0

    def set_rows(self, rows: list[ProcessRow]) -> None:
        """Show these rows; nothing is drawn when they are what is shown already."""
        if rows == self._unsorted:
            return
        self._unsorted = rows
        self._shows_recording = any(row.recording is not None or row.reason for row in rows)
        if not self._sorted_by_hand:
            self.sort_key = "mem" if any(row.gpu is not None for row in rows) else "cpu"
        self._sort()

    def _sort(self) -> None:
        selected = self._rows[self._cursor] if self._cursor < len(self._rows) else None
        self._rows = sort_rows(self._unsorted, self.sort_key, self.reversed_order)
        if selected is not None and self._cursor:
            same = [
                place
                for place, row in enumerate(self._rows)
                if (row.pid, row.gpu) == (selected.pid, selected.gpu)
            ]
            self._cursor = same[0] if same else self._cursor
        self._cursor = min(self._cursor, max(len(self._rows) - 1, 0))
        size = Size(self.size.width, len(self._rows) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        self.refresh()

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._rows) + 1)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            return self._titles(width).strip(width, self.base_style)
        palette = palette_for(self)
        place = y - 1 + round(self.scroll_y)
        if place >= len(self._rows):
            line = Line()
            if not self._rows and y == 1:
                line.add(" no process readings", ink(palette.dim))
            return line.strip(width, self.base_style)
        background = self.base_style
        if place == self._cursor and self.has_focus:
            background = ink(palette.text, palette.selection)
        return self._line(self._rows[place], width).strip(width, background)

    def _columns(self, width: int) -> list[tuple[str, str, int, bool]]:
        """Columns with their cells; user goes, then the GPU, when the name would get too little."""
        columns = [*_COLUMNS[:2], _RECORDING, *_COLUMNS[2:]] if self._shows_recording else list(_COLUMNS)
        for dropped in ("USER", "GPU", "SM %"):
            left = width - sum(cells + 1 for _, _, cells, _ in columns)
            if left >= _NAME_AT_LEAST:
                break
            columns = [column for column in columns if column[0] != dropped]
        left = max(4, width - sum(cells + 1 for _, _, cells, _ in columns))
        return [
            (title, key, cells or min(left, _NAME_AT_MOST), right) for title, key, cells, right in columns
        ]

    def _titles(self, width: int) -> Line:
        palette = palette_for(self)
        line = Line()
        for title, key, cells, right in self._columns(width):
            mark = ("▲" if self.reversed_order else "▼") if key == self.sort_key else ""
            text = mark + title if right else title + mark
            style = ink(palette.accent if mark else palette.dim, bold=self.has_focus)
            line.add((text.rjust(cells) if right else text.ljust(cells))[:cells] + " ", style)
        return line

    def _line(self, row: ProcessRow, width: int) -> Line:
        palette = palette_for(self)
        text, dim = ink(palette.text), ink(palette.dim)
        cells_of = {
            "GPU": str(row.gpu) if row.gpu is not None else ABSENT,
            "PID": str(row.pid),
            "REC": mark(row.recording, row.reason, live=self.live) or ABSENT,
            "USER": clean(row.user) if row.user is not None else ABSENT,
            "NAME": clean(row.name) if row.name is not None else ABSENT,
            "SM %": f"{row.sm_percent:.0f}" if row.sm_percent is not None else ABSENT,
            "GPU MEM": bytes_text(row.gpu_mem_bytes),
            "CPU %": f"{row.cpu_percent:.1f}" if row.cpu_percent is not None else ABSENT,
        }
        line = Line()
        for title, _, cells, right in self._columns(width):
            value = cells_of[title]
            style = text
            if value == ABSENT:
                style = dim
            elif title == "REC":
                style = ink({"●": palette.good, "!": palette.error}.get(value, palette.accent))
            part = Line().add(value, style, at_most=cells)
            why = (note(row.recording, row.reason) or row.budget) if title == "NAME" else ""
            if why and part.cells + 4 < cells:
                part.add("  " + clean(why), dim, at_most=cells - part.cells)
            if right:
                line.add(" " * (cells - part.cells)).extend(part)
            else:
                line.extend(part).add(" " * (cells - part.cells))
            line.add(" ")
        return line

    # ---------------------------------------- moving

    def action_move(self, step: int) -> None:
        before, self._cursor = self._cursor, min(max(self._cursor + step, 0), max(len(self._rows) - 1, 0))
        if before == self._cursor:
            return
        top, height = round(self.scroll_y), max(self.size.height - 1, 1)
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False)
        self.refresh()

    def action_choose(self) -> None:
        if self._cursor < len(self._rows):
            self.post_message(self.Chosen(self._rows[self._cursor].pid))

    def action_attach(self) -> None:
        if self._cursor < len(self._rows):
            self.post_message(self.AttachWanted(self._rows[self._cursor]))

    def action_sort(self, step: int) -> None:
        self.sort_key = SORT_KEYS[(SORT_KEYS.index(self.sort_key) + step) % len(SORT_KEYS)]
        self._sorted_by_hand, self.reversed_order = True, False
        self._sort()

    def action_reverse(self) -> None:
        self.reversed_order, self._sorted_by_hand = not self.reversed_order, True
        self._sort()

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            self._sort_by_column(event.x)
            return
        place = event.y - 1 + round(self.scroll_y)
        if 0 <= place < len(self._rows):
            self.action_move(place - self._cursor)
            if event.chain == 2:
                self.action_choose()

    def _sort_by_column(self, x: int) -> None:
        for _, key, cells, _ in self._columns(self.size.width):
            if x <= cells:
                if key == self.sort_key:
                    self.action_reverse()
                elif key:
                    self.sort_key, self.reversed_order, self._sorted_by_hand = key, False, True
                    self._sort()
                return
            x -= cells + 1

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()


def bytes_text(value: float | None) -> str:
    """Bytes in a short form: "812 MiB", "38.2 GiB"; a dash when not known."""
    if value is None:
        return ABSENT
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
