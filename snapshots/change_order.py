"""Which entries of a table changed, in the order of their last changes: a reader is sent what it lacks."""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class ChangeOrder:
    """Versions by id (both from 0), at most one for each id. Not thread-safe."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}  # the oldest change first
        self._frozen: tuple[array[int], array[int]] | None = None

    def note(self, item: int, version: int) -> None:
        """`item` changed; `version` is larger than all before. ValueError once frozen."""
        if self._frozen is not None:
            raise ValueError("the table is frozen")
        self._versions.pop(item, None)  # so that the order of the dictionary is the order of the changes
        self._versions[item] = version

    def freeze(self) -> None:
        """Keep what is there in an eighth of the memory; nothing changes any more."""
        if self._frozen is None:
            self._frozen = array("I", self._versions), array("Q", self._versions.values())
            self._versions = {}

    def newest_first(self) -> Iterator[tuple[int, int]]:
        """(id, version), the last change first."""
        if self._frozen is not None:
            return zip(reversed(self._frozen[0]), reversed(self._frozen[1]), strict=True)
        return reversed(self._versions.items())
