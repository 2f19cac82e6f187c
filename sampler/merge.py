"""Merges the native and the Python frames of one sample into one stack.

CPython runs many Python frames in one C call of its evaluation loop; those frames, up to and including the
one that was entered from C, are a *group*, and stand where that C call stands. Up to 3.11 native frames of
the loop and groups are matched in order, from the root: a surplus loop at the leaf is a call that is not
linked yet. From 3.12 on a group ends in a shim frame that lies on the C stack inside its host, so the host is
known by address; that also works where the loop is inlined into its callers or cut into tail calls.

Where the native walk ended early, the groups without a host go below the break: the Python chain is complete
by itself, so the sample is still named and rooted. Frames of the loop are replaced by their Python frames; no
other frame is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuprof.sampler.frame_ids import Role

UNKNOWN_DISTANCE = 0xFFFF
_EVAL, _INNER = int(Role.EVAL), int(Role.INNER)  # plain integers compare faster


class Group(NamedTuple):
    """Python frames of one C call of the loop, innermost first. `host`: index of the native frame, None: not
    known.
    """

    frames: tuple[int, ...]
    host: int | None = None


class Merged(NamedTuple):
    """Frame ids, innermost first. `outer`: the native frames outside of all Python frames (a tail of
    `frames`).
    """

    frames: list[int]
    outer: tuple[int, ...] | None


def merge(
    native: Sequence[int],
    roles: Sequence[int],
    groups: Sequence[Group],
    *,
    by_host: bool,
    native_complete: bool,
) -> Merged:
    """One stack, innermost first. `roles` by frame id; `by_host`: the groups have hosts (3.12+)."""
    if not groups:
        return Merged(list(native), None)
    evals = [index for index, frame in enumerate(native) if roles[frame] == _EVAL]
    hidden = set(evals)
    if by_host:
        placed, rest = _place_by_host(groups, evals, native_complete)
        hidden.update(index - 1 for index in placed if index > 0 and roles[native[index - 1]] == _INNER)
    else:
        placed, rest = _place_in_order(groups, evals, native_complete)
    frames: list[int] = []
    after = 0
    for index in sorted(hidden.union(placed)):
        frames += native[after:index]
        after = index + (index in hidden)
        if index in placed:
            frames += placed[index]
    frames += native[after:]
    outer = None
    if native_complete and placed and not rest:
        outermost = max(placed)
        outer = tuple(native[index] for index in range(outermost, len(native)) if index not in hidden)
    return Merged(frames + rest, outer)


Placement = tuple[dict[int, list[int]], list[int]]  # frames by native index, and those below the break


def _place_by_host(groups: Sequence[Group], evals: Sequence[int], native_complete: bool) -> Placement:
    placed: dict[int, list[int]] = {}
    rest: list[int] = []
    last = -1
    for group in groups:
        host = group.host
        if host is None and not rest:
            host = next((index for index in evals if index > last), None)
            if host is None and native_complete:
                host = max(last, 0)  # its place is not known: as near as the order allows
        if host is None or rest or host < last:
            rest.extend(group.frames)
        else:
            placed.setdefault(host, []).extend(group.frames)
            last = host
    return placed, rest


def _place_in_order(groups: Sequence[Group], evals: Sequence[int], native_complete: bool) -> Placement:
    surplus = len(evals) - len(groups)
    if surplus >= 0:
        return {index: list(group.frames) for index, group in zip(evals[surplus:], groups, strict=True)}, []
    if native_complete and evals:
        # A loop that has just returned is still linked: the first groups belong together.
        first = groups[: 1 - surplus]
        placed = {evals[0]: [frame for group in first for frame in group.frames]}
        for index, group in zip(evals[1:], groups[1 - surplus :], strict=True):
            placed[index] = list(group.frames)
        return placed, []
    placed = {index: list(group.frames) for index, group in zip(evals, groups, strict=False)}
    return placed, [frame for group in groups[len(evals) :] for frame in group.frames]
