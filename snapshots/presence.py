"""Who was there: time is shared only by the threads that lived then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from gpuprof.snapshots.gaps import EMPTY, MAX_NS, Spans
from gpuprof.snapshots.timelines import Samples, ThreadWaits

MAX_STRETCHES = 16  # of a range: with more births and deaths than that, some are taken together
AFTER_NS = 2 * 10**9  # a wait that lasts is told in pieces, the last of which may come so late
FOREVER = (0, MAX_NS)


def life(samples: Sequence[Samples], waits: Sequence[ThreadWaits]) -> tuple[int, int]:
    """When a thread lived, as far as its rows of a range say: it ran, or it waited. Where no wait of it was
    recorded nothing says when it did not live: FOREVER.
    """
    if not waits:
        return FOREVER
    first = min(int(one.start_ns.min()) for one in waits)
    last = max(int(one.end_ns.max()) for one in waits)
    for one in samples:
        first, last = min(first, int(one.time_ns.min())), max(last, int(one.time_ns.max()))
    return first, last + AFTER_NS


def stretches(spans: Spans, lives: Mapping[int, tuple[int, int]]) -> list[tuple[Spans, list[int]]]:
    """Divide a set of time by who lived at its middle: (part, threads), no two with the same threads.

    Time in which nobody did goes to who came next, or else to who was there before.
    """
    if not len(spans):
        return []
    low, high = int(spans.start[0]), int(spans.end[-1])
    edges = sorted({edge for one in lives.values() for edge in one if low < edge < high})
    step = -(-len(edges) // MAX_STRETCHES) or 1
    bounds = [low, *edges[::step], high]
    alive = [
        tuple(one for one, (born, died) in lives.items() if 2 * born <= start + end <= 2 * died)
        for start, end in pairwise(bounds)
    ]
    found: dict[tuple[int, ...], Spans] = {}
    for number, (start, end) in enumerate(pairwise(bounds)):
        near = [*alive[number:], *reversed(alive[:number])]
        who = next((one for one in near if one), tuple(lives))
        found[who] = found.get(who, EMPTY).joined(spans.clipped(start, end))
    return [(part, list(who)) for who, part in found.items() if len(part)]
