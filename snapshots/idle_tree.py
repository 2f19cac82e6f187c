"""The tree of idle GPU time of a range: what the threads that feed a device were doing while it was idle.

The idle time of a device is shared equally by the threads that feed it (idle_spans.py) and lived then
(presence.py); time in which one of them only waited for another of them is that one's. Of a thread, what its
waits cover of the idle time is exact: a synchronizing call counts as a wait, spinning or not, before what it
holds. The rest of the idle time is divided among the thread's CPU samples at idle instants outside its waits,
with the binomial standard error (estimates.py). Where there are none, or, for a thread that no wait was
recorded of, far fewer than the sampling rate lets expect, the rest stands under NOT_SEEN.

Below a wait whose waker is known, the stack of the waker at that instant is replaced by what the waker did
meanwhile, found in the same way for the time of the wait; so up to MAX_LINKS wakers on. A thread that waits
for the GIL and was woken by nobody waited for the threads of its process that ran. Only rows of the wait's
own generation of tables are looked at for that.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuprof.snapshots import fold, gaps
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.estimates import Sampled
from gpuprof.snapshots.frames import NOT_SEEN, FrameKind, WaitKind
from gpuprof.snapshots.gaps import MAX_NS, Spans
from gpuprof.snapshots.grafts import Grafts
from gpuprof.snapshots.idle_spans import DeviceIdle
from gpuprof.snapshots.presence import Presence, life
from gpuprof.snapshots.table_view import TablesView
from gpuprof.snapshots.timelines import NOBODY, Samples, ThreadWaits, Timelines, waits_for_gil

MAX_LINKS = 5
MEANWHILE = "meanwhile "
_LEAST_EXPLAINED = 0.01  # of the device's idle time: shorter waits keep the stack of their waker
_MOST_EXPLAINED = 200  # waits of one device, by place and waker


@dataclass(slots=True)
class _Rows:
    """Rows of one generation of tables while they are collected."""

    grafts: Grafts
    thread: list[Array] = field(default_factory=list)
    stack: list[Array] = field(default_factory=list)
    weight: list[Array] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)

    def add(self, thread: int, stack: Array, weight: Array) -> None:
        self.thread.append(np.full(len(stack), thread, np.int64))
        self.stack.append(stack.astype(np.int64))
        self.weight.append(weight.astype(np.float64))

    def weighed(self) -> fold.Weighed:
        empty = np.zeros(0, np.int64)
        thread, stack = np.concatenate([empty, *self.thread]), np.concatenate([empty, *self.stack])
        weight = np.concatenate([np.zeros(0), *self.weight])
        sampled = None
        if self.sampled:
            names = ("thread", "stack", "group", "part", "noise")
            sampled = Sampled(*(np.concatenate([getattr(s, name) for s in self.sampled]) for name in names))
        return fold.Weighed(self.grafts.view(), thread, stack, weight, sampled=sampled)


@dataclass(frozen=True, slots=True)
class _Role:
    """Whose time is told, and where: `person` did it, the rows are those of thread `owner`, each ns counts
    `scale`; with a view they go below one of its nodes. `above`: the threads that led here, with this one.
    """

    owner: int
    person: int
    scale: float
    above: frozenset[int]
    view: TablesView | None = None
    node: int = 0

    def sees(self, view: TablesView) -> bool:
        return self.view is None or self.view is view


class IdleTime:
    """Collects what threads did in spans of time, as rows to be folded."""

    def __init__(self, timelines: Timelines, cpu_hz: int, known_until_ns: int = MAX_NS) -> None:
        """`known_until_ns`: the end of all that is recorded, which a range may end before."""
        self._lines = timelines
        self._known_until_ns = known_until_ns
        self._people = timelines.people
        self._hz = cpu_hz
        self._rows: dict[int, _Rows] = {}
        self._groups = 0
        self._feeders: frozenset[int] = frozenset()  # of the device that is added
        self._there: Presence  # of them: what of each instant is one's own
        self._wanted: Container[int] = ()  # whose time is told
        self._least_ns = 0.0  # of a wait that is explained
        self._explained = 0

    def add_device(self, device: DeviceIdle, wanted: Container[int]) -> None:
        """Add the idle time of a device, as far as the threads `wanted` share it."""
        if not device.idle.total_ns:
            return
        self._least_ns, self._explained = _LEAST_EXPLAINED * device.idle.total_ns, 0
        self._feeders, self._wanted = frozenset(device.feeders), wanted
        if not device.feeders:
            return
        lives = {
            one: life(self._lines.samples(one), self._lines.waits(one), self._known_until_ns)
            for one in device.feeders
        }
        self._there = Presence.of(lives, int(device.idle.start[0]), int(device.idle.end[-1]))
        for person, (born, died) in self._there.lives.items():
            self._add_feeder(_Role(person, person, 1.0, frozenset({person})), device.idle.clipped(born, died))

    def parts(self) -> list[fold.Weighed]:
        """Return the rows so far."""
        return [rows.weighed() for rows in self._rows.values()]

    def _add_feeder(self, role: _Role, spans: Spans) -> None:
        rest = self._add(role, spans)
        if rest > 0 and role.owner in self._wanted:
            view = self._people.view_of(role.person)
            rows = self._rows_of(view)
            node = rows.grafts.child(0, NOT_SEEN, FrameKind.UNKNOWN)
            rows.add(self._thread(view, role.person), np.array([node]), np.array([rest * role.scale]))

    def _add(self, role: _Role, spans: Spans) -> float:
        """Add what a thread did in `spans`, and return how much of its share of that (ns) is not known."""
        waits = [one for one in self._lines.waits(role.person) if role.sees(one.view)]
        calls, exact = gaps.EMPTY, gaps.EMPTY
        for one in waits:
            calls, exact = calls.joined(one.calls), exact.joined(one.exactly)
        free = spans.minus(calls)
        left = self._there.share_ns(spans)
        left -= self._add_waits(role, waits, [one.call for one in waits], spans, spans.both(calls))
        left -= self._add_waits(role, waits, [one.exact for one in waits], free, free.both(exact))
        left -= self._add_sampled_waits(role, waits, free, left)
        samples = [one for one in self._lines.samples(role.person) if role.sees(one.view)]
        left -= self._add_samples(role, samples, free.minus(exact), left, trusted=bool(waits))
        return left if left > 0.5 else 0.0  # floats leave less than a ns over

    def _add_waits(
        self,
        role: _Role,
        waits: Sequence[ThreadWaits],
        masks: Sequence[Array],
        spans: Spans,
        covered: Spans,
    ) -> float:
        """Add some of a thread's waits, as far as they lie in `spans`, and return its share of them all:
        of `covered`; where waits overlap each other they share.
        """
        inside = [
            np.where(mask, self._there.shares_ns(spans, one.start_ns, one.end_ns), 0)
            for one, mask in zip(waits, masks, strict=True)
        ]
        whole = float(sum(part.sum() for part in inside))
        if whole <= 0:
            return 0.0
        total = self._there.share_ns(covered)
        role = replace(role, scale=role.scale * total / whole)
        for one, part in zip(waits, inside, strict=True):
            explained = self._explain(role, one, part, spans)
            rows = np.flatnonzero((part > 0) & ~explained)
            self._put(role, one.view, one.stack[rows], part[rows] * role.scale)
        return total

    def _add_sampled_waits(
        self, role: _Role, waits: Sequence[ThreadWaits], spans: Spans, left: float
    ) -> float:
        """Add the short waits of which only some were recorded, each for as many as it stands for; return
        how much of the `left` ns they take.
        """
        amounts = [
            np.where(
                ~one.call & (one.weight > 1),
                one.weight * self._there.shares_ns(spans, one.start_ns, one.end_ns),
                0.0,
            )
            for one in waits
        ]
        whole = float(sum(amount.sum() for amount in amounts))
        taken = min(whole, left)
        if taken <= 0:
            return 0.0
        for one, amount in zip(waits, amounts, strict=True):
            rows = np.flatnonzero(amount > 0)
            self._put(role, one.view, one.stack[rows], amount[rows] * (role.scale * taken / whole))
        return taken

    def _add_samples(
        self, role: _Role, samples: Sequence[Samples], spans: Spans, left: float, *, trusted: bool
    ) -> float:
        """Divide `left` ns, a share of `spans`, among the CPU samples in it, and return how much they can
        stand for. `trusted`: the waits are known, so that whoever did not wait ran.
        """
        held = [np.flatnonzero(spans.holds(one.time_ns)) for one in samples]
        rates = [self._there.rates(one.time_ns[rows]) for one, rows in zip(samples, held, strict=True)]
        count = sum(map(len, held))
        if not count or left <= 0:
            return 0.0
        whole = float(sum(part.sum() for part in rates))
        expected = spans.total_ns * self._hz / 1e9
        if not trusted and count < expected - 4 * expected**0.5 - 1:
            left = whole * 1e9 / self._hz
        for one, rows, rate in zip(samples, held, rates, strict=True):
            if not len(rows) or role.owner not in self._wanted:
                continue
            collected, stack = self._rows_of(one.view), one.stack[rows].astype(np.int64)
            if role.view is not None:
                stack = collected.grafts.under(role.node, stack)
            part = rate * (left * role.scale / whole)
            thread = np.full(len(rows), self._thread(one.view, role.owner), np.int64)
            group = np.full(len(rows), self._groups, np.int64)
            collected.sampled.append(Sampled(thread, stack, group, part, part**2))
        self._groups += 1
        return left

    def _explain(self, role: _Role, waits: ThreadWaits, inside: Array, spans: Spans) -> Array:
        """Add what the wakers did meanwhile, and return a mask of the waits that this replaces."""
        done = np.zeros(len(inside), np.bool_)
        able = np.flatnonzero((inside > 0) & (waits.kind == WaitKind.BLOCKED))
        if len(role.above) > MAX_LINKS or not len(able):
            return done
        width = int(waits.waker.max()) + 2
        keys, key_of = np.unique(waits.under[able] * width + waits.waker[able] + 1, return_inverse=True)
        key_of = key_of.reshape(-1)
        sums = np.bincount(key_of, inside[able])
        large = np.flatnonzero(sums * role.scale >= self._least_ns)
        large = large[np.argsort(-sums[large], kind="stable")]
        unders, wakers = np.divmod(keys[large], width)
        gil = waits_for_gil(waits.view, unders)
        for number, node, waker, for_gil in zip(
            large.tolist(), unders.tolist(), (wakers - 1).tolist(), gil.tolist(), strict=True
        ):
            if waker in role.above or (waker == NOBODY and not for_gil):
                continue
            if self._explained >= _MOST_EXPLAINED:
                break
            self._explained += 1
            rows = able[key_of == number]
            meanwhile = gaps.union(waits.start_ns[rows], waits.end_ns[rows]).both(spans)
            # the sum of the rows is what is told here, even where they overlap
            scale = role.scale * float(sums[number]) / (self._there.share_ns(meanwhile) or 1.0)
            if role.view is None and waker in self._feeders and self._known(waker, waits.view, meanwhile):
                self._add_feeder(_Role(waker, waker, scale, role.above | {waker}), meanwhile)
                done[rows] = True
                continue
            told = replace(role, scale=scale, view=waits.view)
            below = node
            if role.view is not None:
                below = int(self._rows_of(waits.view).grafts.under(role.node, np.array([node]))[0])
            done[rows] = self._add_waker(told, waker, below, meanwhile)
        return done

    def _add_waker(self, role: _Role, waker: int, node: int, spans: Spans) -> bool:
        """Add below `node` what a waker did in `spans`; for NOBODY, or where nothing is known of it, what the
        other threads of its process did. False when nothing is known of them either.
        """
        view, lines, people = role.view, self._lines, self._people
        assert view is not None
        rows = self._rows_of(view)
        if waker != NOBODY and self._known(waker, view, spans):
            below = rows.grafts.child(node, f"{MEANWHILE}{people.names[waker]}", FrameKind.WAIT)
            left = self._add(replace(role, person=waker, above=role.above | {waker}, node=below), spans)
        else:
            whose = role.person if waker == NOBODY else waker
            mates = [
                one for one in lines.others(whose) if one.view is view and spans.holds(one.time_ns).any()
            ]
            if not mates:
                return False
            name = f"{MEANWHILE}other threads of {people.processes[whose].name}"
            below = rows.grafts.child(node, name, FrameKind.WAIT)
            left = self._there.share_ns(spans)
            left -= self._add_samples(replace(role, node=below), mates, spans, left, trusted=waker == NOBODY)
        if left > 0 and role.owner in self._wanted:
            thread = self._thread(view, role.owner)
            rows.add(thread, np.array([below]), np.array([left * role.scale]))
        return True

    def _known(self, person: int, view: TablesView, spans: Spans) -> bool:
        """Tell whether anything is known of a thread in `spans`."""
        samples, waits = self._lines.samples(person), self._lines.waits(person)
        return any(one.view is view and spans.holds(one.time_ns).any() for one in samples) or any(
            one.view is view and spans.overlap(one.start_ns, one.end_ns).any() for one in waits
        )

    def _put(self, role: _Role, view: TablesView, stack: Array, weight: Array) -> None:
        if not len(stack) or role.owner not in self._wanted:
            return
        rows = self._rows_of(view)
        nodes = stack if role.view is None else rows.grafts.under(role.node, stack)
        rows.add(self._thread(view, role.owner), nodes, weight)

    def _rows_of(self, view: TablesView) -> _Rows:
        found = self._rows.get(view.generation)
        if found is None:
            found = self._rows[view.generation] = _Rows(Grafts(view))
        return found

    def _thread(self, view: TablesView, person: int) -> int:
        found = self._people.id_in(view, person)
        assert found is not None, "a row of a generation in which its thread was not met"
        return found


def folded(parts: Sequence[fold.Weighed], *, by_thread: bool = False) -> fold.Folded:
    """Return all collected rows folded."""
    return fold.folded(parts, by_thread=by_thread, merge=True)
