/* The records of the mock CUPTI: what stands in them (mock_cupti.h). */
#define _GNU_SOURCE
#include "mock_cupti.h"

int activity_each(int64_t n, uint64_t count) { return n > 0 && count % (uint64_t)n == 0; }

static void spoil(struct cupti_kernel *kernel, uint64_t nth)
{
    COUNT(bad)++;
    if (nth % 3 == 0)
        kernel->start = kernel->end = 0;
    else if (nth % 3 == 1)
        kernel->end = kernel->start - 200;
    else
        kernel->start += 1ull << 62, kernel->end += 1ull << 62;
}

static void fill_kernel(struct cupti_kernel *k, const struct mock_call *call, const struct mock_work *work, uint64_t start, uint64_t made,
                        const uint8_t *first)
{
    k->kind = ACTIVITY_CONCURRENT_KERNEL;
    k->start = start;
    k->end = start + work->ns;
    k->device = work->device;
    k->context = 1;
    k->stream = work->stream;
    k->correlation = call->correlation;
    k->name = work->name;
    k->graph = work->graph;
    k->graph_node = work->graph_node;
    if (activity_each(SETTING(bad_every), made))
        spoil(k, made / (uint64_t)SETTING(bad_every));
    struct cupti_kernel *previous = (void *)((uint8_t *)k - MOCK_KERNEL_BYTES);
    if (SETTING(backwards) && (uint8_t *)k > first && previous->kind == ACTIVITY_CONCURRENT_KERNEL) {
        struct cupti_kernel swap = *previous;
        *previous = *k;
        *k = swap;
    }
}

static void fill_memcpy(struct cupti_memcpy *m, const struct mock_call *call, const struct mock_work *work, uint64_t start)
{
    m->kind = ACTIVITY_MEMCPY;
    m->copy_kind = 1;
    m->bytes = work->bytes;
    m->start = start;
    m->end = start + work->ns;
    m->device = work->device;
    m->context = 1;
    m->stream = work->stream;
    m->correlation = call->correlation;
}

static void fill_memset(struct cupti_memset *m, const struct mock_call *call, const struct mock_work *work, uint64_t start)
{
    m->kind = ACTIVITY_MEMSET;
    m->bytes = work->bytes;
    m->start = start;
    m->end = start + work->ns;
    m->device = work->device;
    m->context = 1;
    m->stream = work->stream;
    m->correlation = call->correlation;
}

void activity_fill(void *record, const struct mock_call *call, const struct mock_work *work, uint64_t start, uint64_t made, const uint8_t *first)
{
    if (work->kind == MOCK_KERNEL)
        fill_kernel(record, call, work, start, made, first);
    else if (work->kind == MOCK_MEMCPY)
        fill_memcpy(record, call, work, start);
    else
        fill_memset(record, call, work, start);
}
