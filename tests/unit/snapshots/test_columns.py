"""The log of rows: numbering, ranges, order, and dropping."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpuprof.snapshots.columns import GrowingColumn, RowLog

INSTANTS = {"time_ns": "<u8", "value": "<u4"}
WINDOWS = {"start_ns": "<u8", "end_ns": "<u8", "value": "<u4"}


def instants(times: list[int], first: int = 0) -> dict[str, np.ndarray]:
    return {
        "time_ns": np.array(times, np.uint64),
        "value": np.arange(first, first + len(times), dtype=np.uint32),
    }


def log_of_instants(block_rows: int = 8) -> RowLog:
    return RowLog(INSTANTS, start="time_ns", end="time_ns", block_rows=block_rows)


def test_a_view_of_a_column_does_not_change_when_the_column_grows() -> None:
    column = GrowingColumn("<u4", (7,))
    view = column.view()
    column.extend(range(1000))
    column.append(5)
    assert view.tolist() == [7]
    assert column.view().tolist() == [7, *range(1000), 5]
    with pytest.raises(IndexError):
        column[1002]


@pytest.mark.parametrize("jitter", [0, 30])
@pytest.mark.parametrize("block_rows", [1, 8, 4096])
def test_ranges_of_instants_are_those_of_a_plain_loop(jitter: int, block_rows: int) -> None:
    rng = random.Random(block_rows + jitter)
    log = log_of_instants(block_rows)
    times = [10 * number + rng.randrange(jitter + 1) for number in range(300)]
    at = 0
    while at < len(times):
        count = rng.randrange(1, 20)
        log.add(instants(times[at : at + count], at))
        at += count
    for _ in range(200):
        low = rng.randrange(-5, 3100)
        high = low + rng.randrange(0, 400)
        found = sorted(int(value) for rows in log.between(low, high) for value in rows.columns["value"])
        assert found == [number for number, time in enumerate(times) if low <= time < high]


def test_windows_count_where_they_overlap() -> None:
    log = RowLog(WINDOWS, start="start_ns", end="end_ns")
    starts, ends = [0, 10, 10, 25], [10, 20, 10, 30]
    log.add({"start_ns": np.array(starts), "end_ns": np.array(ends), "value": np.arange(4)})

    def found(low: int, high: int) -> list[int]:
        return [int(value) for rows in log.between(low, high) for value in rows.columns["value"]]

    assert found(0, 10) == [0]  # [10, 20) begins where the range ends
    assert found(10, 11) == [1, 2]  # [0, 10) ended where the range begins, the instant at 10 lies in it
    assert found(0, 100) == [0, 1, 2, 3]
    assert found(20, 25) == []


def test_rows_are_numbered_and_read_on_from_a_number() -> None:
    log = log_of_instants(8)
    tag = object()
    log.add(instants(list(range(5))))
    log.add(instants(list(range(5, 20)), 5), tag)
    seen: list[int] = []
    tags = []
    number = 0
    while (rows := log.since(number, 6)) is not None:
        assert rows.first == number
        assert len(rows) <= 6
        seen += rows.columns["value"].tolist()
        tags += [rows.tag] * len(rows)
        number = rows.first + len(rows)
    assert seen == list(range(20))
    assert tags == [None] * 5 + [tag] * 15
    assert log.since(20, 6) is None


def test_dropping_moves_the_first_number_and_the_bytes() -> None:
    log = log_of_instants(8)
    log.add(instants(list(range(100))))
    before = log.nbytes
    dropped = log.drop_oldest()
    assert log.first == dropped
    assert len(log) == 100 - dropped
    assert log.nbytes < before
    rows = log.since(0, 1000)
    assert rows is not None
    assert rows.first == dropped
    while len(log):
        log.drop_oldest()
    assert (log.nbytes, log.first, log.next, log.span()) == (0, 100, 100, None)


def test_a_view_of_rows_stays_when_the_block_grows_and_is_dropped() -> None:
    log = RowLog(INSTANTS, start="time_ns", end="time_ns")
    log.add(instants([1, 2, 3]))
    rows = next(log.between(0, 10))
    log.add(instants(list(range(3, 5000)), 3))
    log.drop_oldest()
    assert rows.columns["time_ns"].tolist() == [1, 2, 3]


def test_first_at() -> None:
    log = log_of_instants(4)
    log.add(instants(list(range(0, 100, 10))))
    assert [log.first_at(time) for time in (-1, 0, 1, 10, 35, 90, 91)] == [0, 0, 1, 1, 4, 9, 10]


def test_unequal_columns_are_refused() -> None:
    with pytest.raises(ValueError):
        log_of_instants().add({"time_ns": np.zeros(2, np.uint64), "value": np.zeros(1, np.uint32)})
