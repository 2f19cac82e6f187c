/* libgpuprof_inject.so: records GPU work of the process it is loaded into, while a sampler listens.
 *
 * Loaded by the CUDA driver through CUDA_INJECTION64_PATH, or later into a running process. It links neither CUPTI, libcuda nor libstdc++,
 * never throws, never exits, never prints unless GPUPROF_INJECT_LOG is set. One thread of its own, with all signals blocked, looks for a
 * listener; without one, CUPTI is finalized and the process runs at its native speed.
 *
 *   waiting -> recording   a sampler holds its lock on the ring, and no context is being made (contexts.c): subscribe, enable. Where a sampler
 *                          is expected (GPUPROF_EXPECT_LISTENER), or hears the knock (knock.c), already within cuInit, when there can be no
 *                          context yet; cuInit waits for one that has heard it, a second at most
 *   recording -> detaching the lock is gone, or the budget asks for a pause: the next CUDA call flushes and finalizes at its exit (a
 *                          finalize from another thread, while the application is in CUDA calls, can crash)
 *   detaching -> waiting   finalized; after a pause of the budget it begins anew
 *   recording -> parked    instead, while the process makes CUDA graphs (park.c): nothing is recorded, CUPTI still knows us; then detaching
 *   waiting -> refused     another CUPTI user is subscribed, or CUPTI is missing: said in the ring's header, tried again. Where CUPTI allows
 *                          several subscribers: recording, beside the other one (shared.h); then nothing is finalized
 *   any -> ended           the process exits: the library's thread flushes while exit() waits, for END_WAIT_S at most
 */
#define _GNU_SOURCE
#include "look.h"
#include "nvtx.h"
#include "session.h"

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
#ifndef END_WAIT_S
#define END_WAIT_S 2 /* a CUPTI that hangs must not keep the process from ending */
#endif

struct session session = {.ring = {.fd = -1}, .writer = PTHREAD_MUTEX_INITIALIZER};

static int started;
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

/* The last records; the sampler holds the ring's memory and reads on after the process is gone. */
static void finish(void)
{
    nvtx_listen(0);
    nvtx_flush(now_ns(), 1);
    int in_use;
    while (!(in_use = change_phase(RECORDING, ENDED) || change_phase(DETACH_WANTED, ENDED)) && !change_phase(WAITING, ENDED)) {
        struct timespec moment = {.tv_nsec = 1000000}; /* a call of another thread finalizes */
        nanosleep(&moment, NULL);
    }
    if (in_use || is_parked()) {
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

/* Within cuInit, where no context can be in the making: see contexts.c for what it would mean later. The application goes on when the sampler
 * is there: what it launches at once would be nobody's otherwise. */
static void attach_in_init(int heard)
{
    const char *value = getenv("GPUPROF_EXPECT_LISTENER");
    int expected = heard || (value && strcmp(value, "1") == 0); /* by what started it: one in another network namespace hears nothing */
    if (!expected || !change_phase(WAITING, ATTACHING))
        return;
    look_expecting();
    if (heard && phase_of(get_state()) == RECORDING)
        meet_listener();
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
    int heard = knock(in_init);
    if (in_init)
        attach_in_init(heard);
    result = start_thread();
    if (result != 0) {
        log_line("no thread: %s", strerror(result));
        set_thread_ended(1); /* attach has registered at_exit */
        if (change_phase(RECORDING, DETACH_WANTED))
            return -result; /* the next call beside which no graph is made finalizes, and the ring is used till then */
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
