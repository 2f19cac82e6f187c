"""Children by (parent, frame), against a dictionary."""

from __future__ import annotations

import random

from gpuprof.snapshots.child_table import ChildTable
from gpuprof.snapshots.tables import Tables


def test_a_table_is_a_dictionary() -> None:
    rng, table = random.Random(3), ChildTable()
    expected: dict[int, int] = {}
    for _ in range(20_000):
        key = rng.randrange(300) << 32 | rng.randrange(1 << rng.choice([3, 10, 32]))
        assert table.get(key) == expected.get(key, 0)
        if key not in expected:
            expected[key] = len(expected) + 1
            table.add(key, expected[key])
    assert len(table) == len(expected)
    assert all(table.get(key) == node for key, node in expected.items())
    assert table.nbytes < 60 * len(expected)


def test_keys_that_all_want_one_slot() -> None:
    inverse = pow(0x9E37_79B9_7F4A_7C15, -1, 1 << 64)
    keys = [n * inverse % (1 << 64) for n in range(1, 600)]  # the highest bits of their hashes are all 0
    table = ChildTable()
    for node, key in enumerate(keys, 1):
        table.add(key, node)
    assert [table.get(key) for key in keys] == list(range(1, 600))
    assert table.get(0) == 0


def test_bulk_and_single_interning_agree() -> None:
    """Stacks by whole sequences, of which most share their outer frames, and by single steps."""
    rng = random.Random(5)
    one, other = Tables(0), Tables(0)
    for tables in (one, other):
        function = tables.function("f", "", "", 1)  # type: ignore[arg-type]
        for line in range(50):
            tables.frame(function, line)
    for _ in range(3000):
        stem = [rng.randrange(3) for _ in range(rng.randrange(40))]
        frames = stem + [rng.randrange(50) for _ in range(rng.randrange(4))]
        node = 0
        for frame in frames:
            node = other.stacks.child(node, frame)
        assert one.stack(frames) == node
    assert one.view().parent.tolist() == other.view().parent.tolist()
    assert one.view().frame.tolist() == other.view().frame.tolist()
    assert one.view().depth.tolist() == other.view().depth.tolist()
