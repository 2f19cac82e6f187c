/* A CUDA program on the mock driver: kernels from two call paths in prime numbers, once the library records. With an argument: for ever,
 * launches from three paths, 2 : 5 : 11, each round with a synchronize of a millisecond. */
#define _GNU_SOURCE
#include "mock_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone, used))

static struct mock_function gemm = {"_Z7gemm_nnIfEvPKT_S2_PS0_iii", 700, 0}, add = {"add_bias", 300, 0};
static volatile int sink;

KEEP void forward(struct mock_function *f) { cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); sink++; }
KEEP void backward(struct mock_function *f) { cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); sink++; }

KEEP void path_2(void) { cuLaunchKernel(&gemm, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); sink++; }
KEEP void path_5(void) { cuLaunchKernel(&gemm, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); sink++; }
KEEP void path_11(void) { cuLaunchKernel(&gemm, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); sink++; }
KEEP void wait_for_all(void) { cuStreamSynchronize(NULL); sink++; }

KEEP void rounds(void)
{
    mock_cuda_wait(1000000);
    for (;;) {
        for (int i = 0; i < 2; i++) path_2();
        for (int i = 0; i < 5; i++) path_5();
        for (int i = 0; i < 11; i++) path_11();
        wait_for_all();
    }
}

int main(int argc, char **argv)
{
    (void)argv;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (cuInit(0) != 0)
        return 1;
    puts("ready");
    getchar();
    if (argc > 1)
        rounds();
    for (int i = 0; i < 211; i++) forward(&gemm);
    for (int i = 0; i < 103; i++) backward(&gemm);
    for (int i = 0; i < 47; i++) forward(&add);
    puts("done");
    getchar();
    return 0;
}
