"""One source on the screen: its model, its link, and the tree that was last answered. A live node or an
opened recording."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import Failure, Tree
from gpuprof.snapshots.simplify import without_internals
from gpuprof.snapshots.work_frames import Rates
from gpuprof.tui.link import FETCH_IDS_FROM, Link, LinkState
from gpuprof.tui.model import Model
from gpuprof.tui.rate_feed import IDS_FROM, RateFeed
from gpuprof.tui.transports import Transport
from gpuprof.tui.tree_feed import TreeFeed


class Session:
    """Everything about one source, and nothing about widgets: the screen looks at it at its own pace."""

    def __init__(self, transport: Transport, on_news: Callable[[], None] = lambda: None) -> None:
        """`on_news` is called when something came that should not wait for the next regular look."""
        self.transport = transport
        self.model = Model()
        self.feed = TreeFeed()
        self.rates = RateFeed(self.model.store)
        self.link = Link(transport, self.model, self._on_answer, self._on_state)
        self.tree: Tree | None = None  # as it is shown
        self.internals = False  # whether internal rows are shown
        self.hidden_rows = 0  # how many are not
        self.has_gpu_time = False  # there was an answer with some
        self.has_waits = False  # the same of off-CPU time
        self._answer: Tree | None = None
        self.failure: Failure | None = None
        self.tree_changed = False
        self.link_changed = True
        self.damage_was_told = False
        self._on_news = on_news
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect, in the running loop."""
        if self._task is None:
            self._task = asyncio.create_task(self.link.run(), name=f"link {self.transport.label}")

    async def stop(self) -> None:
        """Close the link and end its task."""
        await self.link.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def crashed(self) -> BaseException | None:
        """The exception that ended the link's task, which is a bug; None while all is well."""
        task = self._task
        if task is None or not task.done() or task.cancelled():
            return None
        return task.exception()

    @property
    def file_span(self) -> tuple[int, int] | None:
        """Extent of an opened file that has been read; None for a live node."""
        span = self.transport.span
        return span if span is not None and self.model.hello is not None and span[0] < span[1] else None

    def show_tree(self, kind: str) -> None:
        """Ask for another tree of the same range."""
        if kind != self.feed.tree:
            self.feed.set(tree=kind)
            self._show(None)

    def show_internals(self, shown: bool) -> None:
        """Show or hide the internal rows of the tree: it is asked for anew, and what there is of it is shown
        until that comes."""
        self.internals = shown
        self.feed.set(internals=shown)
        self._show(self._answer)

    @property
    def gpu_time_available(self) -> bool:
        """Whether there is, or may any moment be, GPU time to show."""
        source = self.model.source("gpu")
        recorded = source is not None and (source.state in ("ok", "degraded") or source.samples > 0)
        return recorded or self.has_gpu_time or self.model.store.has("gpu_kernel_busy_percent")

    def _show(self, answer: Tree | None) -> None:
        self._answer = self.tree = answer
        self.hidden_rows = 0
        self.failure = None
        if answer is not None and (not self.internals or answer.hidden):
            try:
                simplified = without_internals(answer)
            except FrameError:
                pass  # whoever draws the tree says what is wrong with it
            else:
                self.tree, self.hidden_rows = simplified.tree, simplified.hidden
        self.tree_changed = True

    async def ask(self) -> None:
        """Send the query that is due, if one is."""
        if self.link.state.state != "open" or self.model.hello is None:
            return
        query = self.feed.due(time.monotonic_ns(), self.model.now_ns, self.file_span)
        if query is not None and not await self.link.send(query):
            self.feed.restart()
        if self.gpu_time_available:
            await self._ask_rates()

    async def _ask_rates(self) -> None:
        now_ns, pinned = self.model.now_ns, self.feed.pinned
        question = self.rates.due(time.monotonic_ns(), now_ns, self.file_span, pinned)
        if question is not None and not await self.link.send(question):
            self.rates.restart()

    def _on_answer(self, answer: Tree | Rates | Failure) -> None:
        if isinstance(answer, Rates) or IDS_FROM <= answer.id < FETCH_IDS_FROM:
            assert not isinstance(answer, Tree)
            self.rates.accept(answer)
            self._on_news()
            return
        if not self.feed.accept(answer.id):
            return
        if isinstance(answer, Tree):
            self.has_gpu_time |= answer.tree == "gpu" and bool(answer.total_weight.any())
            self.has_waits |= answer.tree == "offcpu" and bool(answer.total_weight.any())
            self._show(answer)
        else:
            self.failure = answer
            self.tree_changed = True
        self._on_news()

    def _on_state(self, state: LinkState) -> None:
        if state.state == "open":
            self.feed.restart()
            self.rates.restart()
            if self.transport.span is not None:
                self.model.newest_ns = self.transport.span[1]
        self.link_changed = True
        self._on_news()
