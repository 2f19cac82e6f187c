"""The demo workload: random matrices are made and multiplied on the GPU, between phases that load data.

usage: python3 demo_matmul.py SECONDS

Needs cuda-python (cuda.bindings) and a GPU; the kernels are compiled by NVRTC. While `load_data` parses text
in plain Python the GPU is idle, which is what the monitor is to show.
"""

from __future__ import annotations

import sys
import time
from ctypes import c_float, c_int, c_uint, c_void_p, sizeof

from cuda.bindings import driver
from nvrtc_kernels import Gpu, check

SOURCE = r"""
extern "C" __global__ void fill_random(float *out, int n, unsigned seed)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * n) {
        unsigned x = seed + i * 747796405u;
        x = ((x >> ((x >> 28) + 4)) ^ x) * 277803737u;
        out[i] = (x >> 8) * (1.0f / 16777216.0f);
    }
}

extern "C" __global__ void matmul_naive(const float *a, const float *b, float *c, int n)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < n && column < n) {
        float sum = 0;
        for (int k = 0; k < n; k++)
            sum += a[row * n + k] * b[k * n + column];
        c[row * n + column] = sum;
    }
}
"""
N = 2048


class Work(Gpu):
    """The two kernels and three matrices of N by N floats."""

    def __init__(self) -> None:
        super().__init__(SOURCE, ("fill_random", "matmul_naive"))
        self.fill, self.matmul = self.functions
        self.matrices = [check(driver.cuMemAlloc(N * N * sizeof(c_float))) for _ in range(3)]


def generate_random_matrix(gpu: Work, which: int, seed: int) -> None:
    out = (int(gpu.matrices[which]), c_void_p)
    gpu.launch(gpu.fill, (N * N // 256, 1), (256, 1), out, (N, c_int), (seed, c_uint))


def matmul_naive(gpu: Work) -> None:
    pointers = [(int(matrix), c_void_p) for matrix in gpu.matrices]
    gpu.launch(gpu.matmul, (N // 16, N // 16), (16, 16), *pointers, (N, c_int))


def parse_line(line: str) -> float:
    return sum(float(word) for word in line.split(","))


def load_data(lines: int) -> float:
    text = ",".join(str(i * 0.37) for i in range(200))
    return sum(parse_line(text) for _ in range(lines))


def compute_step(gpu: Work, step: int) -> None:
    generate_random_matrix(gpu, 0, 2 * step)
    generate_random_matrix(gpu, 1, 2 * step + 1)
    for _ in range(60):
        matmul_naive(gpu)
    gpu.synchronize()


def main(seconds: float) -> None:
    gpu = Work()
    began = time.monotonic()
    step = 0
    while time.monotonic() - began < seconds:
        load_data(20_000)
        compute_step(gpu, step)
        step += 1
    print(f"{step} steps", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
