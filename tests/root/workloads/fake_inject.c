/* Plays the injection library: the real ring and a probe function with the same nop, and records made up by the caller, on a
 * clock of its own. Built with bpf/inject/ring.c as libgpuprof_inject.so. */
#define _GNU_SOURCE
#include "ring.h"

#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define CLOCK_AHEAD 1700000000000000000ull /* of the made-up CUPTI clock against CLOCK_MONOTONIC */

static struct ring ring = {.fd = -1};
static uint32_t correlation;

EXPORT __attribute__((naked, noinline)) void gpuprof_launch(uint64_t id, uint64_t enter_ns, uint64_t epoch, uint64_t weight)
{
    (void)id, (void)enter_ns, (void)epoch, (void)weight;
    __asm__ volatile(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n\tret");
}

EXPORT uint64_t fake_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

EXPORT int fake_start(void) { return ring_create(&ring); }
EXPORT int fake_has_listener(void) { return ring_has_listener(&ring); }
EXPORT uint64_t fake_dropped(void) { return ring.header->dropped; }
EXPORT uint32_t fake_last(void) { return correlation; }
EXPORT int fake_fd(void) { return ring.fd; }

static void fake_name(uint32_t id, const char *name)
{
    ring_send_text(&ring, SLOT_NAME, 1, id, 0, name, (uint32_t)strlen(name));
}

EXPORT void fake_attach(void)
{
    ring.header->epoch = 1;
    ring.header->devices = 1;
    for (int i = 0; i < 16; i++)
        ring.header->uuid[0][i] = (uint8_t)(i + 1);
    struct ring_slot *slot = ring_next(&ring);
    memset(slot, 0, sizeof *slot);
    slot->kind = SLOT_CLOCK;
    slot->epoch = 1;
    slot->clock.mono_ns = fake_now();
    slot->clock.cupti_ns = slot->clock.mono_ns + CLOCK_AHEAD;
    slot->clock.width_ns = 70;
    fake_name(1, "_Z7gemm_nnIfEvPKT_S2_PS0_iii");
    fake_name(2, "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_");
    ring_publish(&ring);
    ring_say(&ring, RING_RECORDING, "");
}

/* What happens at one launch: the probe at its exit, and later the record. */
EXPORT __attribute__((noinline)) void fake_launch_api(uint32_t name, uint64_t duration_ns, int with_record)
{
    uint64_t enter = fake_now();
    correlation++;
    gpuprof_launch(correlation, enter, 1, 1);
    struct ring_slot *slot = with_record ? ring_next(&ring) : NULL;
    if (!slot)
        return;
    memset(slot, 0, sizeof *slot);
    slot->kind = name ? SLOT_KERNEL : SLOT_MEMCPY;
    slot->flags = name ? 0 : 1;
    slot->epoch = 1;
    slot->work.start = enter + 1 + CLOCK_AHEAD;
    slot->work.end = slot->work.start + duration_ns;
    slot->work.correlation = correlation;
    slot->work.stream = 7;
    slot->work.name = name;
    ring_publish(&ring);
}
