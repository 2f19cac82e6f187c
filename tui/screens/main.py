"""The main screen: places the parts, feeds them from the session at the pace of the terminal, and answers the
keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.names import clean
from gpuprof.tui import attach_marks
from gpuprof.tui.attach_marks import merged
from gpuprof.tui.model import Change
from gpuprof.tui.process_rows import process_rows
from gpuprof.tui.rate_choice import choice_of
from gpuprof.tui.rate_feed import label
from gpuprof.tui.session import Session
from gpuprof.tui.tree_feed import Filter, parse_filter
from gpuprof.tui.widgets import status_bar
from gpuprof.tui.widgets.chart_stack import ChartStack
from gpuprof.tui.widgets.flame_tree import FlameTree
from gpuprof.tui.widgets.header import Header
from gpuprof.tui.widgets.icicle import Icicle
from gpuprof.tui.widgets.process_table import ProcessTable
from gpuprof.tui.widgets.prompt import FILTER, SEARCH, Prompt
from gpuprof.tui.widgets.styled import Line, Lines, palette_for
from gpuprof.tui.widgets.summary import rows_for_summary, summary_lines

if TYPE_CHECKING:
    from gpuprof.tui.app import GpuprofApp

SIDE_BY_SIDE_COLUMNS = 130
LEAST_SIDE_COLUMNS = 110  # below, the table stands beside the tree not even when asked for
LEAST_COLUMNS, LEAST_ROWS = 40, 10  # below, nothing of use can be shown
TINY_ROWS = 14
NOTICE_ROWS_SMALL = 2
LEAST_TREE_ROWS = 9
LEAST_CHART_ROWS = 5


class MainScreen(Screen[None]):
    """One session on the screen."""

    AUTO_FOCUS = "#tree"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "ask('search')", "search", show=False),
        Binding("f", "ask('filter')", "filter", show=False),
        Binding("x", "internals", "internal frames", show=False),
        Binding("v", "select", "select a range", show=False),
        Binding("escape", "let_go", "let go", show=False),
        Binding("b", "by_range", "by NVTX range", show=False),
        Binding("r", "rate", "work rate", show=False),
        Binding("t", "by_thread", "by thread", show=False),
        Binding("space", "pause", "pause", show=False, priority=False),
        Binding("i", "icicle", "icicle", show=False),
        Binding("p", "processes", "processes", show=False),
        Binding("m", "notes", "notes", show=False),
        Binding("left_square_bracket", "share(-1)", "less charts", show=False),
        Binding("right_square_bracket", "share(1)", "more charts", show=False),
        Binding("n", "match(1)", "next match", show=False),
        Binding("N", "match(-1)", "previous match", show=False),
        Binding("1", "tree_tab('cpu')", "CPU", show=False),
        Binding("2", "tree_tab('gpu')", "GPU time", show=False),
        Binding("3", "tree_tab('idle')", "GPU idle", show=False),
        Binding("4", "tree_tab('offcpu')", "off-CPU", show=False),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._chart_share = 0.5
        self._icicle = False
        self._table = "auto"  # auto, beside, alone, none
        self._last_process_ns = -(10**18)
        self._header_height = 2
        self._summary_rows = 0
        self._summary_key: tuple[Any, ...] = ()

    def compose(self) -> ComposeResult:
        yield Header(self.session.model, id="header")
        yield ChartStack(id="charts")
        yield Lines(id="summary")
        with Horizontal(id="lower"):
            with Vertical(id="tree-pane"):
                yield Lines(id="tree-title")
                yield Lines(id="breadcrumb")
                flame = FlameTree(id="tree")
                yield flame
                yield Icicle(flame, id="icicle")
                yield Lines(id="details")
                yield Lines(id="legend")
            yield ProcessTable(id="table")
        yield Prompt(id="prompt")
        yield Lines(id="footer")
        yield Lines(id="too-small")

    def on_mount(self) -> None:
        self.header = self.query_one(Header)
        self.charts = self.query_one(ChartStack)
        self.flame = self.query_one(FlameTree)
        self.icicle = self.query_one(Icicle)
        self.table = self.query_one(ProcessTable)
        self.prompt = self.query_one(Prompt)
        self.prompt.on_done = self._prompt_done
        self.charts.on_pin = self._focus_tree  # what comes next is reading the tree
        # Held, since a query finds nothing any more while the screen is being taken down.
        self.texts = {widget.id: widget for widget in self.query(Lines)}
        self.lower = self.query_one("#lower")
        self.show_session(self.session)

    # ---------------------------------------- refreshing

    def show_session(self, session: Session) -> None:
        """Look at another source."""
        self.session = session
        model = session.model
        self.header.model = model
        self.header.label = session.transport.label if not session.transport.live else ""
        self.charts.clear_range()
        self.charts.set_store(model.store)
        self.charts.set_rates(session.rates.labels)
        self.charts.live = self.table.live = model.live
        self.flame.reset_view()
        self.flame.show_kind(session.feed.tree)
        session.tree_changed = session.link_changed = True
        self._last_process_ns = -(10**18)
        self.update_all(Change.NODE | Change.STATUS | Change.READINGS | Change.PROCESSES)

    def update_all(self, changes: Change) -> None:
        """Bring the parts up to date with what changed in the session; called a few times a second."""
        session = self.session
        model = session.model
        if Change.NODE in changes:
            self.charts.set_gpus(model.gpus)
            session.feed.show_gpu(self.charts.selected_gpu)
            session.rates.set_gpus(model.gpus)
            self.charts.set_clock(0, model.wall_ns(0))
        if Change.PROCESSES in changes:
            self.charts.set_processes({pid: process.name for pid, process in model.processes.items()})
        self.header.link_text = status_bar.link_text(session)
        self._arrange(self.header.update(self._header_rows(), self._notice_rows()))
        if model.hello is not None and (model.live or Change.READINGS in changes or Change.NODE in changes):
            self.charts.now_ns = model.now_ns  # draws the charts
            if not model.live:
                self.charts.show_all()
                self.charts.live = False
        self._update_rates()
        if model.now_ns - self._last_process_ns >= 10**9 or not model.live:
            self._last_process_ns = model.now_ns
            reasons = merged(attach_marks.reasons(model.source("gpu")), self.gpuprof.attaching.refused)
            self.table.set_rows(
                process_rows(
                    model.store, model.processes, model.gpus, model.now_ns, live=model.live, reasons=reasons
                )
            )
        if session.tree_changed or session.link_changed or Change.STATUS in changes:
            self._update_tree()
        self._update_lines()

    def _update_rates(self) -> None:
        rates, scale = self.session.rates, self.charts.view.scale
        if self.session.model.hello is not None:
            rates.view = (scale.start_ns, scale.end_ns)
        if rates.changed:
            rates.changed = False
            self.charts.set_rates(rates.labels)
        if rates.drew:
            rates.drew = False
            self.charts.refresh_data()
        while rates.refusals:
            choice, reason = rates.refusals.pop()
            self.gpuprof.tell(f"{label(choice)} cannot be counted: {reason}.")

    def _update_tree(self) -> None:
        session = self.session
        message = status_bar.tree_message(session, palette_for(self))
        if message:
            self.flame.set_message(message)
        elif session.tree is not None and (session.tree_changed or self.flame.rows is None):
            self.flame.set_tree(session.tree)
        session.tree_changed = session.link_changed = False
        if self._icicle:
            self._show_tree_or_icicle()

    def _update_lines(self) -> None:
        session, palette, width = self.session, palette_for(self), self.size.width
        rows = self.flame.rows
        match = ""
        if self.flame.needle and rows is not None:
            match = f"/{clean(self.flame.needle, 40)}: {100 * rows.match_fraction:.1f} % of all"
            if rows.matches is not None and not rows.matches.any():
                match = f"/{clean(self.flame.needle, 40)}: not here"
        pane = self.flame.parent
        pane_width = pane.size.width if isinstance(pane, Vertical) else width
        self._update_summary()
        title = status_bar.tree_title(session, palette, pane_width, match, self.flame_view.has_focus)
        self._line("tree-title", title)
        height = self.size.height
        details = self.flame.details_lines(pane_width, 1 if height < 24 else 2 if height < 34 else 4)
        widget = self.texts["details"]
        widget.display = self.size.height >= TINY_ROWS
        self._set_height(widget, len(details))
        widget.show(details)
        self._line("legend", self.flame.legend_line(pane_width))
        crumb = self.flame.breadcrumb_line(pane_width)
        breadcrumb = self.texts["breadcrumb"]
        breadcrumb.display = crumb.cells > 0
        breadcrumb.show([crumb])
        extra = (
            (1, "D", "live" if not self.session.model.live and len(self.gpuprof.sessions) > 1 else "demo"),
        )
        wanted = not self.session.model.gpus or len(self.gpuprof.sessions) > 1
        self._line("footer", status_bar.footer_line(palette, width, extra if wanted else ()))

    def _update_summary(self) -> None:
        """The main answer, in all the lines that it needs; charts make room for it."""
        session, size = self.session, self.size
        lines = summary_lines(session, palette_for(self), size.width, rows_for_summary(size.height))
        shown = self.texts["summary"]
        shown.display = bool(lines)
        # While the question stays the same it keeps its rows, so that a live screen does not jump.
        key = (session, session.feed.tree, session.feed.pinned, session.feed.gpu, size)
        rows = max(len(lines), self._summary_rows) if lines and key == self._summary_key else len(lines)
        if rows != self._summary_rows:
            self._summary_rows = rows
            self._arrange(self._header_height)
        self._summary_key = key if lines else ()
        self._set_height(shown, max(1, rows))
        shown.show(lines)

    def _line(self, name: str, line: Line) -> None:
        self.texts[name].show([line])

    @property
    def gpuprof(self) -> GpuprofApp:
        return cast("GpuprofApp", self.app)

    # ---------------------------------------- placing

    def _header_rows(self) -> int:
        return max(2, min(9, self.size.height // 4))

    def _notice_rows(self) -> int:
        return NOTICE_ROWS_SMALL if self.size.height < 30 else 9

    def _arrange(self, header_rows: int) -> None:
        """Share the height between charts and tree, and decide whether the process table stands beside the
        tree."""
        height, width = self.size.height, self.size.width
        if not height:
            return
        self._header_height = header_rows
        left = height - header_rows - self._summary_rows - 1  # the footer
        least = LEAST_CHART_ROWS if height >= TINY_ROWS else 2
        charts = max(least, min(round(left * self._chart_share), left - LEAST_TREE_ROWS))
        self._set_height(self.header, header_rows)
        self._set_height(self.charts, max(1, charts))
        beside = (self._table == "beside" and width >= LEAST_SIDE_COLUMNS) or (
            self._table == "auto" and width >= SIDE_BY_SIDE_COLUMNS
        )
        self.table.styles.width = "1fr" if self._table == "alone" else max(50, min(84, width * 3 // 8))
        self.lower.set_class(beside, "-side")
        self.lower.set_class(self._table == "alone", "-table")
        legend = self.texts["legend"]
        legend.display = left - charts >= LEAST_TREE_ROWS + 1

    @staticmethod
    def _set_height(widget: Any, rows: int) -> None:
        height = widget.styles.height
        if height is None or height.value != rows:
            widget.styles.height = rows

    def on_resize(self, event: events.Resize) -> None:
        if hasattr(self, "header"):
            if self.size.height < TINY_ROWS and self._table == "alone":
                self._table = "none"  # what little room there is belongs to the tree
            self._show_too_small()
            self.update_all(Change.NONE)

    def _show_too_small(self) -> None:
        """In place of fragments, in a window of no use: the size that would be of use."""
        width, height = self.size
        small = width < LEAST_COLUMNS or height < LEAST_ROWS
        self.set_class(small, "-small")
        if small:
            lines = status_bar.too_small_lines(
                width, height, f"{LEAST_COLUMNS}x{LEAST_ROWS}", palette_for(self)
            )
            self.texts["too-small"].show(lines)

    def _on_timer_update(self) -> None:
        """Redraws wait until the terminal has taken the last one; what changes meanwhile is drawn once, as it
        is then."""
        driver = self.app._driver
        if getattr(driver, "ready", True):
            super()._on_timer_update()

    # ---------------------------------------- messages

    def on_chart_stack_range_selected(self, event: ChartStack.RangeSelected) -> None:
        self.session.feed.pin(event.start_ns, event.end_ns)
        self._asked_anew()

    def on_chart_stack_range_cleared(self, _event: ChartStack.RangeCleared) -> None:
        self.session.feed.unpin()
        self._asked_anew()

    def on_chart_stack_gpu_chosen(self, event: ChartStack.GpuChosen) -> None:
        self.session.feed.show_gpu(event.uuid)
        self._asked_anew()

    def _asked_anew(self) -> None:
        self.gpuprof.look_soon()
        self._update_lines()

    def on_flame_tree_moved(self) -> None:
        if self.icicle.display:
            self.icicle.follow()
        self._update_lines()

    def on_descendant_focus(self) -> None:
        if hasattr(self, "header"):
            self._update_lines()

    def on_process_table_chosen(self, event: ProcessTable.Chosen) -> None:
        self._set_filter(Filter(f"pid {event.pid}", pids=(event.pid,)))
        self._bring_tree()
        self._focus_tree()

    def on_process_table_attach_wanted(self, event: ProcessTable.AttachWanted) -> None:
        self.gpuprof.attaching.ask(event.row, self.session)

    def _focus_tree(self) -> None:
        """Give the tree the keys from now on, unless something is being typed."""
        if not self.prompt.display:
            self.set_focus(self.flame_view, scroll_visible=False)

    def _set_filter(self, wanted: Filter) -> None:
        self.session.feed.set(filter=wanted)
        self._asked_anew()

    def on_prompt_typed(self, event: Prompt.Typed) -> None:
        # It comes a moment after the key: by then the prompt may have closed, or more been typed.
        if event.mode == SEARCH and self.prompt.display and event.text == self.prompt.value:
            self.flame.search(event.text)

    def _prompt_done(self, mode: str, text: str, accepted: bool) -> str:
        """Use what was typed; what is wrong with it, or nothing."""
        if mode == SEARCH:
            self.flame.search(text if accepted else "")
        elif accepted:
            names = {pid: process.name for pid, process in self.session.model.processes.items()}
            try:
                self._set_filter(parse_filter(text, names))
            except GpuprofError as error:
                return " · ".join(part.rstrip(".") for part in (error.message, error.hint) if part)
        self._focus_tree()
        return ""

    # ---------------------------------------- actions

    def _bring_tree(self) -> None:
        """A key about the tree shows it where the process table has its place."""
        if self._table == "alone":
            self._table = "none"
            self._arrange(self._header_height)
            self._focus_tree()

    def action_ask(self, mode: str) -> None:
        self._bring_tree()
        self.prompt.ask(mode, self.session.feed.filter.text if mode == FILTER else self.flame.needle)

    def action_select(self) -> None:
        if not self.charts.has_data:
            self.gpuprof.tell("There is nothing to select yet.")
            return
        self.set_focus(self.charts, scroll_visible=False)
        self.charts.action_select()

    def action_let_go(self) -> None:
        """Esc from outside: the range first, then the search, then the filter."""
        feed = self.session.feed
        if feed.pinned is not None:
            self.charts.clear_range()
            feed.unpin()
        elif self.flame.needle:
            self.flame.search("")
        elif feed.filter:
            feed.set(filter=Filter())
        self._asked_anew()

    def action_by_thread(self) -> None:
        self._bring_tree()
        self.session.feed.set(by_thread=not self.session.feed.by_thread)
        self._asked_anew()

    def action_by_range(self) -> None:
        """The tree of GPU time by NVTX range, and back."""
        if self.session.feed.tree != "gpu":
            self.gpuprof.tell("NVTX ranges are in the tree of GPU time.", "Key 2 shows it.")
            return
        self._bring_tree()
        self.session.feed.set(by_range=not self.session.feed.by_range)
        self._asked_anew()

    def action_rate(self) -> None:
        """Chart how often what the row under the cursor stands for is done, or no longer."""
        try:
            choice = choice_of(self.session.feed.tree, self.flame.rows, self.flame.node)
        except GpuprofError as error:
            self.gpuprof.tell(error.message, error.hint)
            return
        shown = self.session.rates.toggle(choice)
        if shown is None:
            self.gpuprof.tell("There are enough work rates.", "r on one of their rows takes it away.")
        else:
            self.gpuprof.tell(f"Work rate of {label(choice)}: {'charted' if shown else 'no longer charted'}.")
        self._asked_anew()

    def action_pause(self) -> None:
        feed = self.session.feed
        feed.paused = not feed.paused
        self._update_lines()

    def action_processes(self) -> None:
        wide = self.size.width >= SIDE_BY_SIDE_COLUMNS
        shown = (
            "beside" if self._table == "auto" and wide else "none" if self._table == "auto" else self._table
        )
        roomy = self.size.width >= LEAST_SIDE_COLUMNS
        order = ["none", "beside", "alone"] if roomy else ["none", "alone"]
        place = order.index(shown) if shown in order else 0
        self._table = order[(place + 1) % len(order)]
        self._arrange(self._header_height)
        self.set_focus(self.flame_view if self._table == "none" else self.table, scroll_visible=False)

    def action_notes(self) -> None:
        """The summary and the notices in full."""
        from gpuprof.tui.screens.notes import NotesScreen

        self.app.push_screen(NotesScreen(self.session))

    def action_icicle(self) -> None:
        """Tree or icicle; a message needs the tree's widget."""
        self._icicle = not self._icicle
        self._bring_tree()
        self._show_tree_or_icicle()
        self._focus_tree()

    def _show_tree_or_icicle(self) -> None:
        boxes = self._icicle and self.flame.rows is not None
        self.icicle.display, self.flame.display = boxes, not boxes
        if boxes:
            self.icicle.follow()

    @property
    def flame_view(self) -> FlameTree | Icicle:
        """The widget that shows the tree now."""
        return self.icicle if self.icicle.display else self.flame

    def action_share(self, step: int) -> None:
        self._chart_share = min(0.9, max(0.1, self._chart_share + 0.08 * step))
        self._arrange(self._header_height)

    def action_match(self, step: int) -> None:
        self.flame.action_match(step)

    def action_tree_tab(self, tree: str) -> None:
        """Another tree of the same range; where it cannot be had, the place of the tree says why."""
        self._bring_tree()
        self.session.show_tree(tree)
        self.flame.show_kind(tree)
        self._update_tree()
        self._asked_anew()

    def action_internals(self) -> None:
        """Show or hide internal frames."""
        self._bring_tree()
        self.session.show_internals(not self.session.internals)
        self._update_tree()
        self._update_lines()
        self._asked_anew()
