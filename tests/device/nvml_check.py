"""On a machine with an NVIDIA GPU: every metric beside nvidia-smi's value, and the cost of the reader.

Usage: python3 tests/device/nvml_check.py [SECONDS]        exit code 1 when a value differs from nvidia-smi's
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time

from gpuprof.sampler.gpu_reader import GpuReader
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History
from gpuprof.snapshots.metrics import METRICS

# metric -> (nvidia-smi field, factor to our unit, relative tolerance, absolute tolerance in our unit)
COMPARED = {
    "mem_used_bytes": ("memory.used", 1 << 20, 0.01, 64 << 20),
    "mem_reserved_bytes": ("memory.reserved", 1 << 20, 0.01, 2 << 20),
    "power_w": ("power.draw.average", 1, 0.25, 30),
    "power_instant_w": ("power.draw.instant", 1, 0.6, 100),
    "power_limit_w": ("enforced.power.limit", 1, 0, 0.1),
    "temp_c": ("temperature.gpu", 1, 0, 4),
    "clock_sm_mhz": ("clocks.sm", 1, 0.1, 50),
    "clock_mem_mhz": ("clocks.mem", 1, 0.01, 10),
    "util_gpu_percent": ("utilization.gpu", 1, 0.3, 20),
    "util_mem_percent": ("utilization.memory", 1, 0.3, 20),
}


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    host, cores = socket.gethostname(), os.cpu_count() or 1
    clocks = time.monotonic_ns(), time.time_ns()
    hello = Hello(
        1, host, "", os.uname().release, cores, *clocks, "check", os.getpid(), 0, 10, os.geteuid() == 0
    )
    history = History(hello)
    reader = GpuReader(history)
    began = time.monotonic()
    reader.start()
    while reader.status().state == "starting" and time.monotonic() - began < 60:
        time.sleep(0.05)
    print(f"state after {time.monotonic() - began:.2f} s: {reader.status()}")
    if reader.status().state not in ("ok", "degraded"):
        return 1
    time.sleep(2)
    cpu, start = time.process_time(), time.monotonic()
    threads = thread_times()
    time.sleep(seconds)
    cost = (time.process_time() - cpu) / (time.monotonic() - start)
    for name, used in sorted(thread_times().items()):
        share = (used - threads.get(name, 0.0)) / seconds
        if share > 0.0001:
            print(f"  thread {name:<16} {share:.2%} of a core")
    asked = nvidia_smi([field for field, *_ in COMPARED.values()])
    print(f"reader: {cost:.2%} of a core over {seconds:.0f} s")
    print(reader.status())
    began = time.monotonic()
    reader.stop()
    print(f"stop: {time.monotonic() - began:.3f} s")
    if history.gpus is None:
        return 1
    for facts in history.gpus.gpus:
        print(facts)
    return compare(history, asked)


def compare(history: History, asked: list[dict[str, str]]) -> int:
    """Print the medians beside nvidia-smi's values; 1 when one of them differs by more than its tolerance."""
    definitions, columns = history.readings_between(0, 1 << 63)
    wrong = 0
    assert history.gpus is not None
    uuids = [facts.uuid for facts in history.gpus.gpus]
    for number, definition in sorted(
        definitions.items(), key=lambda item: (str(item[1].gpu), item[1].metric)
    ):
        rows = columns["series"] == number
        values = columns["value"][rows]
        lengths = (columns["end_ns"][rows] - columns["start_ns"][rows]).astype(float) / 1e9
        if not len(values):
            continue
        median = statistics.median(values.tolist())
        who = f"{definition.gpu or ''} {definition.pid or ''}"
        window = f"{statistics.median(lengths.tolist()):.3f} s"
        line = f"{definition.metric:<24} n={len(values):<5} median={median:<14.6g} window={window:<8} {who}"
        field, factor, relative, absolute = COMPARED.get(definition.metric, ("", 1, 0.0, 0.0))
        if field and definition.gpu in uuids and (index := uuids.index(definition.gpu)) < len(asked):
            text = asked[index][field]
            try:
                theirs = float(text) * factor
            except ValueError:
                line += f"   nvidia-smi: {text} (nothing to compare)"
            else:
                recent = values[-min(len(values), 20) :].tolist()
                nearest = min(abs(theirs - value) for value in [*recent, statistics.median(recent)])
                good = nearest <= max(absolute, relative * abs(theirs))
                wrong += not good
                line += f"   nvidia-smi: {theirs:.6g} {'ok' if good else 'DIFFERS'}"
        print(line)
    seen = {definition.metric for definition in definitions.values()}
    print(
        "no readings:",
        ", ".join(
            m.name for m in METRICS.values() if m.subject.value.startswith("gpu") and m.name not in seen
        ),
    )
    return 1 if wrong else 0


def nvidia_smi(fields: list[str]) -> list[dict[str, str]]:
    """The values of `fields` of every GPU as nvidia-smi prints them; empty when it cannot be run."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"nvidia-smi cannot be asked: {error}")
        return []
    return [dict(zip(fields, (part.strip() for part in line.split(",")), strict=False)) for line in lines]


def thread_times() -> dict[str, float]:
    """CPU seconds by thread name of this process (Python names are the kernel's from 3.14 on; else by id)."""
    ticks = os.sysconf("SC_CLK_TCK")
    times = {}
    for tid in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{tid}/stat", "rb") as file:
            text = file.read()
        fields = text[text.rfind(b")") + 2 :].split()
        times[f"{text[text.find(b'(') + 1 : text.rfind(b')')].decode(errors='replace')} {tid}"] = (
            int(fields[11]) + int(fields[12])
        ) / ticks
    return times


if __name__ == "__main__":
    sys.exit(main())
