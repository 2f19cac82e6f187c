"""A program that runs tiny kernels and does nothing else, 500 and a synchronize at a time: in CUDA C++, or
on the mock driver of tests/native.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

KERNELS = 500  # of a step
COLUMNS = 3  # of a step in the file
NATIVE = Path(__file__).resolve().parents[1] / "native"
# Answers "SECONDS FILE" with "µs a step" and a 0; the file gets end, length and CPU time of each step
# (doubles, s). Answers "where" with the address of the function that launches. Fewer than 0 seconds are
# those of CPU time. "ever": the same without an end or an answer, and without looking at the clock. With
# the argument "graph" a step replays a graph of 20 such kernels 25 times. On the mock driver (-DMOCK) a
# launch does nothing by itself: before it the thread works for WORK turns.
SOURCE = r"""
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <sys/prctl.h>
#ifdef MOCK
extern "C" {
#include "mock_gpu.h"
}
static mock_function kernel = {"tiny_kernel", 500, 0};
static mock_graph ready = {&kernel, 20, 9};
static volatile unsigned long long seed = 1;
static void prepare() { cuInit(0); }
static void work()
{
    unsigned long long x = seed;
    for (int i = 0; i < WORK; i++)
        x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    seed = x;
}
static void launch_graph() { cuGraphLaunch(&ready, nullptr); }
static void launch_kernel() { cuLaunchKernel(&kernel, 1, 1, 1, 64, 1, 1, 0, nullptr, nullptr, nullptr); }
static void synchronize() { cuCtxSynchronize(); }
#else
__global__ void tiny_kernel(float *x) { x[threadIdx.x] += 1.0f; }
static float *x;
static cudaStream_t stream;
static cudaGraphExec_t ready;
static void prepare()
{
    cudaGraph_t graph;
    cudaMalloc(&x, 256);
    cudaStreamCreate(&stream);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    for (int i = 0; i < 20; i++)
        tiny_kernel<<<1, 64, 0, stream>>>(x);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&ready, graph, 0);
}
static void work() {}
static void launch_graph() { cudaGraphLaunch(ready, stream); }
static void launch_kernel() { tiny_kernel<<<1, 64, 0, stream>>>(x); }
static void synchronize() { cudaDeviceSynchronize(); }
#endif
static __attribute__((noinline)) void launch(bool graph)
{
    work();
    if (graph)
        launch_graph();
    else
        launch_kernel();
}
static double now(clockid_t clock)
{
    timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
int main(int argc, char **)
{
    char line[4096], path[4000];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prepare();
    while (fgets(line, sizeof line, stdin)) {
        double seconds = 1;
        path[0] = 0;
        if (strncmp(line, "where", 5) == 0) {
            printf("%lu\n", (unsigned long)&launch);
            fflush(stdout);
            continue;
        }
        while (strncmp(line, "ever", 4) == 0) {
            for (int i = 0; i < (argc > 1 ? 25 : 500); i++)
                launch(argc > 1);
            synchronize();
        }
        sscanf(line, "%lf %3999s", &seconds, path);
        FILE *file = path[0] ? fopen(path, "wb") : nullptr;
        double began = now(CLOCK_MONOTONIC), last = began, used = now(CLOCK_THREAD_CPUTIME_ID);
        double end = seconds < 0 ? used - seconds : began + seconds;
        long steps = 0;
        while ((seconds < 0 ? used : last) < end) {
            for (int i = 0; i < (argc > 1 ? 25 : 500); i++)
                launch(argc > 1);
            synchronize();
            double at = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
            double row[3] = {at, at - last, cpu - used};
            if (file)
                fwrite(row, sizeof row, 1, file);
            last = at;
            used = cpu;
            steps++;
        }
        if (file)
            fclose(file);
        printf("%f 0\n", (last - began) / steps * 1e6);
        fflush(stdout);
    }
}
"""


def tight_loop(folder: str, *, graph: bool = False, mock: str = "", work: int = 800) -> list[str]:
    """The command of the program, which is compiled into `folder`.

    `mock`: the folder of a mock driver (injected.build), which takes the place of CUDA; a launch then works
    for `work` turns of some 1.3 ns each.
    """
    source, program = Path(folder) / "tight.cu", f"{folder}/tight"
    source.write_text(SOURCE)
    if mock:
        compiler = ["g++", "-x", "c++", "-DMOCK", f"-DWORK={work}", f"-I{NATIVE}"]
        after = ["-x", "none", f"{mock}/libcuda.so.1", f"-Wl,-rpath,{mock}"]
    else:
        compiler, after = [shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"], []
    subprocess.run([*compiler, "-O2", "-o", program, str(source), *after], check=True)
    return [program, "graph"] if graph else [program]
