"""What was used lately is found, whatever came in between, and what is kept is bounded."""

from __future__ import annotations

import random

import pytest

from gpuprof.snapshots.recent import Recent


def size_of(key: int, value: str) -> int:
    return 10 + key % 7 + len(value)


def test_two_dictionaries_by_hand() -> None:
    recent: Recent[int, str] = Recent(2, 1000, size_of)
    recent.put(1, "a")
    recent.put(2, "b")
    recent.put(3, "c")  # 1 and 2 are of before now
    assert recent.get(1) == "a"  # used: it is in use again
    recent.put(4, "d")  # 2 and an older entry of 1 are gone, 3 and 1 of before
    assert (recent.get(2), recent.get(1), recent.get(3), recent.get(4)) == (None, "a", "c", "d")
    recent.clear()
    assert (len(recent), recent.nbytes, list(recent), recent.get(1)) == (0, 0, [], None)


def test_a_value_that_is_replaced_counts_once() -> None:
    recent: Recent[int, str] = Recent(9, 1000, size_of)
    for text in ("a", "abc", ""):
        recent.put(3, text)
    assert (recent.get(3), len(recent), recent.nbytes) == ("", 1, size_of(3, ""))


def test_age_lets_go_of_what_was_not_used() -> None:
    recent: Recent[int, str] = Recent(100, 10_000, size_of)
    for key in range(10):
        recent.put(key, str(key))
    recent.age()
    assert recent.get_many([3, 11, 4]) == ["3", None, "4"]
    recent.age()
    recent.put(12, "12")
    assert sorted(recent) == [3, 4, 12]
    assert recent.nbytes == size_of(3, "3") + size_of(4, "4") + size_of(12, "12")


def test_what_is_not_wanted_is_forgotten() -> None:
    recent: Recent[int, str] = Recent(4, 10_000, size_of)
    for key in range(8):
        recent.put(key, "x" * key)
    recent.keep(lambda key, value: key % 2 == 0 and len(value) > 2)
    assert sorted(recent) == [4, 6]
    assert recent.nbytes == size_of(4, "xxxx") + size_of(6, "xxxxxx")


@pytest.mark.parametrize("seed", range(4))
def test_random_use(seed: int) -> None:
    """Against a plain dictionary: no value is ever wrong, one of the last half is always there, and neither
    number nor size goes beyond twice the bound."""
    rng = random.Random(seed)
    entries, most_bytes = rng.choice([(8, 10_000), (1000, 300), (20, 500)])
    recent: Recent[int, str] = Recent(entries, most_bytes, size_of)
    everything: dict[int, str] = {}
    largest = 10 + 6 + 30
    for _ in range(3000):
        key = rng.randrange(200)
        if rng.random() < 0.4:
            everything[key] = "y" * rng.randrange(30)
            recent.put(key, everything[key])
        found = recent.get(key)
        assert found is None or found == everything[key]
        if found is not None:
            recent.put(rng.randrange(200, 400), "")
            assert recent.get(key) == found  # used just now, so that one more does not drive it out
        assert len(recent) <= 2 * entries
        assert recent.nbytes <= 2 * (most_bytes + largest)
        if rng.random() < 0.01:
            recent.age()
