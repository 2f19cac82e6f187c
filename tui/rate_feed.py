"""Which work rates the screen wants, when to ask for them, and their answers as readings of charts.

What is in sight and not known yet is asked for, a piece at a time: of a live node what came since the last
answer, a little late so that the records are in; of the past, or a file, all of it. What was done in a pinned
range is counted until the records of its end are in. Nothing is kept on the other side.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuprof.snapshots.frames import Failure, GpuFacts, Readings, SeriesDef
from gpuprof.snapshots.work_frames import MAX_RATES, Counted, RateQuery, Rates, Wanted, WorkKind
from gpuprof.tui.series import Key, SeriesStore

IDS_FROM = 1 << 29  # of the questions: trees are numbered from 1, fetches from 1 << 30
SERIES_FROM = 0xFFF0_0000  # of the readings that are made here, which no sampler's series have
WINDOW_NS = 200_000_000
WINDOWS = 2000  # in one piece
PERIOD_NS = 2 * 10**9
NOTHING_PERIOD_NS = 3 * 10**9  # more, of what does not occur
LOOP_PERIOD_NS = 10 * 10**9
TIMEOUT_NS = 15 * 10**9
LATE_NS = 2_500_000_000  # records of GPU work come so late; what is older is complete
AFTER_NS = 10**9  # the end of a file: no more work comes, so its last window is over
MAX_GAP_NS = 120 * 10**9  # what nobody looked at for longer is asked for when it comes in sight
MAX_CHOSEN = 8
LOOP_SLOT = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """What somebody wants to have counted; see work_frames.Wanted."""

    kind: WorkKind
    name: str
    file: str = ""
    gpu: str | None = None
    pid: int | None = None

    def wanted(self, start_ns: int, end_ns: int) -> Wanted:
        """The question for a piece of time."""
        window_ns = max(WINDOW_NS, (end_ns - start_ns) // WINDOWS)
        return Wanted(self.kind.value, self.name, start_ns, end_ns, window_ns, self.file, self.gpu, self.pid)


@dataclass(slots=True)
class _Watch:
    """A choice with its series, and the time [from_ns, to_ns) that is known of it."""

    choice: Choice
    key: Key
    series: int
    from_ns: int = 0
    to_ns: int = 0
    drawn_ns: int = 0  # end of the newest reading
    next_ns: int = 0  # asked not earlier, on this side's clock

    def reset(self) -> None:
        self.from_ns = self.to_ns = self.drawn_ns = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    watch: _Watch
    start_ns: int
    end_ns: int


class RateFeed:
    """The work rates of one session. Used from the event loop only."""

    def __init__(self, store: SeriesStore) -> None:
        self._store = store
        self._watches: list[_Watch] = []
        self._loop: _Watch | None = None
        self._has_looped = self._is_file = False
        self._slots = itertools.count(LOOP_SLOT + 1)
        self._series = itertools.count()
        self._number = itertools.count(IDS_FROM)
        self._asked: tuple[int, int, list[_Piece]] | None = None  # id, when, what
        self._asked_pinned: tuple[int, tuple[int, int], list[Choice], bool] | None = None
        self._pinned_for: tuple[tuple[int, int] | None, int] = (None, 0)
        self._pinned_next_ns: int | None = None  # asked for not earlier; None: no more
        self.view: tuple[int, int] | None = None  # the time in sight
        self.changed = False  # what `labels` says
        self.drew = False  # there are new readings
        self.refusals: list[tuple[Choice, str]] = []  # that nobody was told of yet
        self.pinned: list[tuple[str, Counted]] = []  # what was done in the pinned range

    @property
    def labels(self) -> dict[int, str]:
        """Names of the series of `work_rate_hz` by their number."""
        return {watch.key[3]: label(watch.choice) for watch in self._watches if watch.key[3] is not None}

    @property
    def chosen(self) -> list[Choice]:
        """What somebody chose, in that order."""
        return [watch.choice for watch in self._watches if watch.key[3] not in {None, LOOP_SLOT}]

    def toggle(self, choice: Choice) -> bool | None:
        """Show a work rate, or no longer; whether it is now, None where there are too many already."""
        found = next((w for w in self._watches if w.choice == choice and w.key[3] is not None), None)
        if found is not None:
            self._drop(found)
            return False
        if len(self.chosen) >= MAX_CHOSEN:
            return None
        self._add(choice, ("work_rate_hz", None, None, next(self._slots)))
        return True

    def set_gpus(self, gpus: Sequence[GpuFacts]) -> None:
        """The devices, of each of which all kernels are counted."""
        keys: list[Key] = [("kernel_rate_hz", gpu.uuid, None, None) for gpu in gpus[: MAX_RATES // 2]]
        for watch in [w for w in self._watches if w.key[0] == "kernel_rate_hz" and w.key not in keys]:
            self._drop(watch)
        known = {watch.key for watch in self._watches}
        for key in keys:
            if key not in known:
                self._add(Choice(WorkKind.KERNELS, "", gpu=key[1]), key)
        if gpus and not self._has_looped:
            self._has_looped = True
            self._loop = _Watch(Choice(WorkKind.LOOP, ""), ("work_rate_hz", None, None, LOOP_SLOT), 0)

    def restart(self) -> None:
        """After a reconnect: whatever was asked will not be answered."""
        self._asked = self._asked_pinned = None

    # ---------------------------------------- questions

    def due(
        self, local_ns: int, now_ns: int, span: tuple[int, int] | None, pinned: tuple[int, int] | None
    ) -> RateQuery | None:
        """The question to send now, or None. `local_ns` paces; `now_ns` is the node's clock; `span` is a
        file's extent.
        """
        if self._asked is not None and local_ns - self._asked[1] < TIMEOUT_NS:
            return None
        if self._pinned_for != (pinned, len(self._watches)):
            self._pinned_for, self.pinned, self._asked_pinned = (pinned, len(self._watches)), [], None
            self._pinned_next_ns = local_ns if pinned is not None and self._watches else None
        if pinned is not None and self._pinned_next_ns is not None and local_ns >= self._pinned_next_ns:
            is_complete = span is not None or now_ns >= pinned[1] + LATE_NS
            return self._pinned_query(pinned, local_ns, is_complete=is_complete)
        if self.view is None:
            return None
        self._is_file = span is not None
        end = span[1] + AFTER_NS if span is not None else now_ns - LATE_NS
        start = max(self.view[0], span[0] if span is not None else 0)
        pieces = [
            piece
            for watch in (*self._watches, *([self._loop] if self._loop is not None else []))
            if local_ns >= watch.next_ns and (piece := self._piece(watch, start, end)) is not None
        ][:MAX_RATES]
        if not pieces:
            return None
        for piece in pieces:
            piece.watch.next_ns = local_ns + (LOOP_PERIOD_NS if piece.watch is self._loop else PERIOD_NS)
        number = next(self._number)
        self._asked = number, local_ns, pieces
        return RateQuery(number, [p.watch.choice.wanted(p.start_ns, p.end_ns) for p in pieces])

    def _piece(self, watch: _Watch, start: int, end: int) -> _Piece | None:
        """What of [start, end) is not known yet: the newer part first."""
        if watch.drawn_ns and not len(self._store.view(watch.key)):
            watch.reset()  # another node's readings took the place of these
        if watch is self._loop and end > start:
            return _Piece(watch, start, end)
        if end > watch.to_ns and (not watch.to_ns or end - watch.to_ns > MAX_GAP_NS):
            watch.reset()
            return _Piece(watch, start, end) if end > start else None
        if end - watch.to_ns >= WINDOW_NS:
            # A window that was not over is known for as long as a grid cell at the end of what was asked for.
            return _Piece(watch, max(watch.drawn_ns + 1, watch.to_ns - 2 * WINDOW_NS), end)
        return _Piece(watch, start, watch.from_ns) if start < watch.from_ns - WINDOW_NS else None

    def _pinned_query(self, pinned: tuple[int, int], local_ns: int, *, is_complete: bool) -> RateQuery:
        """`is_complete`: whether all records of the range are in, so that the answer is the last."""
        choices = [watch.choice for watch in self._watches][-MAX_RATES:]
        number = next(self._number)
        self._asked = number, local_ns, []
        self._asked_pinned = number, pinned, choices, is_complete
        self._pinned_next_ns = local_ns + PERIOD_NS  # also where no answer comes
        length = pinned[1] - pinned[0]
        return RateQuery(number, [replace(c.wanted(*pinned), window_ns=length) for c in choices])

    # ---------------------------------------- answers

    def accept(self, answer: Rates | Failure) -> None:
        """Take an answer; one that nobody waits for any more is dropped."""
        asked, self._asked = self._asked, None
        if asked is None or answer.id != asked[0]:
            self._asked = asked
            return
        if isinstance(answer, Failure):
            return
        if self._asked_pinned is not None and answer.id == self._asked_pinned[0]:
            _, pinned, choices, is_complete = self._asked_pinned
            if self._pinned_for[0] == pinned and len(answer.counted) == len(choices):
                names = [label(choice) for choice in choices]
                self.pinned = list(zip(names, answer.counted, strict=True))
            if is_complete:
                self._pinned_next_ns = None
            return
        if len(answer.counted) != len(asked[2]):
            return
        for number, piece in enumerate(asked[2]):
            if piece.watch is self._loop:
                self._found_loop(answer.counted[number])
            elif any(piece.watch is watch for watch in self._watches):
                self._take(piece, answer, number)

    def _found_loop(self, counted: Counted) -> None:
        """From now on the range that was found is counted, even should another be more regular later."""
        if counted.reason and self._is_file:
            self._loop = None  # there will be none
        if counted.name and not counted.reason and self._loop is not None:
            choice, key, self._loop = Choice(WorkKind.RANGE, counted.name), self._loop.key, None
            self._add(choice, key)

    def _take(self, piece: _Piece, answer: Rates, number: int) -> None:
        watch = piece.watch
        counted = answer.counted[number]
        if counted.reason and watch.key[3] not in {None, LOOP_SLOT}:
            self.refusals.append((watch.choice, counted.reason))
            self._drop(watch)
            return
        older = bool(watch.to_ns) and piece.end_ns <= watch.from_ns
        low = np.uint64(0 if older else watch.drawn_ns)
        mine = (answer.of == number) & (answer.recorded_ns > 0) & (answer.end_ns > low)
        if older:
            mine &= answer.count > 0  # what was not over at the end is part of a window that is known
        start = np.maximum(answer.start_ns[mine], low)
        end, count = answer.end_ns[mine], answer.count[mine]
        if len(end):
            value = count * 1e9 / answer.recorded_ns[mine].astype(np.float64)
            self._store.define(SeriesDef(watch.series, watch.key[0], watch.key[1], None, watch.key[3]))
            self.drew = True
            self._store.add(Readings(np.full(len(end), watch.series, np.uint32), start, end, value))
            watch.drawn_ns = max(watch.drawn_ns, int(end.max()))
        else:
            watch.next_ns += NOTHING_PERIOD_NS
        watch.from_ns = piece.start_ns if not watch.to_ns else min(watch.from_ns, piece.start_ns)
        watch.to_ns = max(watch.to_ns, piece.end_ns)

    def _add(self, choice: Choice, key: Key) -> None:
        series = SERIES_FROM + next(self._series)
        self._watches.append(_Watch(choice, key, series))
        self.changed = True

    def _drop(self, watch: _Watch) -> None:
        self._watches = [other for other in self._watches if other is not watch]
        self._store.forget(watch.key)
        self.drew = True
        self.changed = True


def label(choice: Choice) -> str:
    """What is counted, in words."""
    if choice.kind == WorkKind.KERNELS:
        return "kernels" if choice.pid is None else f"kernels of {choice.pid}"
    return f"launches in {choice.name}" if choice.kind == WorkKind.LAUNCH else choice.name
