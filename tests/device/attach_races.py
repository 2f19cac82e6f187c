"""Attaching and detaching while a process starts, makes contexts, compiles, loads modules: it must live.

bursts: of graphs, with 1.2 s of launches between them, in which CUPTI may be let go of

usage: python3 attach_races.py [SECONDS [starts|expected|contexts|jit|modules|graphs|bursts|calls ...]]
       as root, with a GPU and nvcc, no sampler running; SECONDS (20) of each kind; expected: starts of
       processes that are told of a sampler

A listener comes and goes on the ring of the injection library at random, several times a second. A process
that dies is a FAIL, with the stack of its core where cuda-gdb is installed.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from gpuprof.sampler import gpu_ring
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.tui import run

AT_ONCE = 6  # processes
COMES_S = 0.4  # at most, from a process's start to the listener's coming
BUDGET_PPM, BUDGET_LASTS = 20_000, 4  # times as long as without
LASTS_S = 1.2  # a process of `starts`
COLD = 0.2  # of the starts
KINDS = ("starts", "expected", "contexts", "jit", "modules", "graphs", "bursts", "calls")
SOURCE = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <cuda.h>
#include <pthread.h>
#include <unistd.h>
__global__ void known_kernel(float *x) { x[threadIdx.x] += 1.0f; }

static double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double until;
static long turns;
static void must(bool good, const char *what)
{
    if (!good) {
        printf("%s failed\n", what);
        exit(3);
    }
}

static std::string ptx(unsigned number, int kernels)
{
    std::string text = ".version 7.0\n.target sm_70\n.address_size 64\n";
    char entry[1024];
    for (int k = 0; k < kernels; k++) {
        snprintf(entry, sizeof entry,
                 ".visible .entry k%d(.param .u64 p) { .reg .b64 %%rd<3>; .reg .f32 %%f<9>;\n"
                 "ld.param.u64 %%rd1, [p]; cvta.to.global.u64 %%rd2, %%rd1; ld.global.f32 %%f1, [%%rd2];\n"
                 "add.f32 %%f2, %%f1, 0f%08X; sin.approx.f32 %%f3, %%f2;\n"
                 "st.global.f32 [%%rd2], %%f3; ret; }\n",
                 k, 0x3f800000u + (number * 64 + k) % 0x700000u);
        text += entry;
    }
    return text;
}

static void load_and_launch(const void *image, CUdeviceptr memory, CUstream stream)
{
    CUmodule module;
    CUfunction function;
    must(cuModuleLoadData(&module, image) == CUDA_SUCCESS, "a module's load");
    must(cuModuleGetFunction(&function, module, "k0") == CUDA_SUCCESS, "a function's look-up");
    void *arguments[] = {&memory};
    must(!cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr), "a launch");
    must(cuStreamSynchronize(stream) == CUDA_SUCCESS, "a synchronize");
    must(cuModuleUnload(module) == CUDA_SUCCESS, "a module's unload");
}

struct work {
    const char *kind;
    const void *image;
    CUcontext context;
    unsigned number;
};

static void *thread(void *argument)
{
    work w = *(work *)argument;
    cuCtxSetCurrent(w.context);
    CUstream stream;
    CUdeviceptr memory;
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    cuMemAlloc(&memory, 1 << 20);
    static char host[1 << 20];
    for (unsigned turn = 0; now() < until; turn++) {
        if (!strcmp(w.kind, "jit")) {
            unsigned number = w.number * 100000 + turn + (unsigned)getpid() * 7;
            load_and_launch(ptx(number, 60).c_str(), memory, stream);
        } else if (!strcmp(w.kind, "modules")) {
            load_and_launch(w.image, memory, stream);
        } else if (!strcmp(w.kind, "bursts") && (long)(now() * 10) % 20 > 7) {
            known_kernel<<<1, 64, 0, stream>>>((float *)memory);
            must(!cudaStreamSynchronize(stream), "a synchronize");
        } else if (!strcmp(w.kind, "graphs") || !strcmp(w.kind, "bursts")) {
            cudaGraph_t graph;
            cudaGraphExec_t ready;
            must(!cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
            for (int i = 0; i < 3; i++)
                known_kernel<<<1, 64, 0, stream>>>((float *)memory);
            must(!cudaStreamEndCapture(stream, &graph) && !cudaGraphInstantiate(&ready, graph, 0), "a graph");
            must(!cudaGraphLaunch(ready, stream) && !cudaStreamSynchronize(stream), "a graph's launch");
            must(!cudaGraphExecDestroy(ready) && !cudaGraphDestroy(graph), "a graph's destroy");
        } else {
            cudaStream_t other;
            cudaEvent_t event;
            cudaGraph_t graph;
            cudaGraphExec_t ready;
            float *more;
            must(!cudaStreamCreate(&other) && !cudaEventCreate(&event), "a create");
            must(!cudaMalloc(&more, 1 << 16), "a malloc");
            known_kernel<<<1, 64, 0, other>>>(more);
            must(!cudaMemcpyAsync(host, more, 4096, cudaMemcpyDeviceToHost, other), "a copy");
            must(!cudaEventRecord(event, other) && !cudaStreamWaitEvent(stream, event, 0), "an event");
            must(!cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal), "a capture");
            known_kernel<<<1, 64, 0, other>>>(more);
            must(!cudaStreamEndCapture(other, &graph) && !cudaGraphInstantiate(&ready, graph, 0), "a graph");
            must(!cudaGraphLaunch(ready, other) && !cudaStreamSynchronize(other), "a graph's launch");
            cudaGraphExecDestroy(ready);
            cudaGraphDestroy(graph);
            must(!cudaFree(more) && !cudaEventDestroy(event) && !cudaStreamDestroy(other), "a destroy");
        }
        __atomic_fetch_add(&turns, 1, __ATOMIC_RELAXED);
    }
    return nullptr;
}

int main(int argc, char **argv)
{
    const char *kind = argv[1];
    until = now() + atof(argv[2]);
    if (!strcmp(kind, "starts") || !strcmp(kind, "expected") || !strcmp(kind, "contexts")) {
        do {
            float *x;
            must(!cudaMalloc(&x, 256), "a malloc");
            for (int i = 0; i < 20; i++) {
                known_kernel<<<1, 64>>>(x);
                must(!cudaDeviceSynchronize(), "a synchronize");
            }
            turns++;
            if (!strcmp(kind, "contexts"))
                must(!cudaDeviceReset(), "a reset");
            else
                usleep(50000);
        } while (now() < until);
    } else {
        float *x;
        cudaMalloc(&x, 256);
        CUcontext context;
        cuCtxGetCurrent(&context);
        CUlinkState link;
        void *image;
        size_t size;
        std::string text = ptx(1, 60);
        must(cuLinkCreate(0, nullptr, nullptr, &link) == CUDA_SUCCESS, "a link");
        void *data = (void *)text.c_str();
        must(!cuLinkAddData(link, CU_JIT_INPUT_PTX, data, text.size() + 1, "k", 0, nullptr, nullptr), "PTX");
        must(cuLinkComplete(link, &image, &size) == CUDA_SUCCESS, "a link's end");
        pthread_t threads[4];
        work works[4];
        int count = !strcmp(kind, "jit") ? 2 : 4;
        for (int i = 0; i < count; i++) {
            works[i] = {kind, image, context, (unsigned)i};
            pthread_create(&threads[i], nullptr, thread, &works[i]);
        }
        for (int i = 0; i < count; i++)
            pthread_join(threads[i], nullptr);
    }
    printf("%ld turns\n", turns);
    return 0;
}
"""


def ring_path(pid: int) -> str | None:
    """The ring of a process, once the library has made it."""
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(link).startswith(gpu_ring.NAME):
                return str(link)
    except OSError:
        return None
    return None


def come_and_go(process: subprocess.Popen[str], starts: bool, done: list[int]) -> None:
    """Listen to a process until it ends: with breaks, or from some instant of its start on. Every second one
    has a budget, so that recording pauses too.
    """
    if starts:
        time.sleep(random.uniform(0.0, COMES_S))
    while process.poll() is None:
        path = ring_path(process.pid)
        if path is None:
            time.sleep(0.001)
            continue
        budget = random.choice((0, BUDGET_PPM))
        try:
            ring = gpu_ring.GpuRing(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            ring.lock(budget)
        except (OSError, GpuprofError):  # it is being made, or is gone
            time.sleep(0.001)
            continue
        end = time.monotonic() + random.uniform(0.06, 0.25) * (BUDGET_LASTS if budget else 1)
        while process.poll() is None and (starts or time.monotonic() < end):
            ring.slots()
            time.sleep(0.01)
        done.append(ring.facts().records)
        ring.close()
        time.sleep(random.uniform(0.0, 0.15))


class Kind:
    """One kind of process, over and over until a time; what they said, and the records of each attach."""

    def __init__(self, kind: str, program: str, seconds: float) -> None:
        self.kind, self.program = kind, program
        self.starts = kind in {"starts", "expected"}
        self.end = time.monotonic() + seconds
        self.environ = dict(run.environment(os.environ), CUDA_CACHE_DISABLE="1")
        if kind == "expected":
            self.environ[run.EXPECT] = "1"
        self.records: list[int] = []
        self.said: list[str] = []

    @property
    def died(self) -> list[str]:
        return [words for words in self.said if not words.startswith("0 ")]

    def once(self, seconds: float) -> None:
        command = [self.program, self.kind, f"{seconds}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environ)
        listener = threading.Thread(target=come_and_go, args=(process, self.starts, self.records))
        listener.start()
        try:
            words = process.communicate(timeout=seconds + 60)[0].strip()
        except subprocess.TimeoutExpired:
            process.kill()
            words = "hangs"
        listener.join()
        self.said.append(f"{process.returncode} {words}")

    def over_and_over(self) -> None:
        while (left := self.end - time.monotonic()) > 0 and len(self.died) < 5:
            if (
                self.starts and random.random() < COLD
            ):  # its libraries come from the disk, and all takes longer
                Path("/proc/sys/vm/drop_caches").write_text("3")
            self.once(LASTS_S if self.starts else max(left, 1.0))


def core_stack(program: str, folder: str) -> None:
    cores = sorted(Path(folder).glob("core.*"))
    gdb = shutil.which("cuda-gdb") or "/usr/local/cuda/bin/cuda-gdb"
    if not cores or not Path(gdb).exists():
        return
    ask = [gdb, "--batch", "-ex", "bt 24", "-ex", "x/3i $pc", "-ex", "thread apply all bt 12"]
    found = subprocess.run(
        [*ask, program, str(cores[0])], capture_output=True, text=True, timeout=90, check=False
    )
    lines = [line[:120] for line in found.stdout.splitlines() if line.strip() and "New LWP" not in line]
    print("\n".join(f"    {line}" for line in lines)[:7000])
    for core in cores:
        core.unlink()


def main(seconds: float, kinds: list[str]) -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "races.cu", f"{folder}/races"
        source.write_text(SOURCE)
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        subprocess.run([nvcc, "-O1", "-g", "-o", program, str(source), "-lcuda", "-lpthread"], check=True)
        Path("/proc/sys/kernel/core_pattern").write_text(f"{folder}/core.%p")
        resource.setrlimit(resource.RLIMIT_CORE, (1 << 32, 1 << 32))
        for name in kinds:
            kind = Kind(name, program, seconds)
            many = [threading.Thread(target=kind.over_and_over) for _ in range(AT_ONCE)]
            for thread in many:
                thread.start()
            for thread in many:
                thread.join()
            core_stack(program, folder)
            failed += bool(kind.died)
            counts = f"{len(kind.said)} processes, {len(kind.records)} attaches"
            counts += f", {sum(number > 0 for number in kind.records)} with records"
            verdict = "FAIL" if kind.died else "PASS"
            print(f"{verdict} {name}: {counts}, {len(kind.died)} died {kind.died}", flush=True)
    return failed


if __name__ == "__main__":
    length = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    sys.exit(main(length, sys.argv[2:] or list(KINDS)))
