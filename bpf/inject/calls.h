/* Which calls of the CUDA driver are looked at, and what happens at each (calls.c). */
#ifndef GPUPROF_CALLS_H
#define GPUPROF_CALLS_H

#include "controller.h"
#include "cupti_abi.h"

#include <stdint.h>

/* CUPTI calls this at each enabled call's enter and exit; `user`: NULL where the subscription is the only one, else anything. */
void calls_back(void *user, int domain, uint32_t cbid, const void *data);

/* Launches, copies and waits: the calls that are looked at while recording; the library's thread's, as the next three. */
void calls_enable(const struct cupti_api *cupti, cupti_subscriber subscriber);

/* None any more but those that make graphs, for who stops without a finalize. */
void calls_disable(const struct cupti_api *cupti, cupti_subscriber subscriber);

/* Records of events too, once the process has been seen to wait for an event; to be called now and then while recording. */
void calls_follow_events(const struct cupti_api *cupti, cupti_subscriber subscriber);

/* Further calls, which processes make all the time, so that a detach that is wanted need not wait for a launch. */
void calls_enable_more(const struct cupti_api *cupti, cupti_subscriber subscriber, uint32_t enable);

/* What was noted of the launch with this correlation id: when its call was entered, 0 where nothing is known; whether its stack was left
 * out on purpose; and the path of the NVTX ranges that it was in. */
uint64_t calls_noted(uint32_t correlation, uint32_t epoch, uint16_t *left_out, uint16_t *path);

/* Totals so far, for the controller. */
struct controller_counts calls_counts(void);

/* A controller's step: only so many stacks come at full rate until the next. */
void calls_begin_step(void);

#endif
