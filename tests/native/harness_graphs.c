/* The harness's making of graphs:
 *
 *   graphs EACH_US       one after another in a thread of its own, so long between two; 0: it ends / how many there were
 *   instantiate NS       one call in a thread of its own, which takes so long
 *   capture STREAM / endcapture STREAM    the main thread begins, and ends, one; -1: a handle of nothing
 */
#define _GNU_SOURCE
#include "mock_gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static atomic_long each_us, made;
static pthread_t maker;

static void *make(void *unused)
{
    (void)unused;
    for (long us; (us = atomic_load(&each_us)) != 0; usleep((useconds_t)us)) {
        cuStreamBeginCapture_v2(NULL, 0);
        cuStreamEndCapture(NULL, NULL);
        cuGraphInstantiateWithFlags(NULL, NULL, 200000);
        cuGraphExecDestroy(NULL);
        atomic_fetch_add(&made, 1);
    }
    return NULL;
}

static void *instantiate(void *ns)
{
    cuGraphInstantiateWithFlags(NULL, NULL, (uint64_t)(uintptr_t)ns);
    return NULL;
}

int graphs_obey(const char *line, long *answer)
{
    long number;
    if (sscanf(line, "graphs %ld", &number) == 1) {
        long before = atomic_exchange(&each_us, number);
        if (before == 0 && number != 0)
            pthread_create(&maker, NULL, make, NULL);
        else if (before != 0 && number == 0)
            pthread_join(maker, NULL);
        *answer = atomic_load(&made);
    } else if (sscanf(line, "instantiate %ld", &number) == 1) {
        pthread_t thread;
        *answer = pthread_create(&thread, NULL, instantiate, (void *)number);
        pthread_detach(thread);
    } else if (sscanf(line, "capture %ld", &number) == 1) {
        *answer = cuStreamBeginCapture_v2((void *)number, 0);
    } else if (sscanf(line, "endcapture %ld", &number) == 1) {
        *answer = cuStreamEndCapture((void *)number, NULL);
    } else {
        return 0;
    }
    return 1;
}
