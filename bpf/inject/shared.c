/* CUPTI used beside another subscriber (shared.h). */
#define _GNU_SOURCE
#include "shared.h"
#include "call_classes.h"
#include "calls.h"
#include "graphs.h"
#include "session.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define SHARES 130300u /* CUPTI's version from which the functions have their final meaning */
#define LEAVE_NS 1000000000ull   /* the longest wait for who is inside CUPTI for us */

static uint32_t inside;       /* threads that are in a call of CUPTI for us; atomic */
static char with[128];        /* who had subscribed before */

int cupti_enter(void)
{
    __atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST); /* before the phase is read: who finalizes sets that first and reads this then */
    enum phase now = phase_of(__atomic_load_n(&session.state, __ATOMIC_SEQ_CST));
    return now == RECORDING || now == DETACH_WANTED;
}

cupti_subscriber shared_enter(void)
{
    __atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&session.shared, __ATOMIC_SEQ_CST);
}

void cupti_leave(void) { __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST); }

int cupti_alone(uint64_t wait_ns)
{
    uint64_t until = now_ns() + wait_ns;
    while (__atomic_load_n(&inside, __ATOMIC_SEQ_CST) != 0) {
        struct timespec moment = {.tv_nsec = 20000};
        if (now_ns() >= until)
            return 0;
        nanosleep(&moment, NULL);
    }
    return 1;
}

static int is_possible(void)
{
    int all = session.cupti.cuptiSubscribe_v2 && session.ring.header->cupti_version >= SHARES;
#define NEEDED(name, arguments) all = all && session.cupti.name;
    CUPTI_SHARED(NEEDED)
#undef NEEDED
    return all;
}

/* An attribute of one byte; 0 where it cannot be read. */
static uint8_t attribute(cupti_subscriber subscriber, uint32_t number)
{
    uint8_t value = 0;
    size_t size = sizeof value;
    return session.cupti.cuptiActivityGetAttribute_v2(subscriber, number, &size, &value) == CUPTI_OK ? value : 0;
}

int shared_subscribe(cupti_subscriber *subscriber, const char *other, char *problem, size_t problem_size)
{
    char first[128] = "";
    struct cupti_subscriber_params params = {
        .struct_size = sizeof params,
        .subscriber_name = "gpuprof",
        .old_subscriber_name = first,
        .old_subscriber_size = sizeof first,
        .allow_multiple = 1,
    };
    if (!is_possible() || session.cupti.cuptiSubscribe_v2(subscriber, calls_back, &session, &params) != CUPTI_OK)
        return -1;
    first[sizeof first - 1] = 0;
    const char *name = first[0] && !strstr(first, "gpuprof") ? first : other;
    static const char prefix[] = "CUPTI for "; /* which CUPTI puts before each name */
    if (strncmp(name, prefix, sizeof prefix - 1) == 0)
        name += sizeof prefix - 1;
    snprintf(with, sizeof with, "%s", name[0] ? name : "another profiler");
    /* Records are read as the structures that they are by default. */
    if (attribute(*subscriber, ATTR_USER_DEFINED_RECORDS))
        snprintf(problem, problem_size, "%s, which uses CUPTI too, has records of another layout", with);
    else if (session.cupti.cuptiActivityRegisterCallbacks_v2(*subscriber, records_shared_requested, records_shared_completed) != CUPTI_OK)
        snprintf(problem, problem_size, "CUPTI, which %s uses too, takes no buffers from a second subscriber", with);
    if (problem[0]) {
        session.cupti.cuptiUnsubscribe(*subscriber);
        return -1;
    }
    __atomic_store_n(&session.shared, *subscriber, __ATOMIC_SEQ_CST);
    return 0;
}

const char *shared_with(void) { return with; }

/* Whether graphs come whole is the same for all subscribers, and fixed by the first who enables an activity or says so. */
void shared_words(char *text, size_t size)
{
    if (attribute(session.shared, ATTR_SHARED_GRAPH_TRACE) == 1)
        snprintf(text, size, "kernels inside CUDA graphs are not recorded: %s, which uses CUPTI too, has asked for whole graphs", with);
    else
        snprintf(text, size, "shares CUPTI with %s: until that one is gone, to detach or to pause does not give native speed", with);
}

void shared_stop(cupti_subscriber subscriber)
{
    /* Kinds first: a launch without its record is a count, a record without its launch has no stack. */
    session.cupti.cuptiActivityDisable_v2(subscriber, ACTIVITY_CONCURRENT_KERNEL, NULL);
    session.cupti.cuptiActivityDisable_v2(subscriber, ACTIVITY_MEMCPY, NULL);
    session.cupti.cuptiActivityDisable_v2(subscriber, ACTIVITY_MEMSET, NULL);
    calls_disable(&session.cupti, subscriber);
    stopped();
}

void shared_tidy(uint64_t now)
{
    cupti_subscriber subscriber = session.shared;
    if (!subscriber || !shared_lives())
        return;
    int pausing = __atomic_load_n(&session.pausing, __ATOMIC_RELAXED);
    if (stopped_awaits(now) || !graphs_are_settled(pausing ? GRAPHS_PAUSE_NS : GRAPHS_QUIET_NS))
        return;
    __atomic_store_n(&session.shared, NULL, __ATOMIC_SEQ_CST); /* from now on nobody begins to use it */
    if (!cupti_alone(LEAVE_NS)) {
        __atomic_store_n(&session.shared, subscriber, __ATOMIC_SEQ_CST); /* the next time */
        return;
    }
    cupti_result result = session.cupti.cuptiUnsubscribe(subscriber);
    log_line("unsubscribed: %d", result);
}

int shared_lives(void)
{
    uint64_t there;
    int lives = session.shared && session.cupti.cuptiGetTimestamp_v2(session.shared, &there) == CUPTI_OK;
    if (!lives)
        __atomic_store_n(&session.shared, NULL, __ATOMIC_SEQ_CST);
    return lives;
}
