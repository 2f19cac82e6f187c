"""Kernels of other frameworks, each launched a known number of times from a function of a known name.

usage: python3 frameworks.py FOLDER [cupy|triton|jax|cuda|torchrun|mpirun ...]     as root, with a GPU; 2 min
       python3 frameworks.py --worker NAME                         the workload itself

Each is recorded with --gpu-overhead off, and its kernels are counted under the function that launched them,
from the first one on: it launches as soon as it can, and ends right after.
CUDA C++ is compiled by nvcc and has no frame pointers. XLA launches from threads of its own where it likes
to, so of JAX the kernels are counted wherever they hang, and the line says how many are under the function.
torchrun and mpirun start two processes that launch the same on one device.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COUNT = 1213
STEP = "launch_known_kernels"
SOURCE = """
#include <cstdio>
__global__ void known_kernel(float *x) { x[threadIdx.x] += 1.0f; }
__attribute__((noinline)) void launch_known_kernels(float *x, int count)
{
    for (int i = 0; i < count; i++)
        known_kernel<<<1, 64>>>(x);
}
int main()
{
    float *x;
    cudaMalloc(&x, 256);
    known_kernel<<<1, 64>>>(x);
    cudaDeviceSynchronize();
    launch_known_kernels(x, %d);
    cudaDeviceSynchronize();
    printf("%%s\\n", cudaGetErrorString(cudaGetLastError()));
}
"""


def worker(name: str) -> None:
    if name == "cupy":
        import cupy

        x = cupy.zeros(1024, cupy.float32)
        known = cupy.ElementwiseKernel("float32 a", "float32 b", "b = a + 1", "known_kernel")

        def once() -> None:
            known(x, x)

        done = cupy.cuda.runtime.deviceSynchronize
    elif name == "torch":
        import torch

        t = torch.zeros(1024, device="cuda")

        def once() -> None:
            t.erfinv_()

        done = torch.cuda.synchronize
    elif name == "triton":
        import torch
        from triton_kernel import known_kernel

        y = torch.zeros(1024, device="cuda")

        def once() -> None:
            known_kernel[(1,)](y, BLOCK=1024)

        done = torch.cuda.synchronize
    else:
        import jax

        z = jax.numpy.zeros(1024)
        f = jax.jit(lambda v: jax.numpy.sin(v) + 1)

        def once() -> None:
            f(z).block_until_ready()

        done = lambda: None  # noqa: E731

    def launch_known_kernels() -> None:
        for _ in range(COUNT):
            once()

    once()
    done()
    launch_known_kernels()
    done()


def command(name: str, folder: str) -> list[str]:
    if name == "torchrun":
        start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
        return [*start, sys.executable, __file__, "--worker", "torch"]
    if name == "mpirun":
        start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
        return [*start, sys.executable, __file__, "--worker", "torch"]
    if name != "cuda":
        return [sys.executable, __file__, "--worker", name]
    source = Path(folder) / "known.cu"
    source.write_text(SOURCE % COUNT)
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    program = str(Path(folder) / "known")
    subprocess.run([nvcc, "-O2", "-o", program, str(source)], check=True)
    return [program]


def check(name: str, file: str) -> bool:
    from gpu_oracle_check import all_work

    from gpuprof.snapshots.file import read_snapshot

    history = read_snapshot(file).history
    start, _, _, paths, label = all_work(history)
    status = next(source for source in history.status.sources if source.name == "gpu")
    processes = 2 if name in {"torchrun", "mpirun"} else 1
    wanted = {"jax": "", "torchrun": "erfinv", "mpirun": "erfinv"}.get(name, "known_kernel")
    known = [wanted in path[-1] for path in paths]
    under = [k and any(STEP in frame for frame in path) for k, path in zip(known, paths, strict=True)]
    kernels = sum(known[which] for which in label)
    below = sum(under[which] for which in label)
    lost = (status.lost, status.invalid, status.early, status.unmatched)
    count = COUNT * processes
    good = kernels >= count and not any(lost) and (name == "jax" or below == count)
    deepest = max((path for path, k in zip(paths, under, strict=True) if k), key=len, default=["none"])
    print(
        f"{'PASS' if good else 'FAIL'} {name}: {below} of {count} kernels under {STEP}, {kernels} in all of"
        f" {len(start)}; lost, invalid, early, unmatched: {lost}; {' > '.join(deepest[-9:])}"
    )
    return good


def main(folder: str, names: list[str]) -> int:
    bad = 0
    for name in names or ["cupy", "triton", "jax", "cuda", "torchrun", "mpirun"]:
        if name == "mpirun" and not shutil.which("mpirun"):
            print("SKIP mpirun: it is not installed")
            continue
        with tempfile.TemporaryDirectory() as scratch:
            file = f"{folder}/{name}.gpuprof"
            record = [sys.executable, "-c", "from gpuprof.tui.command import main; raise SystemExit(main())"]
            record += [
                "record",
                "--no-service",
                "-f",
                "-o",
                file,
                "--for",
                "40s",
                "--gpu-overhead",
                "off",
                "--",
            ]
            subprocess.run(record + command(name, scratch), check=False)
        bad += not check(name, file)
    return bad


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        worker(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1], sys.argv[2:]))
