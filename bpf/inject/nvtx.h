/* NVTX ranges: which are open on a thread, and what becomes of those that end (nvtx.c, nvtx_paths.c), as the process's libraries tell of them
 * (nvtx_entry.c, nvtx_text.c).
 *
 * A path is a range within the ranges that it was pushed in, by name; paths are numbered from 1, 0 is no range. Names that are too many, or
 * ranges that are nested too deep, are those of the range around them. */
#ifndef GPUPROF_NVTX_H
#define GPUPROF_NVTX_H

#include "controller.h"
#include "ring.h"

#include <stddef.h>
#include <stdint.h>

#define PATHS_MAX 8192u
#define PATHS_DEEP 64 /* open ranges of a thread that are told apart */
#define PATH_NAME_BYTES 256u
#define PATHS_TEXT_BYTES (1u << 20)

/* From now on ranges are looked at, or no longer. While they are not, a push or a pop is one relaxed reading of an atomic. */
void nvtx_listen(int on);

/* Ranges within `depth` others or more are left out, and count as the range that they are in: what was launched in them, too. RANGE_DEPTHS:
 * none is; 0: all are. The library's thread's, as nvtx_listen. */
void nvtx_follow(uint32_t depth);

/* Adds how many calls there were, by depth, and what some of them took. */
void nvtx_count(struct controller_counts *counts);

/* The path of the innermost range that is open on this thread. */
uint16_t nvtx_path(void);

/* Writes the ranges that ended and have had no row for a while; of all when `all`. The library's thread's, or before a detach. */
void nvtx_flush(uint64_t now, int all);

/* For nvtx_entry.c. `domain` and a message of a registered string are handles; `type` is one of enum nvtx_message. A push and a pop answer how
 * many ranges are around it, or NVTX_NOT_TRACKED. */
int nvtx_push(const void *domain, int type, const void *message);

/* The innermost range of the domain ends; it need not be the innermost of all. */
int nvtx_pop(const void *domain);

/* A range that any thread may end; it is not around the launches of one, but counted. 0: nobody listens. */
uint64_t nvtx_start(const void *domain, int type, const void *message);
void nvtx_end(uint64_t id);

/* nvtx_text.c: the text of an event, in `room` (PATH_NAME_BYTES) where it has to be put together. */
const char *nvtx_text(const void *domain, int type, const void *message, char *room);

/* UTF-8 of wide characters, as far as there is room. */
void nvtx_narrow(const wchar_t *wide, char *text, size_t size);

/* A handle with a copy of a text; NULL, which is no handle, when there are too many. They live as long as the process. */
void *nvtx_keep(const char *text, int domain);

/* nvtx_paths.c: the number of a range named `text` within `parent`. Any thread's. */
uint16_t path_of(uint16_t parent, const char *text);

/* The same range within another parent. */
uint16_t path_within(uint16_t parent, uint16_t path);

/* A range with this path has ended. Writes a row of it, or counts it towards the next. */
void path_ended(uint16_t path, uint64_t start_ns, uint64_t end_ns);

/* Makes sure that the ring has carried what a path is to the present sampler and has room for a record after it; -1: no room. The writer's
 * mutex is held. */
int path_send(struct ring *ring, uint16_t path, uint32_t epoch);

/* A new sampler listens, which has seen no path. The writer's mutex is held. */
void paths_forget_sent(void);

#endif
