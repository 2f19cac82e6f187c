"""What NVML says, as values: sample clocks, sentinels, garbage of zombies."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprof.sampler import sample_clock
from gpuprof.sampler.gpu_processes import use_by_process
from gpuprof.sampler.nvml_device import ProcessSample
from gpuprof.sampler.nvml_values import Absent, milli, number, percent, string
from gpuprof.sampler.sample_clock import ClockInstant, SampleWindows

DATA = Path(__file__).parent / "data"
S = 10**9


def case(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


def test_stamps_of_either_clock_land_on_the_monotonic_clock() -> None:
    data = case("sample_clocks")
    at = ClockInstant(data["call"]["epoch_us"], data["call"]["boot_us"], data["call"]["mono_ns"])
    assert [at.mono_ns_of(s["timeStamp"]) for s in data["samples"]] == data["expected_mono_ns"]


@pytest.mark.parametrize("away", [(1,), (1, 4), (4,)])
def test_the_clocks_are_read_together_though_the_thread_is_off_the_cpu_meanwhile(
    away: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before these readings, of which each instant takes four, a second goes by."""
    now_ns, readings = 100 * S, 0

    def read(ahead_ns: int) -> int:
        nonlocal now_ns, readings
        now_ns += S if readings in away else 100
        readings += 1
        return now_ns + ahead_ns

    ahead_ns = {time.CLOCK_REALTIME: 10**18, time.CLOCK_BOOTTIME: 7 * S}
    clocks = SimpleNamespace(
        monotonic_ns=lambda: read(0), clock_gettime_ns=lambda clock: read(ahead_ns[clock]),
        CLOCK_REALTIME=time.CLOCK_REALTIME, CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
    )  # fmt: skip
    monkeypatch.setattr(sample_clock, "time", clocks)
    at = ClockInstant.now()
    assert abs(at.epoch_us * 1000 - 10**18 - at.mono_ns) < 2000
    assert abs(at.boot_us * 1000 - 7 * S - at.mono_ns) < 2000


def test_a_stamp_of_no_known_clock_has_no_time() -> None:
    at = ClockInstant(1_795_989_200_000_000, 84_325_475_413, 84_325_475_413_000)
    assert at.mono_ns_of(0) is None
    assert at.mono_ns_of(2**64 - 1) is None
    assert at.mono_ns_of(at.epoch_us + 5_000_000) is None


def test_suspended_time_between_boot_and_monotonic_does_not_move_a_stamp() -> None:
    at = ClockInstant(1_795_989_200_000_000, 90_000_000_000, 40_000 * S)
    assert at.mono_ns_of(90_000_000_000 - 250_000) == 40_000 * S - 250_000_000


def test_samples_become_windows_that_follow_each_other() -> None:
    at = ClockInstant(1_000_000_000_000_000, 100_000_000, 100 * S)
    windows = SampleWindows(began_ns=99 * S)
    stamps = [98_900_000, 99_100_000, 99_300_000]
    assert windows.advance([(stamp, 10.0) for stamp in reversed(stamps)], at) == [
        (99 * S, 99_100_000_000, 10.0),
        (99_100_000_000, 99_300_000_000, 10.0),
    ]
    # The driver hands the whole buffer out again, with one that is new: only that one counts.
    again = windows.advance([(stamp, 10.0) for stamp in [*stamps, 99_500_000]], at)
    assert again == [(99_300_000_000, 99_500_000_000, 10.0)]
    assert windows.last_seen_us == 99_500_000
    # Over the limit, and after a gap: no reading, and a window no longer than the longest period.
    assert windows.advance([(99_600_000, 4_294_967_295.0)], at) == []
    assert windows.invalid == 1


def test_a_gap_is_not_claimed() -> None:
    at = ClockInstant(1_000_000_000_000_000, 100_000_000, 100 * S)
    windows = SampleWindows(began_ns=0)
    windows.advance([(90_000_000, 1.0)], at)
    assert windows.advance([(99_000_000, 2.0)], at) == [(98 * S, 99 * S, 2.0)]


def garbage_window(listed: tuple[int, ...] = ()) -> Any:
    data = case("process_utilization_garbage")
    at = ClockInstant(data["now_us"], 84_325_475_413, 84_325_475_413_000)
    samples = [ProcessSample(s["pid"], s["timeStamp"], s["smUtil"], s["memUtil"]) for s in data["samples"]]
    alive = set(data["alive_pids"])
    window = use_by_process(
        samples, data["last_seen_us"], at.mono_ns - S, at, alive=alive.__contains__, listed=listed
    )
    return data, window


def test_garbage_of_dead_processes_is_no_reading() -> None:
    data, window = garbage_window()
    got = {
        str(pid): {"sm_percent": u.sm_percent, "mem_percent": u.mem_percent} for pid, u in window.uses.items()
    }
    assert got == data["expected"]
    assert window.last_seen_us == 1_795_989_199_700_000
    assert window.invalid == 23  # every garbage row; the stale one of a live process is merely old
    use = window.uses[4711]
    assert (use.start_ns, use.end_ns) == (84_324_475_413_000, 84_325_075_413_000)


def test_a_listed_process_without_a_sample_was_idle() -> None:
    _, window = garbage_window(listed=(4711, 4712, 5000))
    assert window.uses[5000].sm_percent == 0.0
    assert window.uses[4711].sm_percent == 35


def test_a_live_process_with_garbage_only_has_no_reading() -> None:
    at = ClockInstant(1_000_000_000_000_000, 100_000_000, 100 * S)
    samples = [ProcessSample(7, 99_900_000, 991, 4_294_967_295), ProcessSample(8, 99_900_000, 30, 101)]
    window = use_by_process(samples, 0, 99 * S, at, alive=lambda pid: True, listed=(7, 8))
    assert 7 not in window.uses
    assert (window.uses[8].sm_percent, window.uses[8].mem_percent) == (30.0, None)


@pytest.mark.parametrize(
    ("raw", "value"), [(0, 0), (17, 17), (2**32 - 1, None), (2**64 - 1, None), ("x", None)]
)
def test_sentinels_are_absent(raw: Any, value: int | None) -> None:
    assert number(raw) == (Absent.NOT_SUPPORTED if value is None else value)


def test_absence_passes_through_every_conversion() -> None:
    assert milli(Absent.FAILED) is Absent.FAILED
    assert percent(Absent.NO_PERMISSION) is Absent.NO_PERMISSION
    assert percent(101) is Absent.FAILED
    assert string("") is Absent.FAILED
    assert string(b"caf\xe9") != ""
