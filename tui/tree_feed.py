"""Which tree the screen wants now: the pinned range or the last seconds, under which filter; and which
answers are still good."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from gpuprof.snapshots.bottom_up import TREES as BOTTOM_UP_TREES
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import Query
from gpuprof.snapshots.names import clean

LIVE_WINDOW_NS = 30 * 10**9
LIVE_PERIOD_NS = 2 * 10**9
COMPLETE_NS = 8 * 10**9  # by then all that was seen in a range is in: a wait that lasts is written each 7 s
ANSWER_TIMEOUT_NS = 15 * 10**9
MAX_LISTED = 512
GPU_TREES = ("gpu", "idle")  # those that can be kept to one device


@dataclass(frozen=True, slots=True)
class Filter:
    """Processes, threads and cores to keep; an empty list keeps all. `text` is what the person typed, and
    `by_name` whether some of the pids were found by it."""

    text: str = ""
    pids: tuple[int, ...] = ()
    tids: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    by_name: bool = False

    def __bool__(self) -> bool:
        return bool(self.pids or self.tids or self.cpus)


def parse_filter(text: str, process_names: Mapping[int, str]) -> Filter:
    """Read "pid 4711", "tid 12", "cpu 0-3,8" (in any combination) or part of a process name.

    Raises GpuprofError, with what was not understood.
    """
    found: dict[str, list[int]] = {"pid": [], "tid": [], "cpu": []}
    names: list[str] = []
    words = text.replace("=", " ").replace(":", " ").split()
    while words:
        word = words.pop(0)
        kind = {"process": "pid", "thread": "tid", "core": "cpu"}.get(word.lower(), word.lower())
        if kind in found and words:
            found[kind] += _numbers(words.pop(0), kind)
        elif kind.rstrip("0123456789,-") in found and kind[3:]:
            found[kind[:3]] += _numbers(kind[3:], kind[:3])
        elif kind in found:
            raise GpuprofError(f"{kind} what?", _example(kind))
        elif word.isdigit():
            found["pid"].append(int(word))
        else:
            names.append(word)
    if names:
        wanted = " ".join(names).casefold()
        pids = [pid for pid, name in process_names.items() if wanted in name.casefold()]
        if not pids:
            raise GpuprofError(
                f"no process is called {clean(wanted, 40)}",
                "Filters are: pid N, tid N, cpu N, or part of a process name.",
            )
        found["pid"] += pids[-MAX_LISTED:]  # where there are too many, those that came last
    kept = {f"{kind}s": tuple(numbers) for kind, numbers in found.items()}
    return Filter(" ".join(text.split()), **kept, by_name=bool(names))


def _example(kind: str) -> str:
    return f"For example: {'cpu 0-3' if kind == 'cpu' else f'{kind} 4711'}"


def _numbers(text: str, kind: str) -> list[int]:
    result: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isascii() or not first.isdigit() or (dash and not (last.isascii() and last.isdigit())):
            raise GpuprofError(f"{clean(text, 40)} is not a {kind} number", _example(kind))
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high - low >= MAX_LISTED or high > 2**31:
            raise GpuprofError(f"{clean(text, 40)} is not a usable range of {kind} numbers")
        result += range(low, high + 1)
    return result


@dataclass(slots=True)
class TreeFeed:
    """Decides when to ask and what; the newest question wins, and an answer to an older one is dropped."""

    tree: str = "cpu"
    pinned: tuple[int, int] | None = None
    filter: Filter = Filter()
    by_thread: bool = False
    by_range: bool = False  # the tree of GPU time, by NVTX range
    bottom_up: bool = False  # the trees that can be: innermost frames first
    internals: bool = False  # with the rows of internal_rows.py
    paused: bool = False
    gpu: str | None = None  # UUID of the device that the charts show; None: all of them
    _live: tuple[int, int] | None = None  # the last seconds, as they were asked for last
    _last_id: int = 0
    _asked_ns: int | None = None
    _answered: bool = True
    _stale: bool = True
    _young: bool = False  # the last question came so soon after its range that something may be missing

    def pin(self, start_ns: int, end_ns: int) -> None:
        """Show this range and nothing else."""
        self.pinned, self._stale = (start_ns, end_ns), True

    def unpin(self) -> None:
        """Back to the last seconds."""
        self.pinned, self._live, self._stale = None, None, True

    @property
    def held(self) -> tuple[int, int] | None:
        """The range that stays as it is, pinned or paused; None where the tree goes with the time."""
        return self.pinned or (self._live if self.paused else None)

    def show_gpu(self, uuid: str | None) -> None:
        """Keep the trees of GPU time and idle GPU time to one device (None: all); others know no devices."""
        self._stale |= self.tree in GPU_TREES and uuid != self.gpu
        self.gpu = uuid

    @property
    def without_cpus(self) -> bool:
        """Whether the filter asks for cores, which the tree has nothing to say about."""
        return self.tree != "cpu" and bool(self.filter.cpus)

    def set(
        self,
        *,
        filter: Filter | None = None,
        by_thread: bool | None = None,
        by_range: bool | None = None,
        bottom_up: bool | None = None,
        internals: bool | None = None,
        tree: str | None = None,
    ) -> None:
        """Change what is asked for."""
        if filter is not None:
            self.filter = filter
        if by_thread is not None:
            self.by_thread = by_thread
        if by_range is not None:
            self.by_range = by_range
        if bottom_up is not None:
            self.bottom_up = bottom_up
        if internals is not None:
            self.internals = internals
        if tree is not None:
            self.tree = tree
        self._stale = True

    def follow_names(self, process_names: Mapping[int, str]) -> None:
        """Let a filter by name have the processes that came since it was typed, such as the workers of the
        next epoch. What is asked for next is asked for with them."""
        if not self.filter.by_name:
            return
        with suppress(GpuprofError):  # none is called so any more: those that were stay
            now = parse_filter(self.filter.text, process_names)
            forgotten = [pid for pid in self.filter.pids if pid not in process_names]
            self.filter = replace(now, pids=(*forgotten, *now.pids)[-MAX_LISTED:])

    def restart(self) -> None:
        """After a reconnect: whatever was asked will not be answered. A paused tree stays in its time."""
        self._answered, self._stale = True, True
        if not self.paused:
            self._live = None

    def due(self, local_ns: int, now_ns: int, span: tuple[int, int] | None) -> Query | None:
        """The query to send now, or None. `local_ns` paces; `now_ns` is the node's clock; `span` is a file's
        extent."""
        if (
            not self._answered
            and self._asked_ns is not None
            and local_ns - self._asked_ns < ANSWER_TIMEOUT_NS
            and not self._stale
        ):
            return None
        refresh = (
            span is None
            and (self.held is None or self._young)
            and (self._asked_ns is None or local_ns - self._asked_ns >= LIVE_PERIOD_NS)
        )
        if not self._stale and not refresh and self._answered:
            return None
        if (
            not self.paused or self._live is None
        ):  # a paused tree that is asked for otherwise stays in its time
            self._live = max(0, now_ns - LIVE_WINDOW_NS), now_ns
        start, end = self.pinned or span or self._live
        if end <= start:
            return None
        self._last_id += 1
        self._asked_ns, self._answered, self._stale = local_ns, False, False
        self._young = now_ns < end + COMPLETE_NS
        kept = self.filter
        query = Query(self._last_id, self.tree, start, end, list(kept.pids), list(kept.tids))
        if self.tree in GPU_TREES:
            by_range = self.by_range and self.tree == "gpu"
            query = replace(query, gpus=[self.gpu] if self.gpu else [], by_range=by_range)
        elif self.tree == "cpu":
            query = replace(query, cpus=list(kept.cpus))
        query = replace(query, bottom_up=self.bottom_up and self.tree in BOTTOM_UP_TREES)
        return replace(query, by_thread=self.by_thread, internals=self.internals)

    def accept(self, answer_id: int) -> bool:
        """True when this is the answer to the newest question."""
        if answer_id != self._last_id or self._answered:
            return False
        self._answered = True
        return True
