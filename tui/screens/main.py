"""The main screen: has the parts show what changed in the session, at the pace of the terminal, and answers
the keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from gpuprof.snapshots.bottom_up import TREES as BOTTOM_UP_TREES
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.tui.model import Change
from gpuprof.tui.rate_choice import choice_of
from gpuprof.tui.rate_feed import label
from gpuprof.tui.screens import placing
from gpuprof.tui.screens.feeding import Feeding
from gpuprof.tui.screens.placing import Placing
from gpuprof.tui.screens.texts import Texts
from gpuprof.tui.screens.tree_view import TreeView
from gpuprof.tui.session import Session
from gpuprof.tui.tree_feed import Filter, parse_filter
from gpuprof.tui.widgets.chart_stack import ChartStack
from gpuprof.tui.widgets.flame_tree import FlameTree
from gpuprof.tui.widgets.header import Header
from gpuprof.tui.widgets.icicle import Icicle
from gpuprof.tui.widgets.process_table import ProcessTable
from gpuprof.tui.widgets.prompt import FILTER, SEARCH, Prompt
from gpuprof.tui.widgets.styled import Lines, palette_for

if TYPE_CHECKING:
    from gpuprof.tui.app import GpuprofApp


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
        Binding("u", "bottom_up", "bottom up", show=False),
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
        self.placing = Placing()
        self._header_height = 2

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
        self.table = self.query_one(ProcessTable)
        self.prompt = self.query_one(Prompt)
        self.prompt.on_done = self._prompt_done
        self.charts.on_pin = self._focus_tree  # what comes next is reading the tree
        self.tree_view = TreeView(self.flame, self.query_one(Icicle))
        self.texts = Texts(self)
        self.lower = self.query_one("#lower")
        self.feeding = Feeding(self.header, self.charts, self.table)
        self.show_session(self.session)

    # ---------------------------------------- refreshing

    def show_session(self, session: Session) -> None:
        """Look at another source."""
        self.session = session
        self.feeding.begin(session)
        self.tree_view.begin(session)
        self.update_all(Change.NODE | Change.STATUS | Change.READINGS | Change.PROCESSES)

    def update_all(self, changes: Change) -> None:
        """Bring the parts up to date with what changed in the session; called a few times a second."""
        session = self.session
        self.feeding.show_facts(session, changes)
        rows = self.size.height
        self._arrange(self.header.update(placing.most_header_rows(rows), placing.most_notice_rows(rows)))
        self.feeding.show_readings(session, changes)
        for refusal in self.feeding.show_rates(session):
            self.gpuprof.tell(refusal)
        self.feeding.show_processes(session, self.gpuprof.attaching.refused)
        if session.tree_changed or session.link_changed or Change.STATUS in changes:
            self.tree_view.show(session, palette_for(self))
        self._update_lines()

    def _update_lines(self) -> None:
        if self.texts.show_summary(self.session):  # charts make room for it
            self._arrange(self._header_height)
        self.texts.show_around_tree(self.session, self.flame, focused=self.flame_view.has_focus)
        self.texts.show_keys(self.session, lies_over_another=len(self.gpuprof.sessions) > 1)

    @property
    def gpuprof(self) -> GpuprofApp:
        return cast("GpuprofApp", self.app)

    @property
    def flame_view(self) -> FlameTree | Icicle:
        """The widget that shows the tree now."""
        return self.tree_view.widget

    # ---------------------------------------- placing

    def _arrange(self, header_rows: int) -> None:
        """Share the height between charts and tree, and decide whether the process table stands beside the
        tree."""
        height, width = self.size.height, self.size.width
        if not height:
            return
        self._header_height = header_rows
        places = self.placing.places(width, height, header_rows + self.texts.summary_rows)
        placing.set_height(self.header, header_rows)
        placing.set_height(self.charts, places.chart_rows)
        self.table.styles.width = places.table_width
        self.lower.set_class(places.beside, "-side")
        self.lower.set_class(places.alone, "-table")
        self.texts["legend"].display = places.has_legend

    def on_resize(self, event: events.Resize) -> None:
        if hasattr(self, "header"):
            if self.size.height < placing.TINY_ROWS and self.placing.table == "alone":
                self.placing.table = "none"  # what little room there is belongs to the tree
            self._show_too_small()
            self.update_all(Change.NONE)

    def _show_too_small(self) -> None:
        width, height = self.size
        small = width < placing.LEAST_COLUMNS or height < placing.LEAST_ROWS
        self.set_class(small, "-small")
        if small:
            self.texts.show_too_small()

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
        self.tree_view.moved()
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
        if self.placing.table == "alone":
            self.placing.table = "none"
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

    def action_bottom_up(self) -> None:
        """Kernels, or the functions that ran, first, with their callers below; and back."""
        feed = self.session.feed
        if feed.tree not in BOTTOM_UP_TREES:
            self.gpuprof.tell("CPU samples and GPU time can be read bottom up.", "Keys 1 and 2 show them.")
            return
        self._bring_tree()
        feed.set(bottom_up=not feed.bottom_up)
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
        self.placing.next_table(self.size.width)
        self._arrange(self._header_height)
        self.set_focus(self.flame_view if self.placing.table == "none" else self.table, scroll_visible=False)

    def action_notes(self) -> None:
        """The summary and the notices in full."""
        from gpuprof.tui.screens.notes import NotesScreen

        self.app.push_screen(NotesScreen(self.session))

    def action_icicle(self) -> None:
        """Tree or icicle."""
        self.tree_view.turn()
        self._bring_tree()
        self.tree_view.display()
        self._focus_tree()

    def action_share(self, step: int) -> None:
        self.placing.give_charts(step)
        self._arrange(self._header_height)

    def action_match(self, step: int) -> None:
        self.flame.action_match(step)

    def action_tree_tab(self, tree: str) -> None:
        """Another tree of the same range; where it cannot be had, the place of the tree says why."""
        self._bring_tree()
        self.session.show_tree(tree)
        self.flame.show_kind(tree)
        self.tree_view.show(self.session, palette_for(self))
        self._asked_anew()

    def action_internals(self) -> None:
        """Show or hide internal frames."""
        self._bring_tree()
        self.session.show_internals(not self.session.internals)
        self.tree_view.show(self.session, palette_for(self))
        self._update_lines()
        self._asked_anew()
