/* Kernel names as small numbers. CUPTI gives a pointer per record; the text behind a pointer may change when a module is unloaded, so an entry
 * keeps its own copy and is compared by content. Bounded: past NAMES_MAX names every further one is the id NAME_OTHER. */
#ifndef GPUPROF_NAMES_H
#define GPUPROF_NAMES_H

#include "ring.h"

#include <stdint.h>

#define NAMES_MAX 8192u
#define NAME_BYTES_MAX 4096u
#define NAMES_TEXT_BYTES (8u << 20)
#define NAME_OTHER 0u

/* The id of a name, after making sure that the ring has carried its text since attach `epoch`; NAME_OTHER when it is not to be had. */
uint32_t names_id(struct ring *ring, const char *name, uint32_t epoch);

#endif
