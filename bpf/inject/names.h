/* Kernel names as small numbers. CUPTI gives a pointer per record; the text behind a pointer may change when a module is unloaded, so an entry
 * keeps its own copy and is compared by content. Bounded: past NAMES_MAX names every further one is the id NAME_TAIL. */
#ifndef GPUPROF_NAMES_H
#define GPUPROF_NAMES_H

#include "ring.h"

#include <stdint.h>

#define NAMES_MAX 8192u
#define NAME_BYTES_MAX 4096u
#define NAMES_TEXT_BYTES (4u << 20)
#define NAME_NONE 0u
#define NAME_TAIL NAMES_MAX

/* Sets `id` to the number of a name, NAME_NONE where it has none and NAME_TAIL where there are too many, after making sure that the ring has carried its text to the present
 * sampler and has room for a record after it. -1: no room. */
int names_id(struct ring *ring, const char *name, uint32_t epoch, uint32_t *id);

/* A new sampler listens, which has seen none of the texts: each is sent again with its next record. */
void names_forget_sent(void);

#endif
