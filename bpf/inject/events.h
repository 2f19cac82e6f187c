/* Which stream an event was last recorded in, so that a wait for the event is one for a stream (events.c). */
#ifndef GPUPROF_EVENTS_H
#define GPUPROF_EVENTS_H

#include <stdint.h>

/* An event was recorded in a stream (its number as of the records), or waited for. 0: it is not known; else 1. Any thread's. */
void events_recorded(const void *event, uint32_t stream);
int events_stream(const void *event, uint32_t *stream);

/* What was noted so far says nothing any more: records of events were not seen for a while. */
void events_forget(void);

#endif
