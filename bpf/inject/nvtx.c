/* The process's NVTX ranges: which are open on each thread, and what following them costs (nvtx.h). */
#define _GNU_SOURCE
#include "nvtx.h"
#include "nvtx_abi.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>

#define STARTED 1024u     /* ranges that were started, not pushed, and are open */
#define TIMED_EVERY 61u   /* one call of so many is timed; no number of calls that a program repeats is a multiple of it */

struct open {
    const void *domain;
    uint64_t start_ns; /* 0: it is left out */
    uint16_t path;
};

/* A thread's open ranges; of the time since `heard` began. */
struct thread_ranges {
    uint32_t heard, depth, beyond;
    uint32_t not_counted;
    uint8_t calls[RANGE_DEPTHS]; /* of those */
    struct open open[PATHS_DEEP];
};

struct started {
    uint64_t id, start_ns; /* id 0: free; atomic */
    uint16_t path;
};

static uint32_t listening;           /* 0: nobody does; else a number that is another each time; atomic */
static int wanted;                   /* somebody listens, whether or not the budget allows ranges; the library's thread's */
static uint32_t follow = RANGE_DEPTHS; /* ranges in so many others are left out; atomic */
static uint64_t calls[RANGE_DEPTHS], timed_calls, timed_ns; /* all atomic */
static pthread_key_t ranges_of_thread;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static int has_key;                  /* atomic */
static struct started started[STARTED];
static uint64_t last_started;        /* atomic */

static void make_key(void) { __atomic_store_n(&has_key, pthread_key_create(&ranges_of_thread, free) == 0, __ATOMIC_RELEASE); }

static void hear(int on)
{
    static uint32_t times;
    pthread_once(&key_once, make_key);
    if (!on)
        __atomic_store_n(&listening, 0, __ATOMIC_RELAXED);
    else if (__atomic_load_n(&listening, __ATOMIC_RELAXED) == 0 && __atomic_load_n(&has_key, __ATOMIC_ACQUIRE))
        __atomic_store_n(&listening, ++times ? times : ++times, __ATOMIC_RELEASE);
}

void nvtx_listen(int on)
{
    wanted = on;
    hear(on && __atomic_load_n(&follow, __ATOMIC_RELAXED) > 0);
}

void nvtx_follow(uint32_t depth)
{
    __atomic_store_n(&follow, depth, __ATOMIC_RELAXED);
    hear(wanted && depth > 0);
}

static struct thread_ranges *mine(uint32_t heard, int make)
{
    struct thread_ranges *ranges = pthread_getspecific(ranges_of_thread);
    if (!ranges && make && (ranges = calloc(1, sizeof *ranges)) && pthread_setspecific(ranges_of_thread, ranges) != 0) {
        free(ranges);
        ranges = NULL;
    }
    if (ranges && ranges->heard != heard) { /* what was open when nobody listened may have ended meanwhile */
        ranges->heard = heard;
        ranges->depth = ranges->beyond = 0;
    }
    return ranges;
}

uint16_t nvtx_path(void)
{
    uint32_t heard = __atomic_load_n(&listening, __ATOMIC_RELAXED);
    struct thread_ranges *ranges = heard ? mine(heard, 0) : NULL;
    return ranges && ranges->depth ? ranges->open[ranges->depth - 1].path : 0;
}

static void add(uint64_t *total, uint64_t more) { __atomic_fetch_add(total, more, __ATOMIC_RELAXED); }

/* Counts a call of this thread's, at a depth; whether it is one to time. */
static int count_call(struct thread_ranges *ranges, uint32_t depth)
{
    ranges->calls[depth < RANGE_DEPTHS ? depth : RANGE_DEPTHS - 1]++;
    if (++ranges->not_counted < TIMED_EVERY)
        return 0;
    for (uint32_t i = 0; i < RANGE_DEPTHS; i++)
        if (ranges->calls[i]) {
            add(&calls[i], ranges->calls[i]);
            ranges->calls[i] = 0;
        }
    ranges->not_counted = 0;
    return 1;
}

static void count_time(uint64_t began)
{
    add(&timed_calls, 1);
    add(&timed_ns, now_ns() - began);
}

void nvtx_count(struct controller_counts *counts)
{
    for (uint32_t i = 0; i < RANGE_DEPTHS; i++)
        counts->range_calls[i] = __atomic_load_n(&calls[i], __ATOMIC_RELAXED);
    counts->timed_ranges = __atomic_load_n(&timed_calls, __ATOMIC_RELAXED);
    counts->timed_ranges_ns = __atomic_load_n(&timed_ns, __ATOMIC_RELAXED);
}

static int is_left_out(uint32_t depth)
{
    uint32_t within = __atomic_load_n(&follow, __ATOMIC_RELAXED);
    return within < RANGE_DEPTHS && depth >= within;
}

int nvtx_push(const void *domain, int type, const void *message)
{
    uint32_t heard = __atomic_load_n(&listening, __ATOMIC_RELAXED);
    if (!heard)
        return NVTX_NOT_TRACKED;
    struct thread_ranges *ranges = mine(heard, 1);
    if (!ranges)
        return NVTX_NOT_TRACKED;
    int timed = count_call(ranges, ranges->depth);
    if (ranges->depth == PATHS_DEEP)
        return PATHS_DEEP + (int)ranges->beyond++;
    char room[PATH_NAME_BYTES];
    uint16_t parent = ranges->depth ? ranges->open[ranges->depth - 1].path : 0;
    struct open *open = &ranges->open[ranges->depth];
    open->domain = domain;
    if (is_left_out(ranges->depth)) {
        open->path = parent;
        open->start_ns = 0;
        return (int)ranges->depth++;
    }
    uint64_t began = timed ? now_ns() : 0;
    open->path = path_of(parent, nvtx_text(domain, type, message, room));
    open->start_ns = now_ns();
    if (timed)
        count_time(began);
    return (int)ranges->depth++;
}

int nvtx_pop(const void *domain)
{
    uint32_t heard = __atomic_load_n(&listening, __ATOMIC_RELAXED);
    struct thread_ranges *ranges = heard ? mine(heard, 0) : NULL;
    if (!ranges || ranges->depth == 0)
        return NVTX_NOT_TRACKED;
    int timed = count_call(ranges, ranges->depth - 1);
    if (ranges->beyond > 0)
        return PATHS_DEEP + (int)--ranges->beyond;
    uint64_t began = timed ? now_ns() : 0;
    uint32_t at = ranges->depth;
    while (at > 0 && ranges->open[at - 1].domain != domain)
        at--;
    if (at == 0) /* it began when nobody listened */
        return NVTX_NOT_TRACKED;
    struct open ended = ranges->open[at - 1];
    ranges->depth--;
    for (uint32_t i = at - 1; i < ranges->depth; i++) { /* those within it, of other domains, are within what it was in */
        ranges->open[i] = ranges->open[i + 1];
        uint16_t parent = i ? ranges->open[i - 1].path : 0;
        ranges->open[i].path = ranges->open[i].start_ns ? path_within(parent, ranges->open[i].path) : parent;
    }
    if (ended.path && ended.start_ns)
        path_ended(ended.path, ended.start_ns, now_ns());
    if (timed && ended.start_ns)
        count_time(began);
    return (int)at - 1;
}

uint64_t nvtx_start(const void *domain, int type, const void *message)
{
    if (!__atomic_load_n(&listening, __ATOMIC_RELAXED))
        return 0;
    char room[PATH_NAME_BYTES];
    uint64_t id = __atomic_add_fetch(&last_started, 1, __ATOMIC_RELAXED);
    struct started *place = &started[id % STARTED];
    uint64_t began = id % TIMED_EVERY == 0 ? now_ns() : 0;
    __atomic_store_n(&place->id, 0, __ATOMIC_RELAXED); /* one that is open for very long loses its place */
    place->path = path_of(0, nvtx_text(domain, type, message, room));
    place->start_ns = now_ns();
    __atomic_store_n(&place->id, id, __ATOMIC_RELEASE);
    if (began) {
        add(&calls[0], 2 * TIMED_EVERY); /* each has an end */
        count_time(began);
    }
    return id;
}

void nvtx_end(uint64_t id)
{
    if (!__atomic_load_n(&listening, __ATOMIC_RELAXED) || id == 0)
        return;
    struct started *place = &started[id % STARTED], was = *place;
    if (__atomic_compare_exchange_n(&place->id, &id, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED) && was.path)
        path_ended(was.path, was.start_ns, now_ns());
}
