/* libgpuprof_inject.so: records GPU work of the process it is loaded into, while a sampler listens.
 *
 * Loaded by the CUDA driver through CUDA_INJECTION64_PATH, or later into a running process. It links neither CUPTI, libcuda nor libstdc++,
 * never throws, never exits, never prints unless GPUPROF_INJECT_LOG is set. One thread of its own, with all signals blocked, looks for a
 * listener; without one, CUPTI is finalized and the process runs at its native speed.
 *
 *   waiting -> recording   a sampler holds its lock on the ring: subscribe, enable
 *   recording -> detaching the lock is gone: the next launch flushes and finalizes at its exit (a finalize from another thread, while the
 *                          application is in CUDA calls, can crash)
 *   waiting -> refused     another CUPTI user is subscribed, or CUPTI is missing: said in the ring's header, tried again
 *   any -> ended           the process exits: the library's thread flushes while exit() waits, for END_WAIT_S at most
 */
#define _GNU_SOURCE
#include "names.h"
#include "session.h"

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
#define FLUSH_PERIOD_MS 100u   /* CUPTI hands over what is complete this often */
#define FLUSH_BUSY_NS 200000000ull    /* while the process launches, and for FLUSH_AFTER_NS after */
#define FLUSH_QUIET_NS 1000000000ull
#define FLUSH_AFTER_NS 3000000000ull
#define END_WAIT_S 2           /* a CUPTI that hangs must not keep the process from ending */

/* Only the library's thread attaches and asks to detach, only a launch's exit finalizes; ATTACHING and FINALIZING belong to who set them. */
enum phase { WAITING, ATTACHING, RECORDING, DETACH_WANTED, FINALIZING, ENDED };

struct session session = {.ring = {.fd = -1}, .writer = PTHREAD_MUTEX_INITIALIZER};

static uint64_t state; /* attach epoch << 8 | enum phase, atomic: a launch goes by one reading of both */
static int cupti_opened;
static cupti_subscriber subscriber;
static uint64_t attached_ns; /* when the present attach began, atomic */
static char no_kernels[RING_TEXT]; /* why CUPTI gives no kernel records though it is attached; the library's thread's */
static int started;
static int log_wanted;
static pid_t owner; /* the process whose ring this is */

static pthread_mutex_t ending = PTHREAD_MUTEX_INITIALIZER; /* taken by exit() and the library's thread alone, briefly */
static pthread_cond_t ending_changed;
static int end_wanted, thread_ended;

/* The uprobe sits on the first instruction, a 5-byte nop, which the kernel replaces by a call instead of a trap. Arguments: rdi correlation id,
 * rsi CLOCK_MONOTONIC ns at the launch's enter, rdx attach epoch, rcx how many launches this one stands for. */
EXPORT __attribute__((naked, noinline)) void gpuprof_launch(uint64_t correlation, uint64_t enter_ns, uint64_t attach, uint64_t weight)
{
    (void)correlation, (void)enter_ns, (void)attach, (void)weight;
    __asm__ volatile(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n\tret");
}

__attribute__((format(printf, 1, 2))) static void log_line(const char *format, ...)
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

static enum phase phase_of(uint64_t word) { return (enum phase)(word & 0xff); }

static uint64_t with_phase(uint64_t word, enum phase to) { return (word & ~0xffull) | to; }

static uint64_t get_state(void) { return __atomic_load_n(&state, __ATOMIC_ACQUIRE); }

static int change_state(uint64_t from, uint64_t to)
{
    return __atomic_compare_exchange_n(&state, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Only for who owns the present phase. */
static void set_phase(enum phase to) { __atomic_store_n(&state, with_phase(get_state(), to), __ATOMIC_RELEASE); }

static int change_phase(enum phase from, enum phase to)
{
    uint64_t now = get_state();
    return phase_of(now) == from && change_state(now, with_phase(now, to));
}

/* CUPTI's own words for an error, in `text`. */
static void explain(char *text, size_t size, const char *what, cupti_result result)
{
    const char *words = NULL;
    if (session.cupti.cuptiGetResultString)
        session.cupti.cuptiGetResultString(result, &words);
    snprintf(text, size, "%s: %s (%d)", what, words ? words : "no text", result);
}

/* ---- the launch path ------------------------------------------------------------------------------------------------------- */

static void finalize_here(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a handler that calls exit() here would wait for locks that this thread holds */
    session.cupti.cuptiActivityFlushAll(1);
    records_compare_clocks();
    cupti_result result = session.cupti.cuptiFinalize();
    log_line("finalized: %d", result);
    if (result != CUPTI_OK) { /* the next best: part of the cost stays, but not our subscription */
        session.cupti.cuptiActivityDisable(ACTIVITY_CONCURRENT_KERNEL);
        session.cupti.cuptiActivityDisable(ACTIVITY_MEMCPY);
        session.cupti.cuptiActivityDisable(ACTIVITY_MEMSET);
        session.cupti.cuptiUnsubscribe(subscriber);
    }
    ring_say(&session.ring, RING_WAITING, "");
    set_phase(WAITING);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void on_call(void *user, int domain, uint32_t cbid, const void *data)
{
    (void)user, (void)domain, (void)cbid;
    const struct cupti_callback_data *call = data;
    if (call->site == SITE_ENTER) {
        *call->correlation_data = now_ns();
        return;
    }
    uint64_t now = get_state(), entered = *call->correlation_data;
    int listening = phase_of(now) == RECORDING || phase_of(now) == DETACH_WANTED;
    const int *result = call->return_value;
    /* A launch that failed has no kernel; the id of one that was under way when we attached may be from the attach before. */
    if (listening && (!result || *result == 0) && entered >= __atomic_load_n(&attached_ns, __ATOMIC_RELAXED)) {
        __atomic_fetch_add(&session.ring.header->launches, 1, __ATOMIC_RELAXED);
        gpuprof_launch(call->correlation_id, entered, now >> 8, 1);
    }
    if (phase_of(now) == DETACH_WANTED && change_state(now, with_phase(now, FINALIZING)))
        finalize_here();
}

/* ---- attaching ---------------------------------------------------------------------------------------------------------- */

static int subscribe(char *problem, size_t problem_size)
{
    cupti_result result = CUPTI_INVALID_PARAMETER;
    char other[128] = "";
    struct cupti_subscriber_params params = {
        .subscriber_name = "gpuprof",
        .old_subscriber_name = other,
        .old_subscriber_size = sizeof other,
    };
    /* CUPTI 13.0 knows the parameters without allow_multiple and refuses a larger structure. */
    const size_t sizes[] = {sizeof params, offsetof(struct cupti_subscriber_params, allow_multiple)};
    for (size_t i = 0; i < 2 && session.cupti.cuptiSubscribe_v2 && result == CUPTI_INVALID_PARAMETER; i++) {
        params.struct_size = sizes[i];
        result = session.cupti.cuptiSubscribe_v2(&subscriber, on_call, NULL, &params);
    }
    if (result == CUPTI_INVALID_PARAMETER)
        result = session.cupti.cuptiSubscribe(&subscriber, on_call, NULL);
    if (result == CUPTI_OK)
        return 0;
    other[sizeof other - 1] = 0;
    if (result == CUPTI_MULTIPLE_SUBSCRIBERS)
        snprintf(problem, problem_size, "another profiler uses CUPTI in this process: %s", other[0] ? other : "it gives no name");
    else
        explain(problem, problem_size, "CUPTI refuses a subscriber", result);
    return -1;
}

static void enable_activity(void)
{
    no_kernels[0] = 0;
    cupti_result result = session.cupti.cuptiActivityEnable(ACTIVITY_CONCURRENT_KERNEL);
    if (result != CUPTI_OK)
        explain(no_kernels, sizeof no_kernels, "CUPTI gives no kernel records", result);
    session.cupti.cuptiActivityEnable(ACTIVITY_MEMCPY);
    session.cupti.cuptiActivityEnable(ACTIVITY_MEMSET);
    ring_say(&session.ring, no_kernels[0] ? RING_REFUSED : RING_RECORDING, no_kernels);
}

static void at_exit(void);

static int attach(char *problem, size_t problem_size)
{
    struct ring_header *header = session.ring.header;
    if (!cupti_opened) {
        if (cupti_open(&session.cupti, header->library, RING_TEXT, problem, problem_size) < 0)
            return -1;
        cupti_opened = 1;
        session.cupti.cuptiGetVersion(&header->cupti_version);
        atexit(at_exit); /* exit handlers run newest first: ours must come before those that CUPTI registered while it was loaded */
    }
    if (subscribe(problem, problem_size) < 0)
        return -1;
    records_note_devices();

    pthread_mutex_lock(&session.writer);
    uint32_t epoch = header->epoch = __atomic_add_fetch(&session.epoch, 1, __ATOMIC_RELEASE);
    names_forget_sent();
    pthread_mutex_unlock(&session.writer);

    session.cupti.cuptiActivityRegisterCallbacks(records_buffer_requested, records_buffer_completed);
    if (session.cupti.cuptiActivityFlushPeriod)
        session.cupti.cuptiActivityFlushPeriod(FLUSH_PERIOD_MS);
    records_compare_clocks();
    __atomic_store_n(&attached_ns, now_ns(), __ATOMIC_RELAXED);
    /* Before the first callback, so that every record has its launch. */
    __atomic_store_n(&state, with_phase((uint64_t)epoch << 8, RECORDING), __ATOMIC_RELEASE);

    static const uint32_t launches[] = {
        CBID_cuLaunch,           CBID_cuLaunchGrid,           CBID_cuLaunchGridAsync,
        CBID_cuLaunchKernel,     CBID_cuLaunchKernel_ptsz,    CBID_cuLaunchCooperativeKernel,
        CBID_cuLaunchKernelEx,   CBID_cuLaunchKernelEx_ptsz,  CBID_cuLaunchCooperativeKernel_ptsz,
        CBID_cuGraphLaunch,      CBID_cuGraphLaunch_ptsz,     CBID_cuLaunchCooperativeKernelMultiDevice,
    };
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) /* an id that this CUPTI does not know is an error to ignore */
        session.cupti.cuptiEnableCallback(1, subscriber, DOMAIN_DRIVER_API, launches[i]);
    static const struct cbid_range copies[] = CBID_COPY_RANGES;
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        for (uint32_t id = copies[i].first; id <= copies[i].last; id++)
            session.cupti.cuptiEnableCallback(1, subscriber, DOMAIN_DRIVER_API, id);
    enable_activity();
    log_line("attached, epoch %u, %s%s%s", epoch, header->library, no_kernels[0] ? ", " : "", no_kernels);
    return 0;
}

/* A new sampler came before the process made a launch: nothing was finalized, go on, but tell the newcomer what it has not seen. */
static void resume(void)
{
    if (!change_phase(DETACH_WANTED, RECORDING))
        return;
    pthread_mutex_lock(&session.writer);
    names_forget_sent();
    pthread_mutex_unlock(&session.writer);
    records_compare_clocks();
    ring_say(&session.ring, no_kernels[0] ? RING_REFUSED : RING_RECORDING, no_kernels);
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

/* CUPTI hands a buffer over when it is full, and its own period does not shorten that (CUDA 13.0): a process that launches little would show
 * its kernels a minute late. So what is complete is asked for, unless records come by themselves. Only this thread ends the recording phase, so
 * that no finalize can meet the flush. */
static void flush_slow_records(uint64_t now)
{
    static uint64_t next, launches_before, records_before, launched_ns;
    uint64_t launches = __atomic_load_n(&session.ring.header->launches, __ATOMIC_RELAXED);
    if (launches != launches_before)
        launched_ns = now;
    launches_before = launches;
    if (now < next)
        return;
    next = now + (now - launched_ns < FLUSH_AFTER_NS ? FLUSH_BUSY_NS : FLUSH_QUIET_NS);
    if (session.ring.header->records == records_before)
        session.cupti.cuptiActivityFlushAll(0);
    records_before = session.ring.header->records;
}

/* One look at the listener; `next_clock` and `next_try` are times on CLOCK_MONOTONIC. */
static void look(uint64_t *next_clock, uint64_t *next_try)
{
    uint64_t now = now_ns();
    int listener = ring_has_listener(&session.ring);
    switch (phase_of(get_state())) {
    case WAITING:
        if (!listener && *next_try) { /* a refusal is news to the next sampler, who shall not wait for the retry */
            ring_say(&session.ring, RING_WAITING, "");
            *next_try = 0;
        } else if (listener && now >= *next_try && change_phase(WAITING, ATTACHING)) {
            char problem[RING_TEXT] = "";
            *next_try = 0;
            *next_clock = now + CLOCK_NS;
            if (attach(problem, sizeof problem) < 0) {
                log_line("refused: %s", problem);
                ring_say(&session.ring, RING_REFUSED, problem);
                *next_try = now + RETRY_NS;
                set_phase(WAITING);
            }
        }
        break;
    case RECORDING:
        if (!listener) {
            ring_say(&session.ring, RING_DETACHING, "waiting for the next launch");
            set_phase(DETACH_WANTED);
            break;
        }
        flush_slow_records(now);
        if (now >= *next_clock) {
            records_compare_clocks();
            if (session.ring.header->devices == 0) /* the driver was still initialising */
                records_note_devices();
            if (no_kernels[0])
                enable_activity();
            *next_clock = now + CLOCK_NS;
        }
        break;
    case DETACH_WANTED:
        if (listener) {
            resume();
            *next_clock = now + CLOCK_NS;
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
    if (change_phase(RECORDING, ENDED) || change_phase(DETACH_WANTED, ENDED)) {
        session.cupti.cuptiActivityFlushAll(1);
        records_compare_clocks();
    }
    set_phase(ENDED);
    ring_say(&session.ring, RING_ENDED, "");
}

static void *watch(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "gpuprof");
    uint64_t next_clock = 0, next_try = 0;
    while (!pause_or_end(POLL_NS))
        look(&next_clock, &next_try);
    finish();
    pthread_mutex_lock(&ending);
    thread_ended = 1;
    pthread_cond_broadcast(&ending_changed);
    pthread_mutex_unlock(&ending);
    return NULL;
}

/* ---- starting and ending -------------------------------------------------------------------------------------------------- */

/* Registered twice (see attach); the second run finds the thread ended. */
static void at_exit(void)
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

/* Starts watching for a sampler; idempotent. Returns 0, or -errno where the ring or the thread cannot be made. For attaching to a running
 * process; through CUDA_INJECTION64_PATH the driver calls InitializeInjection. */
EXPORT int gpuprof_start(void)
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
    pthread_atfork(NULL, NULL, in_child);
    result = start_thread();
    if (result != 0) {
        log_line("no thread: %s", strerror(result));
        ring_destroy(&session.ring);
        __atomic_store_n(&started, 0, __ATOMIC_RELEASE);
        return -result;
    }
    atexit(at_exit);
    return 0;
}

/* Called by the CUDA driver during cuInit. 1: loaded. A failure of ours must not fail the application, so it is always 1. */
EXPORT int InitializeInjection(void)
{
    gpuprof_start();
    return 1;
}
