"""A program in CUDA C++ that runs tiny kernels and does nothing else, 500 and a synchronize at a time."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

KERNELS = 500  # of a step
# Answers "SECONDS FILE" with "µs a step" and a 0; the file gets end and length of each step (two doubles, s).
# With the argument "graph" a step replays a graph of 20 such kernels 25 times.
SOURCE = r"""
#include <cstdio>
#include <cstring>
#include <ctime>
__global__ void tiny_kernel(float *x) { x[threadIdx.x] += 1.0f; }
static double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
int main(int argc, char **)
{
    float *x;
    char line[4096], path[4000];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    cudaMalloc(&x, 256);
    cudaStreamCreate(&stream);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    for (int i = 0; i < 20; i++)
        tiny_kernel<<<1, 64, 0, stream>>>(x);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&ready, graph, 0);
    while (fgets(line, sizeof line, stdin)) {
        double seconds = 1;
        path[0] = 0;
        sscanf(line, "%lf %3999s", &seconds, path);
        FILE *file = path[0] ? fopen(path, "wb") : nullptr;
        double began = now(), last = began;
        long steps = 0;
        while (last - began < seconds) {
            for (int i = 0; i < (argc > 1 ? 25 : 500); i++)
                if (argc > 1)
                    cudaGraphLaunch(ready, stream);
                else
                    tiny_kernel<<<1, 64, 0, stream>>>(x);
            cudaDeviceSynchronize();
            double at = now(), row[2] = {at, at - last};
            if (file)
                fwrite(row, sizeof row, 1, file);
            last = at;
            steps++;
        }
        if (file)
            fclose(file);
        printf("%f 0\n", (last - began) / steps * 1e6);
        fflush(stdout);
    }
}
"""


def tight_loop(folder: str, *, graph: bool = False) -> list[str]:
    """The command of the program, which is compiled into `folder`."""
    source, program = Path(folder) / "tight.cu", f"{folder}/tight"
    source.write_text(SOURCE)
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    subprocess.run([nvcc, "-O2", "-o", program, str(source)], check=True)
    return [program, "graph"] if graph else [program]
