"""Stack ids that are remembered are those that a dictionary would hold."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuprof.sampler import stack_memo
from gpuprof.sampler.stack_memo import MAX_PROCESSES, StackMemo


def process(pid: int, start_ns: int = 5) -> Any:
    return SimpleNamespace(pid=pid, start_ns=start_ns)


@pytest.mark.parametrize("bits", [1, 4, 15])
def test_as_a_dictionary(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what was put, some may have been pushed out; what is found is right."""
    monkeypatch.setattr(stack_memo, "BITS", bits)
    memo, rng, known = StackMemo(), random.Random(bits), {}
    processes = [process(7), process(8), process(7, 6)]
    found_any = 0
    for _ in range(60):
        rows = [(rng.randrange(3), rng.randrange(1, 40)) for _ in range(30)]
        of_record = np.array([whose for whose, _ in rows])
        keys = memo.keys(np.array([hashed for _, hashed in rows], np.uint64), processes, of_record)
        stacks, truncated, unknown = memo.find(keys)
        for n, row in enumerate(rows):
            if n not in unknown:
                assert (stacks[n], truncated[n]) == known[row]
                found_any += 1
        for n in unknown.tolist():
            known.setdefault(rows[n], (rng.randrange(1 << 32), rng.random() < 0.5))
        assert not stacks[unknown].any()
        assert not truncated[unknown].any()
        values = [known[rows[n]] for n in unknown.tolist()]
        memo.put(
            keys[unknown],
            np.array([value[0] for value in values], np.uint32),
            np.array([value[1] for value in values], np.bool_),
        )
    assert found_any > 0


def test_a_stack_is_forgotten_alone_and_all_are() -> None:
    memo, whose = StackMemo(), [process(7)]
    none = np.zeros(2, np.int64)
    keys = memo.keys(np.array([11, 22], np.uint64), whose, none)
    memo.put(keys, np.array([1, 2], np.uint32), np.array([False, True]))
    memo.forget(whose[0], 33)
    memo.forget(process(8), 22)
    assert memo.find(keys)[2].tolist() == []
    memo.forget(whose[0], 22)
    assert memo.find(keys)[2].tolist() == [1]
    memo.clear()
    keys = memo.keys(np.array([11, 22], np.uint64), whose, none)
    assert memo.find(keys)[2].tolist() == [0, 1]


def test_processes_are_bounded() -> None:
    memo = StackMemo()
    for pid in range(3 * MAX_PROCESSES):
        memo.keys(np.array([1], np.uint64), [process(pid)], np.zeros(1, np.int64))
    assert len(memo._salts) <= MAX_PROCESSES
