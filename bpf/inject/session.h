/* What the parts of the injection library share: records.c writes what CUPTI hands over into the ring, inject.c decides when CUPTI is in
 * use. */
#ifndef GPUPROF_SESSION_H
#define GPUPROF_SESSION_H

#include "cupti_abi.h"
#include "ring.h"

#include <pthread.h>
#include <stdint.h>
#include <time.h>

struct session {
    struct cupti_api cupti;
    struct ring ring;
    pthread_mutex_t writer; /* guards the ring's writing side and the names; never held over a call that may wait for a lock of CUPTI's,
                             * since CUPTI calls back with its own locks held */
    uint32_t epoch;         /* attaches so far, atomic */
    int forked;             /* this is a forked child: no thread, no ring; atomic */
};

extern struct session session;

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CUPTI's requests for buffers, and the buffers that it has filled. */
void records_buffer_requested(uint8_t **buffer, size_t *size, size_t *max_records);
void records_buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

/* Writes how CUPTI's clock stands against CLOCK_MONOTONIC. */
void records_compare_clocks(void);

/* Notes the UUID of every device; 0 devices are noted while the driver is not initialised. */
void records_note_devices(void);

#endif
