"""Which query is sent when; filters as people type them."""

from __future__ import annotations

import pytest

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.tui.tree_feed import LIVE_WINDOW_NS, MAX_LISTED, TreeFeed, parse_filter

SECOND = 10**9
NAMES = {4711: "python3", 4790: "pt_data_worker", 77: "kworker/3:1"}


@pytest.mark.parametrize(
    ("text", "pids", "tids", "cpus"),
    [
        ("", (), (), ()),
        ("pid 4711", (4711,), (), ()),
        ("4711", (4711,), (), ()),
        ("cpu 0", (), (), (0,)),
        ("cpu0", (), (), (0,)),
        ("cpu 0-3,8", (), (), (0, 1, 2, 3, 8)),
        ("pid=4711 cpu=0", (4711,), (), (0,)),
        ("thread 12 core 1", (), (12,), (1,)),
        ("python", (4711,), (), ()),
        ("DATA_work", (4790,), (), ()),
    ],
)
def test_filters(text: str, pids: tuple[int, ...], tids: tuple[int, ...], cpus: tuple[int, ...]) -> None:
    kept = parse_filter(text, NAMES)
    assert (kept.pids, kept.tids, kept.cpus) == (pids, tids, cpus)
    assert bool(kept) == bool(text)


@pytest.mark.parametrize(
    "text", ["cpu", "pid x", "cpu 3-1", "cpu 0-99999", "cpu -1", "nobody", "cpu 1-", "\x1b[31m"]
)
def test_what_is_no_filter_is_said(text: str) -> None:
    with pytest.raises(GpuprofError) as caught:
        parse_filter(text, NAMES)
    assert caught.value.message.isprintable()


def test_a_filter_by_name_has_the_processes_that_came_later() -> None:
    """The workers of the next epoch, and not one that got the pid of one of the first."""
    feed = TreeFeed()
    feed.set(filter=parse_filter("data_work", NAMES | {4791: "pt_data_worker"}))
    first = feed.due(0, 100 * SECOND, None)
    assert first is not None
    assert first.pids == [4790, 4791]
    assert feed.accept(first.id)
    feed.follow_names({4711: "python3", 4791: "sh", 4800: "pt_data_worker"})
    assert feed.due(SECOND, 101 * SECOND, None) is None  # no earlier than without them
    second = feed.due(2 * SECOND, 102 * SECOND, None)
    assert second is not None
    assert second.pids == [4790, 4800]  # 4790 has left the list, but may be in the range
    feed.follow_names({4711: "python3"})
    assert feed.filter.pids == (4790, 4800)
    feed.set(filter=parse_filter("pid 4711", NAMES))
    feed.follow_names({4711: "sh", 4712: "4711"})
    assert feed.filter.pids == (4711,)


def test_of_too_many_processes_those_that_came_last_are_kept() -> None:
    names = dict.fromkeys(range(1, 2001), "true")
    assert parse_filter("true", names).pids == tuple(range(2001 - MAX_LISTED, 2001))


def test_live_asks_for_the_last_seconds_every_two() -> None:
    feed = TreeFeed()
    first = feed.due(0, 100 * SECOND, None)
    assert first is not None
    assert (first.start_ns, first.end_ns) == (100 * SECOND - LIVE_WINDOW_NS, 100 * SECOND)
    assert feed.due(3 * SECOND, 103 * SECOND, None) is None  # one at a time
    assert feed.accept(first.id)
    assert feed.due(SECOND, 101 * SECOND, None) is None
    assert feed.due(2 * SECOND, 102 * SECOND, None) is not None


def test_a_pinned_range_is_asked_for_once_and_at_once() -> None:
    feed = TreeFeed()
    live = feed.due(0, 100 * SECOND, None)
    feed.pin(5, 10)
    pinned = feed.due(1, 100 * SECOND, None)
    assert live is not None
    assert pinned is not None
    assert (pinned.start_ns, pinned.end_ns) == (5, 10)
    assert not feed.accept(live.id)  # the late answer to the older question
    assert feed.accept(pinned.id)
    assert not feed.accept(pinned.id)
    assert feed.due(60 * SECOND, 160 * SECOND, None) is None
    feed.unpin()
    assert feed.due(60 * SECOND, 160 * SECOND, None) is not None


def test_a_filter_travels_with_the_query() -> None:
    feed = TreeFeed()
    feed.set(filter=parse_filter("pid 1 cpu 0", {}), by_thread=True)
    query = feed.due(0, SECOND, None)
    assert query is not None
    assert (query.pids, query.tids, query.cpus, query.by_thread) == ([1], [], [0], True)


def test_a_file_is_asked_for_whole_and_once() -> None:
    feed = TreeFeed()
    query = feed.due(0, 50, (10, 50))
    assert query is not None
    assert (query.start_ns, query.end_ns) == (10, 50)
    feed.accept(query.id)
    assert feed.due(100 * SECOND, 50, (10, 50)) is None


def test_pause_stops_the_live_tree_but_not_a_new_question() -> None:
    feed = TreeFeed()
    query = feed.due(0, SECOND, None)
    assert query is not None
    feed.accept(query.id)
    feed.paused = True
    again = feed.due(60 * SECOND, 60 * SECOND, None)
    assert again is not None  # the last seconds were not all in
    assert (again.start_ns, again.end_ns) == (query.start_ns, query.end_ns)
    feed.accept(again.id)
    assert feed.due(90 * SECOND, 90 * SECOND, None) is None
    feed.pin(1, 2)
    assert feed.due(90 * SECOND, 90 * SECOND, None) is not None


@pytest.mark.parametrize("held", ["pinned", "paused"])
def test_a_range_that_has_just_ended_is_asked_for_until_all_of_it_is_in(held: str) -> None:
    feed = TreeFeed()
    if held == "pinned":
        feed.pin(90 * SECOND, 100 * SECOND)
    asked = []
    for second in range(100, 130):
        query = feed.due(second * SECOND, second * SECOND, None)
        feed.paused = held == "paused"
        if query is not None:
            asked.append(second)
            assert query.end_ns == 100 * SECOND
            feed.accept(query.id)
    assert asked == [100, 102, 104, 106, 108]


def test_a_range_of_long_ago_is_asked_for_once() -> None:
    feed = TreeFeed()
    feed.pin(10 * SECOND, 20 * SECOND)
    query = feed.due(100 * SECOND, 100 * SECOND, None)
    assert query is not None
    feed.accept(query.id)
    assert feed.due(130 * SECOND, 130 * SECOND, None) is None


def test_a_lost_answer_is_asked_for_again_after_a_reconnect_and_after_a_while() -> None:
    feed = TreeFeed()
    assert feed.due(0, SECOND, None) is not None
    feed.restart()
    assert feed.due(1, SECOND, None) is not None
    assert feed.due(5 * SECOND, SECOND, None) is None
    assert feed.due(20 * SECOND, SECOND, None) is not None


def test_gpu_time_is_kept_to_a_device_and_not_to_cores() -> None:
    feed = TreeFeed()
    feed.set(filter=parse_filter("pid 1 cpu 0", {}))
    feed.show_gpu("GPU-a")
    cpu = feed.due(0, SECOND, None)
    assert cpu is not None
    assert (cpu.tree, cpu.gpus, cpu.cpus) == ("cpu", [], [0])
    assert not feed.without_cpus
    feed.set(tree="gpu")
    gpu = feed.due(1, SECOND, None)
    assert gpu is not None
    assert (gpu.tree, gpu.gpus, gpu.cpus, gpu.pids) == ("gpu", ["GPU-a"], [], [1])
    assert feed.without_cpus
    assert feed.accept(gpu.id)
    feed.show_gpu("GPU-a")
    assert feed.due(2, SECOND, (0, 10)) is None  # nothing new to ask
    feed.show_gpu(None)
    everything = feed.due(3, SECOND, (0, 10))
    assert everything is not None
    assert everything.gpus == []


def test_idle_time_has_devices_and_off_cpu_time_has_neither_devices_nor_cores() -> None:
    feed = TreeFeed()
    feed.set(filter=parse_filter("pid 1 cpu 0", {}))
    feed.show_gpu("GPU-a")
    for tree, gpus in (("idle", ["GPU-a"]), ("offcpu", [])):
        feed.set(tree=tree)
        query = feed.due(0, SECOND, None)
        assert query is not None
        assert (query.tree, query.gpus, query.cpus, query.pids) == (tree, gpus, [], [1])
        assert feed.without_cpus


def test_a_chosen_device_does_not_ask_for_the_cpu_tree_again() -> None:
    feed = TreeFeed()
    first = feed.due(0, SECOND, (0, 10))
    assert first is not None
    feed.accept(first.id)
    feed.show_gpu("GPU-a")
    assert feed.due(1, SECOND, (0, 10)) is None


@pytest.mark.parametrize(
    ("text", "example"), [("pid x", "pid 4711"), ("cpu", "cpu 0-3"), ("tid -1", "tid 4711")]
)
def test_a_bad_number_comes_with_a_sensible_example(text: str, example: str) -> None:
    with pytest.raises(GpuprofError) as caught:
        parse_filter(text, {})
    assert caught.value.hint == f"For example: {example}"


def test_a_paused_tree_that_is_asked_for_otherwise_stays_in_its_time() -> None:
    feed = TreeFeed()
    first = feed.due(0, 100 * SECOND, None)
    assert first is not None
    assert not first.internals
    assert feed.accept(first.id)
    feed.paused = True
    whole = feed.due(9 * SECOND, 109 * SECOND, None)
    assert whole is not None
    assert feed.accept(whole.id)
    assert feed.due(19 * SECOND, 119 * SECOND, None) is None
    feed.set(internals=True)
    again = feed.due(19 * SECOND, 119 * SECOND, None)
    assert again is not None
    assert again.internals
    assert (again.start_ns, again.end_ns) == (first.start_ns, first.end_ns)
    feed.pin(5, 10)
    feed.unpin()
    back = feed.due(20 * SECOND, 120 * SECOND, None)
    assert back is not None
    assert back.end_ns == 120 * SECOND
