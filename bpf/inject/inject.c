/* libgpuprof_inject.so: records GPU work of the process it is loaded into, while a sampler listens.
 *
 * Loaded by the CUDA driver through CUDA_INJECTION64_PATH, or later into a running process. It links neither CUPTI, libcuda nor libstdc++,
 * never throws, never exits, never prints unless GPUPROF_INJECT_LOG is set. One thread of its own, with all signals blocked, looks for a
 * listener; without one, CUPTI is finalized and the process runs at its native speed.
 *
 *   waiting -> recording   a sampler holds its lock on the ring, and no context is being made (contexts.c): subscribe, enable. Where a sampler
 *                          is expected (GPUPROF_EXPECT_LISTENER) already within cuInit, when there can be no context yet
 *   recording -> detaching the lock is gone, or the budget asks for a pause: the next CUDA call flushes and finalizes at its exit (a
 *                          finalize from another thread, while the application is in CUDA calls, can crash)
 *   detaching -> waiting   finalized; after a pause of the budget it begins anew
 *   waiting -> refused     another CUPTI user is subscribed, or CUPTI is missing: said in the ring's header, tried again. Where CUPTI allows
 *                          several subscribers: recording, beside the other one (shared.h); then nothing is finalized
 *   any -> ended           the process exits: the library's thread flushes while exit() waits, for END_WAIT_S at most
 */
#define _GNU_SOURCE
#include "calls.h"
#include "nvtx.h"
#include "session.h"
#include "shared.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#ifndef POLL_NS
#define POLL_NS 50000000ull /* how often a listener is looked for */
#endif
#define CLOCK_NS 1000000000ull /* how often the clocks are compared */
#define RETRY_NS 2000000000ull /* after a refusal */
#define ASK_AHEAD_NS 2500000000ull /* so long before the end of a pause contexts are asked for; longer than they must be settled */
#ifndef UNSETTLED_NS
#define UNSETTLED_NS 3000000000ull /* so long a detach waits for contexts that come and go; an attach waits on */
#endif
#define FLUSH_BUSY_NS 200000000ull    /* while the process launches, and for FLUSH_AFTER_NS after */
#define FLUSH_QUIET_NS 1000000000ull
#define FLUSH_AFTER_NS 3000000000ull
#define SHARED_AFTER_NS 1000000000ull /* where CUPTI is shared: what is out for so long is asked for, */
#define SHARED_FLUSH_NS 2000000000ull /* so often at most */
#define STEP_NS 40000000ull    /* between two steps of the controller */
#ifndef END_WAIT_S
#define END_WAIT_S 2 /* a CUPTI that hangs must not keep the process from ending */
#endif
#ifndef EXPECT_NS
#define EXPECT_NS 3000000000ull /* for so long a listener that is expected counts as one */
#endif

struct session session = {.ring = {.fd = -1}, .writer = PTHREAD_MUTEX_INITIALIZER};

static int started;
static uint64_t expected_until; /* on CLOCK_MONOTONIC, as the next three; the library's thread's */
static uint64_t next_clock, next_try;
static uint64_t unsettled_since; /* 0: contexts are settled */
static int log_wanted;
static pid_t owner; /* the process whose ring this is */

static pthread_mutex_t ending = PTHREAD_MUTEX_INITIALIZER; /* taken by exit() and the library's thread alone, briefly */
static pthread_cond_t ending_changed;
static int end_wanted, thread_ended; /* thread_ended: or there is none */

void log_line(const char *format, ...)
{
    if (!log_wanted)
        return;
    char line[512];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    dprintf(2, "gpuprof[%d]: %s\n", (int)getpid(), line);
}

/* ---- the library's thread ------------------------------------------------------------------------------------------------ */

/* Waits for a poll's time, or until the process ends; returns whether it does. */
static int pause_or_end(uint64_t ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    pthread_mutex_lock(&ending);
    while (!end_wanted && pthread_cond_timedwait(&ending_changed, &ending, &until) == 0)
        ;
    int end = end_wanted;
    pthread_mutex_unlock(&ending);
    return end;
}

/* A flush takes the other subscriber's buffers too, full or not, of which it may have few that are large (kineto stops recording after 32): our own
 * are small, so that they fill by themselves, and only those of threads that launch little are asked for. */
static void flush_shared_records(uint64_t now)
{
    static uint64_t next;
    uint64_t oldest = records_oldest_ns();
    int late = oldest != 0 && now > oldest && now - oldest >= SHARED_AFTER_NS;
    if ((late || records_were_refused()) && now >= next) {
        next = now + SHARED_FLUSH_NS;
        session.cupti.cuptiActivityFlushAll(0);
    }
}

/* CUPTI hands a buffer over when it is full, and its own period does not shorten that (CUDA 13.0): a process that launches little would show
 * its kernels a minute late. So what is complete is asked for, unless records come by themselves. Only this thread ends the recording phase, so
 * that no finalize can meet the flush. */
static void flush_slow_records(uint64_t now)
{
    if (session.shared) {
        flush_shared_records(now);
        return;
    }
    static uint64_t next, launches_before, records_before, launched_ns, flushed_ns;
    uint64_t launches = __atomic_load_n(&session.ring.header->launches, __ATOMIC_RELAXED);
    if (launches != launches_before)
        launched_ns = now;
    launches_before = launches;
    int refused = records_were_refused();
    if (now < next && !refused)
        return;
    next = now + (now - launched_ns < FLUSH_AFTER_NS ? FLUSH_BUSY_NS : FLUSH_QUIET_NS);
    /* CUPTI has a buffer for each thread: that of one which launches little is not full because others launch much. */
    uint64_t records = __atomic_load_n(&session.ring.header->records, __ATOMIC_RELAXED);
    if (refused || records == records_before || now - flushed_ns >= FLUSH_QUIET_NS) {
        session.cupti.cuptiActivityFlushAll(0);
        flushed_ns = now;
    }
    records_before = __atomic_load_n(&session.ring.header->records, __ATOMIC_RELAXED);
}

static void plan_set(const struct controller_plan *plan)
{
    __atomic_store_n(&session.plan.shift, plan->shift, __ATOMIC_RELAXED);
    __atomic_store_n(&session.plan.wait_ns, plan->wait_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&session.plan.stacks_at_once, plan->stacks_at_once, __ATOMIC_RELAXED);
    __atomic_store_n(&session.ring.header->launches_per_stack, 1u << plan->shift, __ATOMIC_RELAXED);
    __atomic_store_n(&session.ring.header->wait_threshold_ns, plan->wait_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&session.ring.header->range_depth, plan->range_depth < RANGE_DEPTHS ? plan->range_depth + 1 : 0, __ATOMIC_RELAXED);
    nvtx_follow(plan->range_depth);
    calls_begin_step();
}

/* What recording costs, and what the sampler's budget makes of it; returns for how many ns to pause, 0: go on. */
static uint64_t keep_within_budget(uint64_t now)
{
    static struct controller controller;
    static struct controller_counts before;
    static uint64_t of_epoch, next;
    struct ring_header *header = session.ring.header;
    struct controller_counts counts = calls_counts();
    uint64_t epoch = session.attaches;
    uint32_t budget = __atomic_load_n(&header->budget_ppm, __ATOMIC_RELAXED);
    if (of_epoch != epoch || budget != controller.budget_ppm) {
        if (of_epoch == 0)
            controller.random = now ^ (uint64_t)(uintptr_t)&session; /* no two processes pause in step */
        if (of_epoch != 0 && budget == controller.budget_ppm) { /* what ranges have cost in the pause */
            struct controller_counts paused = before;
            memcpy(paused.range_calls, counts.range_calls, sizeof paused.range_calls);
            uint64_t cost = (uint64_t)controller_cost(&controller, &before, &paused);
            __atomic_store_n(&header->cost_ns, header->cost_ns + cost, __ATOMIC_RELAXED);
        }
        of_epoch = epoch;
        controller_begin(&controller, budget, &counts);
        before = counts;
        next = now;
    }
    if (now < next)
        return 0;
    next = now + STEP_NS;
    double cost = controller_cost(&controller, &before, &counts);
    struct controller_plan plan = controller_step(&controller, &counts);
    if (plan.pause_ns)
        cost += (double)counts.cycle_ns;
    uint64_t callbacks = counts.probe_ns - before.probe_ns + (uint64_t)((double)(counts.launches - before.launches) * controller.call_ns);
    __atomic_store_n(&header->cost_ns, header->cost_ns + (uint64_t)cost, __ATOMIC_RELAXED);
    __atomic_store_n(&header->callback_ns, header->callback_ns + callbacks, __ATOMIC_RELAXED);
    before = counts;
    plan_set(&plan);
    return plan.pause_ns;
}

static void try_attach(uint64_t now)
{
    char problem[RING_TEXT] = "";
    next_try = 0;
    next_clock = now + CLOCK_NS;
    if (attach(problem, sizeof problem) == 0) {
        keep_within_budget(now);
        return;
    }
    log_line("refused: %s", problem);
    ring_say(&session.ring, RING_REFUSED, problem);
    next_try = now + RETRY_NS;
    set_phase(WAITING);
}

/* One that listens, or is expected to. */
static int has_listener(uint64_t now)
{
    int listens = ring_has_listener(&session.ring);
    if (listens)
        expected_until = 0;
    return listens || now < expected_until;
}

/* Tells who listens why nothing is recorded, if that lasts. */
static void say_unsettled(uint64_t now)
{
    if (unsettled_since == 0)
        unsettled_since = now;
    else if (now - unsettled_since >= UNSETTLED_NS)
        ring_say(&session.ring, RING_WAITING, "it makes CUDA contexts over and over, or is still starting; it is recorded when that is over");
}

/* Whether the next call may finalize. A process that makes contexts without end must not be recorded without end for that. */
static int may_finalize(uint64_t now, int settled)
{
    if (settled)
        unsettled_since = 0;
    else if (unsettled_since == 0)
        unsettled_since = now;
    return settled || now - unsettled_since >= UNSETTLED_NS;
}

/* One look at the listener. */
static void look(void)
{
    uint64_t now = now_ns(), pause;
    int listener = has_listener(now);
    enum phase phase = phase_of(get_state());
    /* The driver is left alone while nobody listens, in a pause, and where nothing will be finalized; it is asked at each look otherwise, so that
     * what has not changed is known. */
    int asked = phase == RECORDING ? !session.shared : listener && now + ASK_AHEAD_NS >= next_try;
    int settled = asked ? contexts_are_settled() : phase == RECORDING;
    switch (phase) {
    case WAITING:
        if (!listener)
            nvtx_listen(0); /* it left in a pause */
        shared_tidy(now);
        if (!listener && (next_try || unsettled_since)) { /* a refusal is news to the next sampler, who shall not wait for the retry */
            ring_say(&session.ring, RING_WAITING, "");
            next_try = unsettled_since = 0;
        } else if (listener && now >= next_try && !settled) {
            say_unsettled(now);
        } else if (listener && now >= next_try && change_phase(WAITING, ATTACHING)) {
            unsettled_since = 0;
            records_note_devices();
            try_attach(now);
        }
        break;
    case RECORDING:
        if (!listener && may_finalize(now, settled)) {
            detach_soon("waiting for the next CUDA call", 0);
            break;
        }
        flush_slow_records(now);
        pause = may_finalize(now, settled) ? keep_within_budget(now) : 0;
        if (pause) {
            next_try = now + pause;
            detach_soon("", 1);
            break;
        }
        if (session.ring.header->devices == 0) /* the driver was still initializing */
            records_note_devices();
        if (now >= next_clock) {
            nvtx_flush(now, 0);
            next_clock = now + CLOCK_NS;
            if (!still_known()) {
                lost_cupti();
                next_try = now + RETRY_NS;
                break;
            }
            follow_events();
            if (has_no_kernels())
                enable_activity();
        }
        break;
    case DETACH_WANTED:
        if (listener && (!__atomic_load_n(&session.pausing, __ATOMIC_RELAXED) || now >= next_try)) {
            resume();
            next_clock = now + CLOCK_NS;
        } else if (!listener) {
            nvtx_listen(0);
            __atomic_store_n(&session.pausing, 0, __ATOMIC_RELAXED);
        }
        break;
    default:
        break;
    }
}

/* The last records; the sampler holds the ring's memory and reads on after the process is gone. */
static void finish(void)
{
    while (phase_of(get_state()) == FINALIZING) { /* a launch of another thread is about it */
        struct timespec moment = {.tv_nsec = 1000000};
        nanosleep(&moment, NULL);
    }
    nvtx_listen(0);
    nvtx_flush(now_ns(), 1);
    if (change_phase(RECORDING, ENDED) || change_phase(DETACH_WANTED, ENDED)) {
        session.cupti.cuptiActivityFlushAll(!session.shared); /* by force it would take the other's incomplete records too */
        records_compare_clocks();
    }
    set_phase(ENDED);
    ring_say(&session.ring, RING_ENDED, "");
}

static void set_thread_ended(int ended)
{
    pthread_mutex_lock(&ending);
    thread_ended = ended;
    pthread_cond_broadcast(&ending_changed);
    pthread_mutex_unlock(&ending);
}

static void *watch(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "gpuprof");
    while (!pause_or_end(POLL_NS))
        look();
    finish();
    set_thread_ended(1);
    return NULL;
}

/* ---- starting and ending -------------------------------------------------------------------------------------------------- */

/* Registered twice (see attach); the second run finds the thread ended. */
void at_exit(void)
{
    if (getpid() != owner)
        return;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += END_WAIT_S;
    pthread_mutex_lock(&ending);
    int first = !end_wanted;
    end_wanted = 1;
    pthread_cond_broadcast(&ending_changed);
    while (first && !thread_ended && pthread_cond_timedwait(&ending_changed, &ending, &until) == 0)
        ;
    pthread_mutex_unlock(&ending);
}

static void in_child(void)
{
    __atomic_store_n(&session.forked, 1, __ATOMIC_RELAXED);
    set_phase(ENDED); /* no thread, and the ring is not mapped here */
    nvtx_listen(0);
    session.ring.header = NULL;
    if (session.ring.fd >= 0)
        close(session.ring.fd); /* else the child would hold the file that its parent's sampler looks for */
    session.ring.fd = -1;
}

static int start_thread(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the application's signals are for its own threads */
    pthread_t thread;
    int result = pthread_create(&thread, &attributes, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return result;
}

/* Within cuInit, where no context can be in the making: see contexts.c for what it would mean later. */
static void attach_in_init(void)
{
    const char *expected = getenv("GPUPROF_EXPECT_LISTENER");
    uint64_t now = now_ns();
    if (!expected || strcmp(expected, "1") != 0 || !change_phase(WAITING, ATTACHING))
        return;
    expected_until = now + EXPECT_NS;
    try_attach(now);
}

static int start(int in_init)
{
    int first = 0;
    if (!__atomic_compare_exchange_n(&started, &first, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return 0;
    log_wanted = getenv("GPUPROF_INJECT_LOG") != NULL;
    owner = getpid();
    int result = ring_create(&session.ring);
    if (result < 0) {
        log_line("no ring: %s", strerror(-result));
        __atomic_store_n(&started, 0, __ATOMIC_RELEASE);
        return result;
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ending_changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    set_thread_ended(0);
    pthread_atfork(NULL, NULL, in_child);
    if (in_init)
        attach_in_init();
    result = start_thread();
    if (result != 0) {
        log_line("no thread: %s", strerror(result));
        set_thread_ended(1); /* attach has registered at_exit */
        if (change_phase(RECORDING, DETACH_WANTED))
            return -result; /* the next call finalizes, and the ring is used till then */
        ring_destroy(&session.ring);
        __atomic_store_n(&started, 0, __ATOMIC_RELEASE);
        return -result;
    }
    atexit(at_exit);
    return 0;
}

/* Starts watching for a sampler; idempotent. Returns 0, or -errno where the ring or the thread cannot be made. For attaching to a running
 * process; through CUDA_INJECTION64_PATH the driver calls InitializeInjection. */
EXPORT int gpuprof_start(void) { return start(0); }

EXPORT int InitializeInjection(void);

/* The driver loads one such library only: the one that was named before `run` put this one in its place is loaded from here. */
static void initialize_next(void)
{
    static int once;
    const char *path = getenv("GPUPROF_NEXT_INJECTION");
    int (*initialize)(void) = NULL;
    if (!path || !*path || __atomic_exchange_n(&once, 1, __ATOMIC_RELAXED))
        return;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library)
        *(void **)&initialize = dlsym(library, "InitializeInjection");
    if (initialize && initialize != InitializeInjection)
        log_line("%s answers %d", path, initialize());
    else
        log_line("%s is not an injection library", path);
}

/* Called by the CUDA driver during cuInit. 1: loaded. A failure of ours must not fail the application, so it is always 1. */
EXPORT int InitializeInjection(void)
{
    log_wanted = getenv("GPUPROF_INJECT_LOG") != NULL;
    initialize_next(); /* first: attached, this one would keep it from CUPTI, which it had when it was alone */
    start(1);
    return 1;
}
