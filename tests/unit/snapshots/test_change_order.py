"""The order of last changes, before and after freezing."""

from __future__ import annotations

import pytest

from gpuprof.snapshots.change_order import ChangeOrder


def test_each_entry_is_where_it_changed_last() -> None:
    order = ChangeOrder()
    for version, item in enumerate([3, 1, 3, 2, 1], start=1):
        order.note(item, version)
    wanted = [(1, 5), (2, 4), (3, 3)]
    assert list(order.newest_first()) == wanted
    order.freeze()
    order.freeze()
    assert list(order.newest_first()) == wanted
    with pytest.raises(ValueError, match="frozen"):
        order.note(4, 6)
