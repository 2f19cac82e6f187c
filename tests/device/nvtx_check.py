"""Records a training loop with NVTX ranges (torch.cuda.nvtx) and known counts, and prints a PASS or FAIL line
for each claim about ranges and work rates.

usage: python3 nvtx_check.py FOLDER      as root on a node with a GPU and PyTorch; about 30 s

FOLDER gets the recording and what the workload says of itself. `nvtx_check.py work TRUTH.json` is the
workload. Backward runs in autograd's own thread, which is in no range of the main thread: the check says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from claims import claim

STEPS, FAST, PAUSE_S = 401, 20_011, 0.01
KERNELS = {
    "sin_kernel": (3, ("train step", "forward")),
    "cos_kernel": (1, ("train step", "forward", "attention")),
    "exp_kernel": (5, ("train step", "optimizer")),
    "log_kernel": (2, ("train step",)),
}
RANGES = {
    ("train step",): STEPS,
    ("train step", "forward"): STEPS,
    ("train step", "forward", "attention"): STEPS,
    ("train step", "backward"): STEPS,
    ("train step", "optimizer"): STEPS,
    ("very fast",): FAST,
}


def work(truth: str) -> None:
    import torch
    from torch.cuda import nvtx

    x = torch.rand(1 << 16, device="cuda") + 1
    y, weight = torch.empty_like(x), torch.ones(1 << 16, device="cuda", requires_grad=True)
    (weight * x).sum().backward()
    torch.cuda.synchronize()
    ends = []
    began = time.monotonic_ns()
    for _ in range(STEPS):
        with nvtx.range("train step"):
            with nvtx.range("forward"):
                for _ in range(3):
                    torch.sin(x, out=y)
                nvtx.range_push("attention")
                torch.cos(x, out=y)
                nvtx.range_pop()
            with nvtx.range("backward"):
                (weight * x).sum().backward()
            with nvtx.range("optimizer"):
                for _ in range(5):
                    torch.exp(x, out=y)
            torch.log(x, out=y)
            torch.log(x, out=y)
            torch.cuda.synchronize()
            time.sleep(PAUSE_S)
        ends.append(time.monotonic_ns())
    began_fast = time.perf_counter_ns()
    for _ in range(FAST):
        nvtx.range_push("very fast")
        nvtx.range_pop()
    pair_ns = (time.perf_counter_ns() - began_fast) / FAST
    Path(truth).write_text(json.dumps({"began_ns": began, "ends_ns": ends, "pair_ns": pair_ns}))
    time.sleep(3)


def path_of(view: Any, stack: int) -> tuple[str, ...]:
    names: list[str] = []
    while stack:
        names.append(view.strings[int(view.name[view.frame_function[int(view.frame[stack])]])])
        stack = int(view.parent[stack])
    return tuple(names[::-1])


def check(file: str, truth: dict[str, Any]) -> None:
    from gpuprof.snapshots.file import read_snapshot
    from gpuprof.snapshots.frames import FrameKind, Query
    from gpuprof.snapshots.report import text_report
    from gpuprof.snapshots.tree import rows as rows_of
    from gpuprof.snapshots.work_frames import RateQuery, Wanted

    history = read_snapshot(file).history
    began, ends = truth["began_ns"], truth["ends_ns"]

    counts: Counter[tuple[str, ...]] = Counter()
    for view, rows in history.ranges_between(0, 1 << 62):
        for stack, weight in zip(
            rows.columns["stack"].tolist(), rows.columns["weight"].tolist(), strict=True
        ):
            counts[path_of(view, stack)] += int(weight)
    for path, count in RANGES.items():
        claim(counts[path] == count, f"ranges {' > '.join(path)}: {counts[path]} of {count}")
    others = set(counts) - set(RANGES)
    claim(all("train step" not in path for path in others), f"other ranges: {sorted(others)[:5]}")

    found: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in KERNELS}
    in_backward: Counter[tuple[str, ...]] = Counter()
    of_range: Counter[str] = Counter()
    for view, rows in history.gpu_work_between(began, 1 << 62):
        leaf = {}
        columns = (rows.columns[name].tolist() for name in ("stack", "nvtx", "start_ns", "end_ns"))
        for stack, nvtx, start, end in zip(*columns, strict=True):
            if start < began:
                continue
            name = leaf.setdefault(stack, path_of(view, stack)[-1])
            path = path_of(view, nvtx)
            if path:
                of_range[path[-1]] += end - start
            for wanted in KERNELS:
                if wanted in name:
                    found[wanted][path] += 1
            if "Mul" in name or "reduce" in name or "fill" in name.lower():
                in_backward[path] += 1
    for name, (per_step, path) in KERNELS.items():
        good = found[name] == {path: per_step * STEPS}
        claim(good, f"kernels {name}: {per_step * STEPS} in {' > '.join(path)}; found {dict(found[name])}")
    print(f"     kernels of forward and backward of autograd, by range: {dict(in_backward)}")

    tree = history.query(Query(1, "gpu", began, 1 << 62, min_fraction=0.0, by_range=True, max_nodes=100_000))
    ranges = {row.name: row for row in rows_of(tree) if row.kind == FrameKind.NVTX}
    for name in ("forward", "optimizer", "attention"):
        inner = of_range[name] + (of_range["attention"] if name == "forward" else 0)
        got = ranges[name].total_weight if name in ranges else 0
        close = abs(got - inner) <= 2
        claim(
            close,
            f"tree by range, {name}: {got / 1e6:.3f} ms of GPU time, its rows sum to {inner / 1e6:.3f} ms",
        )

    until = ends[-1] + 10**9
    asked = [Wanted("loop", "", began, until, 10**8), Wanted("range", "train step", began, until, 10**8)]
    answer = history.rates(RateQuery(1, asked))
    claim(answer.counted[0].name == "train step", f"the loop is {answer.counted[0].name!r}")
    claim(answer.counted[1].total == STEPS, f"work rate: {answer.counted[1].total:.0f} steps of {STEPS}")
    mine = (answer.of == 1) & (answer.count > 0)
    rate = answer.count[mine].sum() * 1e9 / (answer.end_ns - answer.start_ns)[mine].sum()
    true = (STEPS - 1) * 1e9 / (ends[-1] - ends[0])
    claim(abs(rate / true - 1) < 0.01, f"work rate {rate:.3f} /s, the program's own clock says {true:.3f} /s")
    launches = history.rates(RateQuery(2, [Wanted("launch", "work", began, until, 10**8)])).counted[0]
    least = STEPS * sum(per_step for per_step, _ in KERNELS.values())
    claim(launches.total >= least, f"launches under work(): {launches.total:.0f}, of the loop itself {least}")

    text = text_report(history, Query(1, "gpu", *history.span, by_range=True), rates=["train step"])
    claim("rate      train step" in text, next(line for line in text.splitlines() if line.startswith("rate")))
    gpu = next(one for one in history.status.sources if one.name == "gpu") if history.status else None
    claim(gpu is not None and not gpu.lost and not gpu.invalid, f"source: {gpu}")
    print(f"     a push and a pop of torch.cuda.nvtx took {truth['pair_ns']:.0f} ns while recording")


def main() -> int:
    if sys.argv[1] == "work":
        work(sys.argv[2])
        return 0
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    file, truth = folder / "nvtx.gpuprof", folder / "nvtx_truth.json"
    command = [sys.executable, "-I", "-c", "from gpuprof.tui.command import main; raise SystemExit(main())"]
    command += [
        "record",
        "--no-service",
        "-f",
        "-o",
        str(file),
        "--for",
        "50s",
        "--gpu-overhead",
        "off",
        "--",
    ]
    subprocess.run([*command, sys.executable, __file__, "work", str(truth)], check=False)
    check(str(file), json.loads(truth.read_text()))
    print("all good" if not claim.failed else f"{claim.failed} claims FAILED")
    return 1 if claim.failed else 0


if __name__ == "__main__":
    sys.exit(main())
