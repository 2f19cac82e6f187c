"""The tree of idle GPU time: planted causes, each told by hand-computed figures and named in the summary."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpuprof.snapshots import report
from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import NOT_SEEN, Query, WaitKind

LOAD = "main@train.py:88 _next_data@dataloader.py:733"
GAPS = ((100, 500), (600, 1000))  # in which the device of `told` is idle


def told(stories: Any, **more: Any) -> Any:
    """A device that thread 7 feeds, busy at 0..100, 500..600 and 1000..1100 ms, observed all the time."""
    story = stories.Story(names={7: "python3", **more.pop("names", {})}, **more)
    for start in (0, 500, 1000):
        story.gpu(7, "main@train.py:88 step@train.py:31 %gemm", start, start + 100)
    story.observed(0, 1100)
    return story


def ask(story: Any, **more: Any) -> Any:
    return story.ask("idle", 0, 1100, **more)


def test_loading_on_the_cpu(stories: Any) -> None:
    story = told(stories)
    for low, high in GAPS:
        story.on_cpu(7, LOAD, low, high)
    story.on_cpu(7, "main@train.py:88 step@train.py:31", 500, 600)  # not at idle instants
    story.on_cpu(9, "other", 0, 1100)  # does not feed the device
    tree = ask(story)
    assert stories.totals(tree) == {
        "": 800.0,
        "python3 (7)": 800.0,
        "python3 (7) / main": 800.0,
        "python3 (7) / main / _next_data": 800.0,
    }
    assert tree.summary == (
        "GPU 0 idle 0.8 of 1.1 s; 100 % in _next_data (dataloader.py:733), on CPU; "
        "2 such gaps in the last 1.10 s"
    )


def test_a_share_has_the_binomial_error(stories: Any) -> None:
    story = told(stories)
    story.on_cpu(7, f"{LOAD} decode@jpeg.py:5", 100, 500)
    story.on_cpu(7, f"{LOAD} decode@jpeg.py:5", 600, 720)
    story.on_cpu(7, "main@train.py:88 log@log.py:2", 720, 1000)
    tree = ask(story)
    rows = {row.name: row for row in trees.rows(tree)}
    share = 52 / 80
    assert rows["decode"].total_weight == pytest.approx(share * 800e6)
    assert rows["decode"].error == pytest.approx(800e6 * math.sqrt(share * (1 - share) / 80))
    assert rows["log"].error == pytest.approx(rows["decode"].error)
    assert rows["decode"].estimated
    assert not rows["all"].estimated
    assert "65 % in decode (jpeg.py:5), on CPU" in tree.summary


def test_loading_in_a_worker(stories: Any) -> None:
    story = told(stories, names={40: "pt_data_worker"}, process_of={40: 4})
    for low, high in GAPS:
        story.wait(7, f"{LOAD} get@/usr/lib/queue.py:9 :futex <futex> <woken_by_pt_data_worker> put", low,
                   high, waker=40)  # fmt: skip
        story.on_cpu(40, "work_loop transform@train.py:20", low, high)
    tree = ask(story)
    found = stories.totals(tree)
    below = "python3 (7) / main / _next_data / get / futex / futex / woken by pt_data_worker"
    assert found[f"{below} / meanwhile pt_data_worker / work_loop / transform"] == 800.0
    assert f"{below} / put" not in found  # what the worker did at the instant of waking says less
    assert found[""] == 800.0
    assert (
        "100 % in _next_data (dataloader.py:733), waiting (futex), "
        "woken by pt_data_worker in transform (train.py:20)"
    ) in tree.summary


def test_a_slow_disk(stories: Any) -> None:
    story = told(stories)
    story.wait(7, f"{LOAD} read@data.py:5 <disk_or_file_I/O>", 90, 520)
    story.wait(7, f"{LOAD} read@data.py:5 <disk_or_file_I/O>", 600, 900)
    story.on_cpu(7, f"{LOAD} parse@data.py:7", 900, 1000)
    tree = ask(story)
    found = stories.totals(tree)
    assert found["python3 (7) / main / _next_data / read / disk or file I/O"] == 700.0  # exact
    assert found["python3 (7) / main / _next_data / parse"] == 100.0
    rows = {row.name: row for row in trees.rows(tree)}
    assert rows["read"].error is None
    assert rows["parse"].estimated
    assert "88 % in read (data.py:5), waiting (disk or file I/O)" in tree.summary


def test_a_lock_that_another_thread_holds(stories: Any) -> None:
    story = told(stories, names={8: "saver"})
    for low, high in GAPS:
        story.wait(7, "main log@log.py:3 acquire@threading.py:1 <futex> <woken_by_saver> release", low, high,
                   waker=8)  # fmt: skip
        story.wait(8, "save@ckpt.py:9 <disk_or_file_I/O>", low, high - 100)
        story.on_cpu(8, "save@ckpt.py:9 crc@ckpt.py:30", high - 100, high)
    tree = ask(story)
    found = stories.totals(tree)
    held = "python3 (7) / main / log / acquire / futex / woken by saver / meanwhile saver / save"
    assert found[f"{held} / disk or file I/O"] == 600.0
    assert found[f"{held} / crc"] == 200.0
    assert "100 % in log (log.py:3), waiting (futex), woken by saver in save (ckpt.py:9)" in tree.summary


def test_a_thread_that_hogs_the_gil(stories: Any) -> None:
    story = told(stories, names={8: "hog"})
    wait = "main item@train.py:40 :PyEval_RestoreThread :take_gil :futex <futex>"
    for low, high in GAPS:
        for start in range(low, high, 10):  # times out after 5 ms, asks, and is woken after 5 more
            story.wait(7, wait, start, start + 5)
            story.wait(7, f"{wait} <woken_by_hog> spin@hog.py:5 :drop_gil", start + 5.01, start + 10, waker=8)
        story.on_cpu(8, "run spin@hog.py:5", low + 1, high)
    tree = ask(story)
    found = stories.totals(tree)
    spin = next(path for path in found if path.endswith("meanwhile hog / run / spin"))
    assert found[spin] == pytest.approx(800, rel=0.01)
    assert "in item (train.py:40), waiting for the GIL, woken by hog in spin (hog.py:5)" in tree.summary


def test_the_gil_without_any_waker(stories: Any) -> None:
    story = told(stories)
    for low, high in GAPS:
        story.wait(7, "main item@train.py:40 :PyEval_RestoreThread :futex <futex>", low, high)
        story.on_cpu(8, "run spin@hog.py:5", low, high)
    tree = ask(story)
    assert "waiting for the GIL, held up by other threads of python3 in spin (hog.py:5)" in tree.summary


def test_the_gil_with_the_frames_that_real_waits_have(stories: Any) -> None:
    story = told(stories, names={8: "hog"})
    kernel = " ".join(f":kernel_{number}" for number in range(9))
    wait = f"main item@train.py:40 :PyEval_RestoreThread :take_gil :pthread_cond_timedwait {kernel} <futex>"
    for low, high in GAPS:
        story.wait(7, f"{wait} <woken_by_a~timer>", low, high)
        story.on_cpu(8, "run spin@hog.py:5", low, high)
    assert "waiting for the GIL, held up by other threads of python3 in spin (hog.py:5)" in ask(story).summary


def test_synchronous_copies(stories: Any) -> None:
    """Copies are work, so that what is idle is the rest of the call, and the call is the wait, spinning or
    not."""
    story = told(stories)
    for low, high in GAPS:
        story.gpu(7, "main item@loss.py:3 %copy", low + 100, low + 200)
        story.wait(7, "main item@loss.py:3 :cudaMemcpy <cudaMemcpy>", low, high, kind=WaitKind.SYNC)
        story.wait(7, "main item@loss.py:3 :cudaMemcpy :ioctl <NVIDIA_ioctl>", low + 10, low + 60)
        story.on_cpu(7, "main item@loss.py:3 :cudaMemcpy :spin", low + 60, high)
    tree = ask(story)
    assert stories.totals(tree) == {
        "": 600.0,
        "python3 (7)": 600.0,
        "python3 (7) / main": 600.0,
        "python3 (7) / main / item": 600.0,
        "python3 (7) / main / item / cudaMemcpy": 600.0,
        "python3 (7) / main / item / cudaMemcpy / cudaMemcpy": 600.0,
    }
    assert "100 % in item (loss.py:3), waiting (cudaMemcpy)" in tree.summary


def test_launch_bound(stories: Any) -> None:
    story = stories.Story(names={7: "python3"})
    for number in range(500):
        story.gpu(7, "main loop@train.py:12 %add", number * 0.01, number * 0.01 + 0.003)
    story.observed(0, 5)
    story.on_cpu(7, "main loop@train.py:12 :cudaLaunchKernel :cuLaunchKernel", 0.0035, 2.0035, 0.01)
    story.on_cpu(7, "main loop@train.py:12 :at_add", 2.0035, 5, 0.01)
    tree = story.ask("idle", 0, 5)
    assert float(tree.total_weight[0]) == pytest.approx(3.5e6, rel=1e-4)
    assert "100 % in loop (train.py:12), launch-bound: launching kernels of 3.00 µs each" in tree.summary


def test_long_kernels_are_not_bound_by_their_launches(stories: Any) -> None:
    """A device that is busy nine tenths of the time waits for a launch now and then, and is not held up by
    what a launch costs.
    """
    story = stories.Story(names={7: "python3"})
    for number in range(500):
        story.gpu(7, "main loop@train.py:12 %gemm", number, number + 0.9)
    story.observed(0, 500)
    story.on_cpu(7, "main loop@train.py:12 :cudaLaunchKernel :cuLaunchKernel", 0.45, 500, 1)
    summary = story.ask("idle", 0, 500).summary
    assert "100 % in loop (train.py:12), on CPU, in launch calls" in summary
    assert "launch-bound" not in summary


def test_not_scheduled(stories: Any) -> None:
    story = told(stories)
    for low, high in GAPS:
        story.wait(7, f"{LOAD} <runnable,_not_scheduled>", low, high, kind=WaitKind.RUNNABLE)
    assert "in _next_data (dataloader.py:733), runnable, not scheduled" in ask(story).summary


def test_what_nothing_is_known_of(stories: Any) -> None:
    story = told(stories)
    tree = ask(story)
    assert stories.totals(tree) == {"": 800.0, "python3 (7)": 800.0, f"python3 (7) / {NOT_SEEN}": 800.0}
    assert tree.truncated == 0
    assert "100 % not seen on CPU or waiting (no waits are recorded)" in tree.summary
    # four samples do not stand for 800 ms of running where nobody would have seen it wait
    story.on_cpu(7, LOAD, 100, 140)
    found = stories.totals(ask(story))
    assert found["python3 (7) / main"] == pytest.approx(4 / 99 * 1000)
    assert found[f"python3 (7) / {NOT_SEEN}"] == pytest.approx(800 - 4 / 99 * 1000)
    # but they do for what is left of its waits
    story.wait(7, f"{LOAD} <futex>", 140, 500)
    found = stories.totals(ask(story))
    assert found["python3 (7) / main / _next_data / futex"] == 360.0
    assert found["python3 (7) / main"] == 800.0


def test_not_observed_and_communication_are_not_idle(stories: Any) -> None:
    story = stories.Story(names={7: "python3"})
    story.gpu(7, "main %gemm", 0, 100)
    story.gpu(7, "main !ring", 200, 400)
    story.observed(0, 600)
    story.observed(600, 1000, value=0.0)
    found = stories.totals(story.ask("idle", 0, 1000))
    assert found[""] == 300.0  # 100..200 and 400..600
    assert story.ask("gpu", 0, 1000).summary.startswith(
        "GPU 0: busy 300 ms, idle 300 ms, not observed 400 ms of 1.00 s; "
        "kernels sum 100 ms, communication 200 ms"
    )
    assert story.ask("idle", 200, 400).summary == (
        "GPU 0 was not seen idle; communication alone for 0.2 of 0.2 s, waiting for other devices"
    )
    assert story.ask("idle", 0, 1000).summary.startswith("GPU 0 idle 0.3 s, not observed 0.4 of 1.0 s; ")
    assert story.ask("idle", 600, 1000).summary == "GPU 0 was not observed in this range"
    assert story.ask("idle", 300, 700).summary.startswith("GPU 0 idle 0.2 s, not observed 0.1 of 0.4 s; ")
    assert story.ask("idle", 0, 100).summary == "GPU 0 was not seen idle"
    story.gpu(7, "main %gemm", 700, 800)
    assert story.ask("idle", 650, 850).summary == "GPU 0 was not seen idle, not observed for 0.1 of 0.2 s"
    story.gpu(7, "main %gemm", 300, 350)
    assert "GPU 0 communication alone for 0.1 of 1.0 s" in story.ask("idle", 0, 1000).summary


def test_two_threads_share_the_time_and_filters_take_parts(stories: Any) -> None:
    story = told(stories, names={8: "autograd"})
    story.gpu(8, "backward %gemm", 500, 600)
    for low, high in GAPS:
        story.on_cpu(7, LOAD, low, high)
        story.wait(8, ":thread_main <futex> <woken_by_python3>", low, high, waker=7)
    tree = ask(story, by_thread=True)
    found = stories.totals(tree)
    assert found[""] == found["python3 (7)"] == 800.0
    # what one of them waited for was the other's loading, which is one row
    assert found["python3 (7) / python3 (7) / main / _next_data"] == 800.0
    assert "100 % in _next_data (dataloader.py:733), on CPU" in tree.summary
    assert stories.totals(ask(story, tids=[7]))[""] == 800.0
    assert stories.totals(ask(story, tids=[8]))[""] == 0.0
    assert stories.totals(ask(story, pids=[99]))[""] == 0.0


def test_a_feeding_thread_that_waits_for_no_other_has_a_share_of_its_own(stories: Any) -> None:
    story = told(stories, names={8: "autograd"})
    story.gpu(8, "backward %gemm", 500, 600)
    for low, high in GAPS:
        story.on_cpu(7, LOAD, low, high)
        story.wait(8, ":thread_main <disk or file I/O>", low, high)
    found = stories.totals(ask(story, by_thread=True))
    assert found["python3 (7) / python3 (7)"] == found["python3 (7) / autograd (8)"] == 400.0
    assert stories.totals(ask(story, tids=[8]))[""] == 400.0


def test_the_devices_asked_for_add_up(stories: Any) -> None:
    story = told(stories)
    story.gpu(9, "main@train.py:88 %gemm", 0, 200, gpu="G1")
    story.observed(0, 1000, gpu="G1")
    for low, high in GAPS:
        story.on_cpu(7, LOAD, low, high)
    story.wait(9, "main@train.py:88 recv@net.py:4 <poll>", 0, 1100)
    both = ask(story)
    assert stories.totals(both)[""] == 1600.0
    first, second = both.summary.split(" · ")
    assert first.startswith("GPU 0 idle 0.8 of 1.1 s; 100 % in _next_data")
    assert second.startswith(
        "GPU 1 idle 0.8 s, not observed 0.1 of 1.1 s; 100 % in recv (net.py:4), waiting (poll)"
    )
    assert stories.totals(ask(story, gpus=["G1"]))[""] == 800.0
    with pytest.raises(GpuprofError, match="cannot be filtered by CPU"):
        ask(story, cpus=[0])


def test_a_range_without_work_asks_who_fed_the_device_before(stories: Any) -> None:
    story = told(stories)
    story.on_cpu(7, LOAD, 600, 1000)
    assert stories.totals(story.ask("idle", 700, 800))["python3 (7) / main / _next_data"] == 100.0
    assert "2 such gaps in the last 1.00 s" in story.ask("idle", 600, 1000).summary


def test_a_chain_of_wakers_and_one_that_goes_round(stories: Any) -> None:
    names = {8: "pin", 40: "feeder", 41: "pt_data_worker"}
    story = told(stories, names=names, process_of={40: 4, 41: 4})
    for low, high in GAPS:
        story.wait(7, f"{LOAD} <futex> <woken_by_pin>", low, high, waker=8)
        story.wait(8, "pin_loop@pin.py:1 <poll> <woken_by_feeder>", low, high, waker=40)
        story.wait(40, "_feed@multiprocessing/queues.py:2 <futex> <woken_by_pt_data_worker>", low, high,
                   waker=41)  # fmt: skip
        story.on_cpu(41, "loop transform@train.py:20", low, high)
    tree = ask(story)
    found = stories.totals(tree)
    end = (
        "woken by pin / meanwhile pin / pin_loop / poll / "
        "woken by feeder / meanwhile feeder / _feed / futex / "
        "woken by pt_data_worker / meanwhile pt_data_worker / loop / transform"
    )
    assert found[f"python3 (7) / main / _next_data / futex / {end}"] == 800.0
    assert found[""] == 800.0

    ring = told(stories, names={8: "b"})
    for low, high in GAPS:
        ring.wait(7, "main <futex> <woken_by_b>", low, high, waker=8)
        ring.wait(8, "b <futex> <woken_by_python3>", low, high, waker=7)
    found = stories.totals(ask(ring))
    assert (
        found["python3 (7) / main / futex / woken by b / meanwhile b / b / futex / woken by python3"] == 800
    )


def test_short_waits_that_were_sampled_stand_for_others(stories: Any) -> None:
    story = told(stories)
    story.wait(7, "main@train.py:88 a <futex>", 100, 101, weight=200)  # 200 ms
    story.on_cpu(7, LOAD, 100, 500)
    found = stories.totals(ask(story))
    assert found["python3 (7) / main / a / futex"] == 200.0
    assert found["python3 (7) / main / _next_data"] == pytest.approx(600.0)
    story.wait(7, "main@train.py:88 b <futex>", 102, 103, weight=3000)  # more than there is: they share it
    found = stories.totals(ask(story))
    assert found["python3 (7) / main / b / futex"] == pytest.approx(800 * 3000 / 3200)
    assert found[""] == 800.0


def test_rows_of_several_generations(stories: Any) -> None:
    story = told(stories)
    story.on_cpu(7, LOAD, 100, 500)
    story.history.roll_generation()
    story.wait(7, f"{LOAD} <futex>", 600, 1000)
    found = stories.totals(ask(story))
    assert found["python3 (7) / main / _next_data"] == 800.0
    assert found["python3 (7) / main / _next_data / futex"] == 400.0


def test_the_report_of_a_file(stories: Any, tmp_path: Path) -> None:
    story = told(stories)
    story.on_cpu(7, f"{LOAD} decode@jpeg.py:5", 100, 500)
    story.on_cpu(7, LOAD, 600, 1000)
    path = tmp_path / "x.gpuprof"
    with SnapshotWriter(path, story.history.hello) as writer:
        writer.write(story.history.frames_between(0, 1 << 60))
    history = read_snapshot(path).history
    query = Query(0, "idle", *history.span)
    text = report.text_report(history, query, columns=120)
    assert "800 ms of idle GPU time; each row with all that it was doing meanwhile" in text
    assert "~50.0 %" in text
    assert "±44.7 ms" in text
    assert "summary   GPU 0 idle 0.8 of 1.1 s; 50 % in decode (jpeg.py:5), on CPU" in text
    parsed = json.loads(report.json_text(report.json_report(history, query)))
    assert (parsed["tree"], parsed["unit"], parsed["total"]) == ("idle", "ns", 800_000_000)
    node = parsed["root"]["children"][0]["children"][0]
    assert node["estimated"] is True
    inner = node["children"][0]["children"][0]
    assert (inner["name"], inner["total"]) == ("decode", 400_000_000)
    assert inner["error_ns"] == pytest.approx(800e6 * math.sqrt(0.25 / 80), abs=1)


def test_without_gpu_time_nothing_is_claimed(stories: Any) -> None:
    with pytest.raises(GpuprofError, match="no GPU time was recorded here"):
        stories.Story().ask("idle", 0, 100)
