"""Values by key that were used lately, in bounded memory: two dictionaries, one in use and the one before it.

A full one takes the place of the one before, whose values are gone then unless they were used again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most twice `max_entries` values, and twice about `max_bytes` of them by what `size_of` says of each
    key and value. Not thread-safe.
    """

    __slots__ = ("_before", "_before_bytes", "_bytes", "_max_bytes", "_max_entries", "_now", "_size_of")

    def __init__(self, max_entries: int, max_bytes: int, size_of: Callable[[K, V], int]) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._now: dict[K, V] = {}
        self._before: dict[K, V] = {}
        self._bytes = self._before_bytes = 0

    def __len__(self) -> int:
        """How many keys there are; one that was used again counts twice until the older entry is gone."""
        return len(self._now) + len(self._before)

    @property
    def nbytes(self) -> int:
        """About how much memory they take, by `size_of`."""
        return self._bytes + self._before_bytes

    def __iter__(self) -> Iterator[K]:
        """All keys, some of them twice."""
        yield from self._before
        yield from self._now

    def get(self, key: K) -> V | None:
        """The value of a key, which is in use now; None where there is none (any more)."""
        found = self._now.get(key)
        if found is None and (found := self._before.get(key)) is not None:
            self.put(key, found)
        return found

    def get_many(self, keys: Sequence[K]) -> list[V | None]:
        """As `get`, of many keys."""
        found = list(map(self._now.get, keys))
        if None in found and self._before:
            for n, key in enumerate(keys):
                if found[n] is None:
                    found[n] = self.get(key)
        return found

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        if len(self._now) >= self._max_entries or self._bytes >= self._max_bytes:
            self.age()
        old = self._now.get(key)
        self._bytes += self._size_of(key, value) - (self._size_of(key, old) if old is not None else 0)
        self._now[key] = value

    def keep(self, wanted: Callable[[K, V], bool]) -> None:
        """Forget all that is not wanted."""
        self._now, self._bytes = self._part(self._now, wanted)
        self._before, self._before_bytes = self._part(self._before, wanted)

    def _part(self, values: dict[K, V], wanted: Callable[[K, V], bool]) -> tuple[dict[K, V], int]:
        kept = {key: value for key, value in values.items() if wanted(key, value)}
        return kept, sum(self._size_of(key, value) for key, value in kept.items())

    def age(self) -> None:
        """Let go of what was not used since this was done last, by age or by want of room."""
        self._before, self._before_bytes = self._now, self._bytes
        self._now, self._bytes = {}, 0

    def clear(self) -> None:
        """Forget all."""
        self._now, self._before = {}, {}
        self._bytes = self._before_bytes = 0
