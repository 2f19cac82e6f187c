"""What following waits costs: per switch of an untracked and a tracked process, and per wait in the sampler.

usage: python tests/bench/offcpu_bench.py [--rounds 5], as root

Two processes on one CPU hand a byte back and forth through pipes: each hand-over is a switch and a wake. The
baseline is the same without the programs; the settings take turns, and medians are compared. Time inside the
programs is the kernel's own count (bpf_stats). Then one thread sleeps 0.2 ms at a time with a threshold of 0,
so that every wait is walked, sent, joined and kept: the CPU time of the sampler for each.
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
        time.sleep(2.5)  # until its stacks are known
        spent_s = [0.0]
        tick = reader.tick

        def timed(now_ns: int, ids: Callable[[], FrameIds]) -> None:
            began = time.thread_time()
            tick(now_ns, ids)
            spent_s[0] += time.thread_time() - began

        programs = self.programs.programs
        before = {name: syscalls.program_run_time(programs[name])[0] for name in NAMES}
        rows, began = reader.rows, time.monotonic()
        reader.tick = timed  # type: ignore[method-assign]
        time.sleep(4)
        reader.tick = tick  # type: ignore[method-assign]
        count = (reader.rows - rows) / 2  # each is blocked, then ready
        inside = sum(syscalls.program_run_time(programs[name])[0] - before[name] for name in NAMES)
        rate = count / (time.monotonic() - began)
        source.stop()
        process.kill()
        process.wait()
        return rate, spent_s[0] / count * 1e6, inside / count


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
    bench.stacks.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    if os.geteuid() != 0:
        sys.exit("offcpu_bench: eBPF needs root")
    if shutil.which("gcc") is None:
        sys.exit("offcpu_bench: no gcc")
    measure(parser.parse_args().rounds)
