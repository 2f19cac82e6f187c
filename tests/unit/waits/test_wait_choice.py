"""Which short waits are sent: the code of the kernel side, compiled for here, against what it promises."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

THRESHOLD_NS = 75_000_000
HARNESS = """
#include <stdint.h>
#include <stdlib.h>
typedef uint32_t u32;
typedef uint64_t u64;
#undef __always_inline
#define __always_inline inline
struct wait { u64 threshold_ns; u32 laid, point, next_point; };
static u64 state;
static u32 bpf_get_prandom_u32(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (u32)(state >> 32);
}
#include "wait_choice.bpf.h"
void choose(u64 seed, u64 threshold_ns, long n, const u64 *ns, u32 *times, u64 *bar_ns) {
    struct wait wait = {.threshold_ns = threshold_ns};
    state = seed;
    for (int i = 0; i < 4; i++)
        bpf_get_prandom_u32();
    begin_choice(&wait);
    for (long i = 0; i < n; i++) {
        bar_ns[i] = bar_of_choice(&wait);
        times[i] = points_in(&wait, ns[i]);
    }
}
"""


class Choice:
    """One thread after the other."""

    def __init__(self, folder: Path) -> None:
        (folder / "harness.c").write_text(HARNESS)
        bpf = Path(__file__).parents[3] / "bpf"
        command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared", f"-I{bpf}"]
        subprocess.run([*command, "-o", folder / "harness.so", folder / "harness.c"], check=True)
        self._choose = ctypes.CDLL(str(folder / "harness.so")).choose
        self._rng = np.random.default_rng(7)

    def times(self, ns: NDArray[np.uint64], threshold_ns: int = THRESHOLD_NS) -> NDArray[np.uint32]:
        """How often each of these waits of a new thread counts; 0: it is not sent."""
        times, bar_ns = np.zeros(len(ns), np.uint32), np.zeros(len(ns), np.uint64)
        seed = ctypes.c_uint64(int(self._rng.integers(1, 1 << 62)))
        pointers = [column.ctypes.data_as(ctypes.c_void_p) for column in (ns, times, bar_ns)]
        self._choose(seed, ctypes.c_uint64(threshold_ns), ctypes.c_long(len(ns)), *pointers)
        # Before it ends it is known whether it will be sent, to the nanosecond.
        assert np.all(ns[times > 0] >= bar_ns[times > 0])
        assert np.all(ns[times == 0] <= bar_ns[times == 0] + 1)
        assert np.all(bar_ns <= threshold_ns)
        return times


@pytest.fixture(scope="module")
def choice(tmp_path_factory: pytest.TempPathFactory) -> Choice:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    return Choice(tmp_path_factory.mktemp("choice"))


@pytest.mark.parametrize("threshold_ns", [1, 10_000, THRESHOLD_NS, (1 << 32) - 1])
def test_all_waits_of_a_thread_are_told_to_within_a_threshold(choice: Choice, threshold_ns: int) -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        ns = rng.integers(0, threshold_ns, int(rng.integers(1, 400))).astype(np.uint64)
        told = float(choice.times(ns, threshold_ns).sum()) * threshold_ns
        assert abs(told - float(ns.sum())) <= threshold_ns * 1.001 + len(ns)


def test_each_wait_counts_as_often_as_its_length_says(choice: Choice) -> None:
    ns = np.array([1_000_000, 60_000_000, 74_000_000, 20_000_000, 100_000, 70_000_000], np.uint64)
    runs = 20_000
    mean = np.mean([choice.times(ns) for _ in range(runs)], axis=0)
    wanted = ns / THRESHOLD_NS
    assert np.all(np.abs(mean - wanted) <= 5 * np.sqrt(wanted / runs) + 1e-9), (mean, wanted)


def test_turns_of_a_loop_that_fit_the_threshold_are_not_always_hit_at_the_same_wait(choice: Choice) -> None:
    turns = 2000
    ns = np.array([THRESHOLD_NS // 4, THRESHOLD_NS - THRESHOLD_NS // 4] * turns, np.uint64)
    times = choice.times(ns)
    assert int(times.sum()) == pytest.approx(turns, abs=1)
    assert times[::2].sum() / turns == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / turns) ** 0.5)
