"""Texts that come through a ring in parts, each with the number of what it names."""

from __future__ import annotations

MAX_PARTIAL = 64  # texts of which some parts are missing


class TextParts:
    """Puts texts together. Parts of one text come in their order; not thread-safe."""

    def __init__(self) -> None:
        self._partial: dict[int, bytearray] = {}

    def add(self, number: int, offset: int, total: int, part: bytes) -> bytes | None:
        """The whole text, once its last part has come; None before. ValueError for a part that continues
        nothing, reaches beyond `total` bytes or is empty: what came of its text is forgotten.
        """
        so_far = self._partial.get(number)
        if offset == 0:
            if len(self._partial) >= MAX_PARTIAL:
                self._partial.clear()
            so_far = self._partial[number] = bytearray()
        if so_far is None or offset != len(so_far) or offset + len(part) > total or (not part and total):
            self._partial.pop(number, None)
            raise ValueError("no part of a text")
        so_far += part
        if len(so_far) < total:
            return None
        del self._partial[number]
        return bytes(so_far)
