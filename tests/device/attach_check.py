"""Attaches to CUDA programs that run already, on a real GPU: what was launched from then on is recorded, the
program computes on, and after the detach it is as fast as before and its own profiler works.

usage: python3 attach_check.py FOLDER      (as root, with torch; about two minutes)
Each workload prints what it is; a line per workload ends with "ok", or with what is wrong.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

WORKLOADS = ("loader", "threads", "spin")
KERNELS = {"sin": 1009, "cos": 503}
SETTLE_S = 3.0


def work(kind: str) -> None:
    """A program that launches small kernels without end; lines on its input ask it for more."""
    import torch

    x = torch.zeros(1024, device="cuda")
    done = [0] * 8
    stop = False

    def launch(place: int) -> None:
        y = torch.zeros(1024, device="cuda")
        while not stop:
            for _ in range(50):
                y.add_(1)
            torch.cuda.current_stream().synchronize()
            done[place] += 50
            if int(y[0]) != done[place]:
                print("wrong result", flush=True)
                sys.exit(3)

    if kind == "loader":
        loader = torch.utils.data.DataLoader(list(range(1 << 20)), num_workers=2)
        threading.Thread(target=lambda: [None for _ in loader], daemon=True).start()
    count = 8 if kind == "threads" else 1
    threads = [threading.Thread(target=launch, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "rate\n":
            before, began = sum(done), time.perf_counter()
            time.sleep(1.5)
            print((sum(done) - before) / (time.perf_counter() - began), flush=True)
        elif line == "known\n":
            for name, times in KERNELS.items():
                for _ in range(times):
                    getattr(x, name + "_")()
            torch.cuda.synchronize()
            print("done", flush=True)
        elif line == "profile\n":
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                for _ in range(97):
                    x.sin_()
                torch.cuda.synchronize()
            print(sum(e.count for e in profile.key_averages() if "sin" in e.key.lower()), flush=True)
    stop = True
    for thread in threads:
        thread.join()
    print("end", flush=True)


class Program:
    def __init__(self, kind: str) -> None:
        command = [sys.executable, __file__, "--work", kind]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.line() == "ready", kind
        time.sleep(SETTLE_S)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, word: str) -> str:
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)
        return self.line()

    def rate(self) -> float:
        return statistics.median(float(self.ask("rate")) for _ in range(3))


def recorded(file: Path, pid: int) -> dict[str, int]:
    """Kernel records of a process by the words of KERNELS in their names."""
    from gpuprof.snapshots.file import read_snapshot

    counts = dict.fromkeys(KERNELS, 0)
    for view, rows in read_snapshot(str(file)).history.gpu_work_between(0, 1 << 63):
        columns = rows.columns
        for thread, stack in zip(columns["thread"].tolist(), columns["stack"].tolist(), strict=True):
            if view.processes[view.threads[thread].process].pid != pid:
                continue
            name = view.strings[int(view.name[int(view.frame_function[int(view.frame[stack])])])].lower()
            for word in counts:
                counts[word] += f"{word}_kernel" in name or f"::{word}" in name
    return counts


def check(kind: str, folder: Path) -> bool:
    tool = shutil.which("gpuprof-tui") or str(Path(sys.executable).with_name("gpuprof-tui"))
    program, file, wrong = Program(kind), folder / f"{kind}.gpuprof", []
    before = program.rate()
    options = ["--no-service", "--force", "--gpu-overhead", "off"]
    recorder = subprocess.Popen(
        [tool, "record", "-o", file, *options, "--for", "90s"], stderr=subprocess.DEVNULL
    )
    time.sleep(6)
    began = time.perf_counter()
    attached = subprocess.run(
        [tool, "attach", "--no-screen", str(program.process.pid)], capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - began
    if "is being recorded" not in attached.stdout:
        wrong.append(f"attach: {attached.stdout}{attached.stderr}")
    during = program.rate()
    if program.ask("known") != "done":
        wrong.append("the program did not go on")
    time.sleep(2)
    recorder.terminate()
    recorder.wait(30)
    time.sleep(2)
    after = program.rate()
    counts = recorded(file, program.process.pid)
    if counts != KERNELS:
        wrong.append(f"recorded {counts} of {KERNELS}")
    profiled = program.ask("profile")
    if int(profiled) < 97:
        wrong.append(f"its own profiler saw {profiled} of 97")
    program.process.communicate(timeout=30)
    if program.process.returncode:
        wrong.append(f"exit code {program.process.returncode}")
    said = {
        "kind": kind,
        "attach_s": round(took, 2),
        "said": attached.stdout.strip(),
        "during_to_before": round(during / before, 3),
        "after_to_before": round(after / before, 3),
    }
    print(json.dumps(said), "; ".join(wrong) or "ok", flush=True)
    return not wrong


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work(sys.argv[2])
    else:
        results = [check(kind, Path(sys.argv[1])) for kind in WORKLOADS]
        sys.exit(not all(results))
