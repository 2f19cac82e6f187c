/* Which calls of the CUDA driver are looked at, and as what (call_classes.c). */
#ifndef GPUPROF_CALL_CLASSES_H
#define GPUPROF_CALL_CLASSES_H

#include "cupti_abi.h"

#include <stdint.h>

#define CALL_IDS 1024u

/* CALL_FREE: gives something back, and waits for the device first where that still uses it. CALL_RECORD: of an event. CALL_OTHER: only to detach.
 * CALL_GRAPH: makes, changes or destroys one (graphs.h). */
enum call_class { CALL_NONE, CALL_LAUNCH, CALL_COPY, CALL_WAIT, CALL_FREE, CALL_RECORD, CALL_OTHER, CALL_GRAPH };

extern uint8_t call_classes[CALL_IDS]; /* each atomic */

static inline enum call_class class_of_call(uint32_t cbid)
{
    return cbid < CALL_IDS ? (enum call_class)__atomic_load_n(&call_classes[cbid], __ATOMIC_RELAXED) : CALL_NONE;
}

/* Launches, copies and waits: the calls that are looked at while recording; the library's thread's, as the next three. */
void calls_enable(const struct cupti_api *cupti, cupti_subscriber subscriber);

/* None any more but those that make graphs, for who stops without a finalize. */
void calls_disable(const struct cupti_api *cupti, cupti_subscriber subscriber);

/* Records of events too, once the process has been seen to wait for an event; to be called now and then while recording. */
void calls_follow_events(const struct cupti_api *cupti, cupti_subscriber subscriber);

/* Further calls, which processes make all the time, so that a detach that is wanted need not wait for a launch. */
void calls_enable_more(const struct cupti_api *cupti, cupti_subscriber subscriber, uint32_t enable);

/* The process has been seen to wait for an event. Any thread's. */
void calls_await_event(void);

#endif
