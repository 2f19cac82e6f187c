/* CUPTI used beside another subscriber, where it allows that: from CUPTI 13.3 on, with a driver that can (shared.c).
 *
 * Such a subscription is only asked for when one of our own is refused. What is set for all subscribers is left as the other one has it, and
 * cuptiFinalize, which would end the other's recording, is never called: to detach is to disable and, once CUPTI has given all buffers
 * back, to unsubscribe. All of it is the library's thread's, except where it says otherwise. */
#ifndef GPUPROF_SHARED_H
#define GPUPROF_SHARED_H

#include "cupti_abi.h"

#include <stddef.h>
#include <stdint.h>

/* Any thread's: keeps the library from letting go of CUPTI until cupti_leave(), for a short while. cupti_enter: whether CUPTI is in use, so that it may be asked. shared_enter: our shared subscription, NULL where there is none;
 * cupti_leave() is due either way. cupti_alone: waits, a short while, until nobody is inside; whether so. */
int cupti_enter(void);
cupti_subscriber shared_enter(void);
void cupti_leave(void);
int cupti_alone(uint64_t wait_ns);

/* Subscribes beside `other`, which has refused us; 0, or -1: that is not possible, `problem` says why if it is not only the other's refusal. */
int shared_subscribe(cupti_subscriber *subscriber, const char *other, char *problem, size_t problem_size);

/* What the process's status says while CUPTI is shared. */
void shared_words(char *text, size_t size);
const char *shared_with(void);

/* Stops recording, keeps the subscription; to be called while recording. shared_tidy, from time to time while nothing is recorded, gives it
 * up. shared_lives: whether CUPTI knows our subscription; where it does not, since the other has finalized it without a word, there is none from
 * then on. */
void shared_stop(cupti_subscriber subscriber);
void shared_tidy(uint64_t now);
int shared_lives(void);

#endif
