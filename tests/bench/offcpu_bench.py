"""What following waits costs: per switch of an untracked and a tracked process, and per wait in the sampler.

usage: python tests/bench/offcpu_bench.py [--rounds 5], as root

Two processes on one CPU hand a byte back and forth through pipes: each hand-over is a switch and a wake. The
baseline is the same without the programs; the settings take turns, and medians are compared. Time inside the
programs is the kernel's own count (bpf_stats). Then one thread sleeps 0.2 ms at a time with a threshold of 0,
so that every wait is walked, sent, joined and kept: the CPU time of the sampler for each. In the end a storm
of waits of eight processes, beside one that waits seldom: with a threshold that stays, and with the one that
is steered by what waits cost.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpuprof.bpf import syscalls
from gpuprof.bpf.programs import StackPrograms
from gpuprof.sampler import wait_budget
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.offcpu import OffCpu, Picks
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History

HANDOVERS = 40_000
PING_PONG = """
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <sys/wait.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
int main(int argc, char **argv) {
    long n = atol(argv[1]) / 2;
    int there[2], back[2];
    char byte = 0;
    cpu_set_t set;
    CPU_ZERO(&set); CPU_SET(0, &set); sched_setaffinity(0, sizeof set, &set);
    if (pipe(there) || pipe(back)) return 1;
    puts("ready"); fflush(stdout);
    if (read(0, &byte, 1) != 1) return 1;
    if (!fork()) {
        close(there[1]); close(back[0]);
        for (;;) if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1) _exit(0);
    }
    close(there[0]); close(back[1]);
    double begin = now();
    for (long i = 0; i < n; i++)
        if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1) return 1;
    printf("%.1f\\n", (now() - begin) / (2 * n)); fflush(stdout);
    close(there[1]); wait(NULL);
    return 0;
}
"""
STORM = (
    "import time, sys\nlength = float(sys.argv[1])\nprint('ready', flush=True)\nsys.stdin.readline()\n"
    "while True: time.sleep(length)"
)
SLEEPER = "import time, sys\nprint('ready', flush=True)\nsys.stdin.readline()\nwhile True: time.sleep(0.0002)"


def start(command: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def go(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


class Bench:
    """The programs, and a stack reader for them."""

    def __init__(self) -> None:
        hello = Hello(
            1, "bench", "", "", 1, time.monotonic_ns(), time.time_ns(), "", os.getpid(), 99, 0, True
        )
        self.history = History(hello)
        self.programs = StackPrograms.load(99)
        self.stacks = CpuStacks(self.history, self.programs, 99)
        self.stacks.start()
        self.programs.need("wait")
        while self.stacks.status().state == "starting":
            time.sleep(0.02)

    def hand_over(self, program: str, setting: str) -> dict[str, float]:
        """ns per hand-over, and ns in each program per run."""
        waits = self.programs.waits
        process = start([program, str(HANDOVERS)])
        if setting != "off":
            waits.start(1_000_000, track_all=False, own_pid=os.getpid())
        if setting == "tracked":
            self.stacks.follow(process.pid)
            waits.track(process.pid)
            time.sleep(0.3)
        before = {name: syscalls.program_run_time(self.programs.programs[name]) for name in NAMES}
        go(process)
        assert process.stdout is not None
        found = {"hand-over": float(process.stdout.readline())}
        for name in NAMES:
            spent, runs = syscalls.program_run_time(self.programs.programs[name])
            if runs > before[name][1]:
                found[name] = (spent - before[name][0]) / (runs - before[name][1])
        process.wait()
        waits.stop()
        return found

    def sleeper(self) -> tuple[float, float, float]:
        """(waits a second, CPU us of the reader per wait, ns in the programs per wait)."""
        process = start([sys.executable, "-c", SLEEPER])
        self.stacks.follow(process.pid)
        go(process)
        reader = self.stacks.waits
        source = OffCpu(lambda: self.stacks, lambda: True, set, Picks((process.pid,), threshold_ns=0))
        source.start()
        programs = self.programs.programs
        with Steering(False):
            time.sleep(2.5)  # until its stacks are known
            before = {name: syscalls.program_run_time(programs[name])[0] for name in NAMES}
            rows, began = reader.rows, time.monotonic()
            spent_s = self._spent(4)
        count = (reader.rows - rows) / 2  # each is blocked, then ready
        inside = sum(syscalls.program_run_time(programs[name])[0] - before[name] for name in NAMES)
        rate = count / (time.monotonic() - began)
        source.stop()
        process.kill()
        process.wait()
        return rate, spent_s / count * 1e6, inside / count

    def _spent(self, seconds: float) -> float:
        """CPU seconds of the reader of waits in that time."""
        reader, spent_s = self.stacks.waits, [0.0]
        take, tick = reader.take, reader.tick

        def timed_take(now_ns: int, least_ns: int | None = None) -> None:
            began = time.thread_time()
            take(now_ns, least_ns)
            spent_s[0] += time.thread_time() - began

        def timed_tick(now_ns: int, ids: Callable[[], FrameIds]) -> None:
            began = time.thread_time()
            tick(now_ns, ids)
            spent_s[0] += time.thread_time() - began

        reader.take, reader.tick = timed_take, timed_tick  # type: ignore[method-assign]
        time.sleep(seconds)
        reader.take, reader.tick = take, tick  # type: ignore[method-assign]
        return spent_s[0]

    def storm(self, steered: bool) -> tuple[float, float, float, float]:
        """(waits a second that were kept, share of a core of the reader, that of the whole process, least of
        the waits of the quiet process that are always kept, in ms).
        """
        noisy = [start([sys.executable, "-c", STORM, "0.0002"]) for _ in range(8)]
        quiet = start([sys.executable, "-c", STORM, "0.05"])
        source = OffCpu(
            lambda: self.stacks, lambda: True, set,
            Picks(tuple(process.pid for process in [*noisy, quiet]), threshold_ns=100_000),
        )  # fmt: skip
        for process in [*noisy, quiet]:
            self.stacks.follow(process.pid)
            go(process)
        reader = self.stacks.waits
        with Steering(steered):
            source.start()
            time.sleep(4)
            rows, cpu, began = reader.rows, time.process_time(), time.monotonic()
            spent_s = self._spent(5)
            age = time.monotonic() - began
        kept, whole = (reader.rows - rows) / 2 / age, (time.process_time() - cpu) / age
        least_ns = reader.programs.thresholds.get(quiet.pid, reader.programs.threshold_ns)
        source.stop()
        for process in [*noisy, quiet]:
            process.kill()
            process.wait()
        time.sleep(0.5)  # what is left is read
        return kept, spent_s / age, whole, least_ns / 1e6


class Steering:
    """Whether the threshold is steered by what waits cost, for a while."""

    def __init__(self, steered: bool) -> None:
        self._steered = steered
        self._bounds = wait_budget.TARGET_SHARE, wait_budget.MAX_WAITS_PER_S

    def __enter__(self) -> None:
        if not self._steered:
            wait_budget.TARGET_SHARE, wait_budget.MAX_WAITS_PER_S = 1e9, 10**9

    def __exit__(self, *_: object) -> None:
        wait_budget.TARGET_SHARE, wait_budget.MAX_WAITS_PER_S = self._bounds


NAMES = ("wait_switch", "wait_waking")
SETTINGS = ("off", "untracked", "tracked")


def measure(rounds: int) -> None:
    bench = Bench()
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/ping_pong"
        source = Path(folder) / "ping_pong.c"
        source.write_text(PING_PONG)
        subprocess.run(["gcc", "-O2", "-o", program, str(source)], check=True)
        found: dict[str, list[dict[str, float]]] = {setting: [] for setting in SETTINGS}
        for _ in range(rounds):
            for setting in SETTINGS:
                found[setting].append(bench.hand_over(program, setting))
    base = statistics.median(run["hand-over"] for run in found["off"])
    print(f"a hand-over through a pipe          {base:.0f} ns")
    for setting in SETTINGS[1:]:
        median = statistics.median(run["hand-over"] for run in found[setting])
        inside = [statistics.median(run[name] for run in found[setting] if name in run) for name in NAMES]
        print(f"  {setting:10} processes             {median:.0f} ns, {median / base:.2f} times")
        print(f"    inside the programs             {inside[0]:.0f} ns a switch, {inside[1]:.0f} ns a wake")
    not_walked = bench.programs.counters()["waits_not_chosen"] / (rounds * HANDOVERS)
    print(f"  switches that were not walked     {not_walked:.0%} of them")
    rate, us, ns = bench.sleeper()
    print(
        f"every wait of {rate:.0f} a second      {us:.1f} us of sampler CPU, {ns:.0f} ns in the programs each"
    )
    storms: dict[bool, list[tuple[float, float, float, float]]] = {False: [], True: []}
    for _ in range(max(rounds // 2, 1)):
        for steered, runs in storms.items():
            runs.append(bench.storm(steered))
    print("a storm of waits of eight processes, waits from 0.1 ms on always kept")
    shares = []
    for steered, runs in storms.items():
        kept, share, whole, least_ms = (statistics.median(column) for column in zip(*runs, strict=True))
        shares.append(share)
        print(
            f"  {'steered' if steered else 'as it is':10} {kept:6.0f} waits/s      "
            f"{share:.2%} of a core for waits, {whole:.2%} for the whole sampler; "
            f"of a quiet process those from {least_ms:.2g} ms on are kept"
        )
    print(f"  steered, of what it was           {shares[1] / shares[0]:.2f}")
    bench.stacks.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    if os.geteuid() != 0:
        sys.exit("offcpu_bench: eBPF needs root")
    if shutil.which("gcc") is None:
        sys.exit("offcpu_bench: no gcc")
    measure(parser.parse_args().rounds)
