"""What is remembered by key is what a dictionary would hold, of those keys that were not pushed out."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpuprof.snapshots.key_memo import KeyMemo


@pytest.mark.parametrize("bits", [1, 4, 15])
def test_as_a_dictionary(bits: int) -> None:
    memo, rng, known, found = KeyMemo(np.uint32, bits), random.Random(bits), dict[int, int](), 0
    pool = [rng.randrange(1, 1 << 63) for _ in range(60)]
    for round_ in range(80):
        wanted = rng.choices(pool, k=30)
        keys = np.array(wanted, np.uint64)
        values, unknown = memo.find(keys)
        missing = set(unknown.tolist())
        assert all(values[n] == (0 if n in missing else known[key]) for n, key in enumerate(wanted))
        found += len(wanted) - len(missing)
        for n in sorted(missing):
            known[wanted[n]] = 1 + (n * round_) % 1000
        memo.put(keys[unknown], np.array([known[wanted[n]] for n in unknown.tolist()], np.uint32))
        if round_ % 10 == 9:
            gone = rng.choice(pool)
            memo.forget(gone)
            assert memo.find(np.array([gone], np.uint64))[1].tolist() == [0]
    assert found > 0
    memo.clear()
    assert len(memo.find(np.array(pool, np.uint64))[1]) == len(pool)


def test_keys_that_share_a_place_stay_both() -> None:
    """500 keys in 32,768 places: a few share their first place, and all are known from the third time on."""
    memo, keys = KeyMemo(np.uint32, 15), np.random.default_rng(2).integers(1, 1 << 63, 500, dtype=np.uint64)
    for _ in range(2):
        values, unknown = memo.find(keys)
        memo.put(keys[unknown], unknown.astype(np.uint32))
    values, unknown = memo.find(keys)
    assert not len(unknown)
    assert values.tolist() == list(range(500))
