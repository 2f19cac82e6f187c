/* What happens at each call of the CUDA driver that is looked at (calls.c). */
#ifndef GPUPROF_CALLS_H
#define GPUPROF_CALLS_H

#include "controller.h"

#include <stdint.h>

/* CUPTI calls this at each enabled call's enter and exit; `user`: NULL where the subscription is the only one, else anything. */
void calls_back(void *user, int domain, uint32_t cbid, const void *data);

/* Totals so far, for the controller. */
struct controller_counts calls_counts(void);

/* A controller's step: only so many stacks come at full rate until the next. */
void calls_begin_step(void);

#endif
