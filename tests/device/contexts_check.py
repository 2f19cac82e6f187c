"""Several CUDA contexts of one process: kernels of each are counted under the function that launched them,
over a context that is destroyed, one that comes later, and a device that is reset.

usage: python3 contexts_check.py FOLDER     as root on a node with a GPU and nvcc; 30 s
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Where they are launched, and how often.
COUNTS = {
    "launch_in_primary": 1009,
    "launch_in_second": 503,
    "launch_from_threads": 2 * 307,
    "launch_before_destroy": 211,
    "launch_in_third": 101,
    "launch_after_reset": 53,
}
SOURCE = r"""
#include <cstdio>
#include <cuda.h>
#include <pthread.h>
__global__ void known_kernel(float *x) { x[threadIdx.x] += 1.0f; }
#define FUNCTION(name) \
    __attribute__((noinline)) static void name(float *x, int count, cudaStream_t stream) \
    { \
        for (int i = 0; i < count; i++) \
            known_kernel<<<1, 64, 0, stream>>>(x); \
        asm volatile("# " #name); /* else functions that are alike become one */ \
    }
FUNCTION(launch_in_primary)
FUNCTION(launch_in_second)
FUNCTION(launch_from_threads)
FUNCTION(launch_before_destroy)
FUNCTION(launch_in_third)
FUNCTION(launch_after_reset)

struct place {
    CUcontext context;
    cudaStream_t stream;
    float *memory;
};

static place new_context(CUdevice device)
{
    place p;
#if CUDA_VERSION >= 13000
    cuCtxCreate(&p.context, nullptr, 0, device);
#else
    cuCtxCreate(&p.context, 0, device);
#endif
    cuCtxSetCurrent(p.context);
    cudaStreamCreate(&p.stream);
    cudaMalloc(&p.memory, 256);
    return p;
}

static void *in_a_thread(void *argument)
{
    place *p = (place *)argument;
    cuCtxSetCurrent(p->context);
    launch_from_threads(p->memory, 307, p->stream);
    cudaDeviceSynchronize();
    return nullptr;
}

int main()
{
    place primary = {};
    cudaMalloc(&primary.memory, 256);
    cudaStreamCreate(&primary.stream);
    cuCtxGetCurrent(&primary.context);
    known_kernel<<<1, 64>>>(primary.memory);
    cudaDeviceSynchronize();
    CUdevice device;
    cuCtxGetDevice(&device);
    launch_in_primary(primary.memory, 1009, primary.stream);
    place second = new_context(device);
    launch_in_second(second.memory, 503, second.stream);
    pthread_t threads[2];
    pthread_create(&threads[0], nullptr, in_a_thread, &primary);
    pthread_create(&threads[1], nullptr, in_a_thread, &second);
    for (pthread_t thread : threads)
        pthread_join(thread, nullptr);
    launch_before_destroy(second.memory, 211, second.stream);
    cudaDeviceSynchronize();
    cuCtxDestroy(second.context);
    place third = new_context(device);
    launch_in_third(third.memory, 101, third.stream);
    cudaDeviceSynchronize();
    cuCtxSetCurrent(primary.context);
    cudaDeviceSynchronize();
    cudaDeviceReset();
    cudaMalloc(&primary.memory, 256);
    launch_after_reset(primary.memory, 53, 0);
    cudaDeviceSynchronize();
    printf("%s\n", cudaGetErrorString(cudaGetLastError()));
}
"""


def main(folder: str) -> int:
    from gpu_oracle_check import all_work

    from gpuprof.snapshots.file import read_snapshot

    with tempfile.TemporaryDirectory() as scratch:
        source, program = Path(scratch) / "contexts.cu", f"{scratch}/contexts"
        source.write_text(SOURCE)
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        subprocess.run([nvcc, "-O2", "-o", program, str(source), "-lcuda", "-lpthread"], check=True)
        plain = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
        print(f"not recorded: {plain.stdout.strip()} {plain.stderr.strip()}, exit code {plain.returncode}")
        file = f"{folder}/contexts.gpuprof"
        command = ["gpuprof-tui", "record", "-f", "-o", file, "--gpu-overhead", "off", "--", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "no error" not in done.stdout:
        print(f"FAIL the workload, {done.returncode}: {done.stdout[-300:]} {done.stderr[-600:]}")
        return 1
    history = read_snapshot(file).history
    _, _, _, paths, label = all_work(history)
    status = next(source for source in history.status.sources if source.name == "gpu")
    found = dict.fromkeys(COUNTS, 0)
    for which in label:
        for name in COUNTS:
            found[name] += "known_kernel" in paths[which][-1] and any(name in frame for frame in paths[which])
    failed = 0
    for name, wanted in COUNTS.items():
        failed += found[name] != wanted
        print(f"{'PASS' if found[name] == wanted else 'FAIL'} {name}: {found[name]} of {wanted} kernels")
    lost = (status.lost, status.invalid, status.early, status.unmatched)
    failed += any(lost)
    print(f"{'FAIL' if any(lost) else 'PASS'} lost, invalid, early, unmatched: {lost}; {status.state}")
    return failed


if __name__ == "__main__":
    began = time.monotonic()
    code = main(sys.argv[1])
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(code)
