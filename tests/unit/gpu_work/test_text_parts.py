"""Texts from their parts."""

from __future__ import annotations

import pytest

from gpuprof.sampler.text_parts import MAX_PARTIAL, TextParts


def test_parts_of_several_texts() -> None:
    parts = TextParts()
    assert parts.add(1, 0, 6, b"abc") is None
    assert parts.add(2, 0, 2, b"xy") == b"xy"
    assert parts.add(1, 3, 6, b"def") == b"abcdef"
    assert parts.add(3, 0, 0, b"") == b""


@pytest.mark.parametrize(("offset", "part"), [(2, b"def"), (4, b"ef"), (3, b"defg"), (3, b"")])
def test_what_is_no_part(offset: int, part: bytes) -> None:
    parts = TextParts()
    assert parts.add(1, 0, 6, b"abc") is None
    with pytest.raises(ValueError):
        parts.add(1, offset, 6, part)
    with pytest.raises(ValueError):  # nor is what would have come next
        parts.add(1, 3, 6, b"def")


def test_a_text_that_begins_again() -> None:
    parts = TextParts()
    assert parts.add(1, 0, 4, b"ab") is None
    assert parts.add(1, 0, 3, b"xy") is None
    assert parts.add(1, 2, 3, b"z") == b"xyz"


def test_begun_texts_are_bounded() -> None:
    parts = TextParts()
    for number in range(10 * MAX_PARTIAL):
        assert parts.add(number, 0, 2, b"a") is None
    assert len(parts._partial) <= MAX_PARTIAL
