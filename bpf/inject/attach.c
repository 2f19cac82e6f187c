/* CUPTI taken into use, and let go of (session.h). */
#define _GNU_SOURCE
#include "call_classes.h"
#include "calls.h"
#include "graphs.h"
#include "names.h"
#include "nvtx.h"
#include "session.h"
#include "shared.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLUSH_PERIOD_MS 100u /* CUPTI hands over what is complete this often */
#define INSIDE_NS 10000000u /* the longest wait, before a finalize, for calls of CUPTI that other threads make for us */
#define DEVICE_BUFFERS 16    /* of a context: 51 MB, for 1.6 M kernels under way */

static int cupti_opened;
static uint64_t attach_ns;         /* what the present attach took; the library's thread's */
static uint64_t known_ns;          /* when CUPTI last knew us; the library's thread's */
static char no_kernels[RING_TEXT]; /* why CUPTI gives no kernel records though it is attached; the library's thread's */

int has_no_kernels(void) { return no_kernels[0] != 0; }

/* CUPTI's own words for an error, in `text`. */
static void explain(char *text, size_t size, const char *what, cupti_result result)
{
    const char *words = NULL;
    if (session.cupti.cuptiGetResultString)
        session.cupti.cuptiGetResultString(result, &words);
    snprintf(text, size, "%s: %s (%d)", what, words ? words : "no text", result);
}

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
        result = session.cupti.cuptiSubscribe_v2(&session.subscriber, calls_back, NULL, &params);
    }
    if (result == CUPTI_INVALID_PARAMETER)
        result = session.cupti.cuptiSubscribe(&session.subscriber, calls_back, NULL);
    if (result == CUPTI_OK)
        return 0;
    other[sizeof other - 1] = 0;
    if (result == CUPTI_MULTIPLE_SUBSCRIBERS && shared_subscribe(&session.subscriber, other, problem, problem_size) == 0)
        return 0;
    if (result == CUPTI_MULTIPLE_SUBSCRIBERS && problem[0])
        return -1;
    if (result == CUPTI_MULTIPLE_SUBSCRIBERS)
        snprintf(problem, problem_size, "another profiler uses CUPTI in this process: %s", other[0] ? other : "it gives no name");
    else
        explain(problem, problem_size, "CUPTI refuses a subscriber", result);
    return -1;
}

/* CUPTI's memory on the device is bounded (its default lets 250 buffers of 3.2 MB come together), and its own clearing of host buffers, which
 * the launching thread would pay for, is done by us when a buffer comes back. */
static void set_attributes(void)
{
    size_t pool = DEVICE_BUFFERS, size = sizeof pool;
    uint8_t zeroed = 1;
    /* Shared, both may be for the other one too: which would then be given buffers of ours, or be believed to clear its own. */
    if (!session.cupti.cuptiActivitySetAttribute || session.shared)
        return;
    session.cupti.cuptiActivitySetAttribute(ATTR_DEVICE_BUFFER_POOL_LIMIT, &size, &pool);
    size = sizeof zeroed;
    session.cupti.cuptiActivitySetAttribute(ATTR_ZEROED_OUT_ACTIVITY_BUFFER, &size, &zeroed);
}

static cupti_result enable(uint32_t kind)
{
    if (session.shared)
        return session.cupti.cuptiActivityEnable_v2(session.shared, kind, NULL);
    return session.cupti.cuptiActivityEnable(kind);
}

static void say_recording(void)
{
    char text[RING_TEXT] = "";
    if (no_kernels[0])
        snprintf(text, sizeof text, "%s", no_kernels);
    else if (session.shared)
        shared_words(text, sizeof text);
    ring_say(&session.ring, no_kernels[0] ? RING_REFUSED : RING_RECORDING, text);
}

void enable_activity(void)
{
    no_kernels[0] = 0;
    cupti_result result = enable(ACTIVITY_CONCURRENT_KERNEL);
    if (result != CUPTI_OK)
        explain(no_kernels, sizeof no_kernels, "CUPTI gives no kernel records", result);
    enable(ACTIVITY_MEMCPY);
    enable(ACTIVITY_MEMSET);
    say_recording();
}

int attach(char *problem, size_t problem_size)
{
    struct ring_header *header = session.ring.header;
    uint64_t began = now_ns();
    if (!cupti_opened) {
        if (cupti_open(&session.cupti, header->library, RING_TEXT, problem, problem_size) < 0)
            return -1;
        cupti_opened = 1;
        session.cupti.cuptiGetVersion(&header->cupti_version);
        atexit(at_exit); /* exit handlers run newest first: ours must come before those that CUPTI registered while it was loaded */
    }
    /* CUPTI may go on to fill a buffer of before, and its ids go on. */
    int parked = is_parked(), goes_on = parked || shared_lives();
    if (!goes_on && subscribe(problem, problem_size) < 0)
        return -1;
    if (!goes_on)
        graphs_forget();
    session.attaches++;
    pthread_mutex_lock(&session.writer);
    uint32_t epoch = header->epoch = __atomic_add_fetch(&session.epoch, !goes_on, __ATOMIC_RELEASE);
    names_forget_sent();
    paths_forget_sent();
    pthread_mutex_unlock(&session.writer);
    nvtx_listen(1); /* goes on in pauses of the budget, so that ranges are counted exactly */

    if (!parked)
        set_attributes();
    if (!parked && !session.shared) {
        session.cupti.cuptiActivityRegisterCallbacks(records_buffer_requested, records_buffer_completed);
        if (session.cupti.cuptiActivityFlushPeriod)
            session.cupti.cuptiActivityFlushPeriod(FLUSH_PERIOD_MS);
    }
    records_compare_clocks();
    __atomic_store_n(&session.attached_ns, now_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&session.pausing, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&session.parked, 0, __ATOMIC_RELEASE);
    /* Before the first callback, so that every record has its launch. */
    __atomic_store_n(&session.state, with_phase((uint64_t)epoch << 8, RECORDING), __ATOMIC_RELEASE);

    if (parked) /* a detach may have been wanted */
        calls_enable_more(&session.cupti, session.subscriber, 0);
    calls_enable(&session.cupti, session.subscriber);
    enable_activity();
    uint64_t now = now_ns();
    __atomic_store_n(&header->recording_since_ns, now, __ATOMIC_RELEASE);
    attach_ns = now - began;
    known_ns = now;
    log_line("attached, epoch %u, %s%s%s", epoch, header->library, header->message[0] ? ", " : "", header->message);
    return 0;
}

void follow_events(void) { calls_follow_events(&session.cupti, session.subscriber); }

void recording_ended(uint64_t end_ns)
{
    struct ring_header *header = session.ring.header;
    records_add_span(__atomic_load_n(&header->recording_since_ns, __ATOMIC_ACQUIRE), end_ns);
    __atomic_store_n(&header->recording_since_ns, 0, __ATOMIC_RELEASE);
}

static void say_detached(uint64_t began)
{
    struct ring_header *header = session.ring.header;
    int pausing = __atomic_load_n(&session.pausing, __ATOMIC_RELAXED);
    char text[RING_TEXT] = "";
    if (pausing && !is_parked()) /* which has counted it */
        __atomic_fetch_add(&header->pauses, 1, __ATOMIC_RELAXED);
    if (pausing && session.shared)
        snprintf(text, sizeof text, "paused, to stay within --gpu-overhead; not at native speed meanwhile, since %s uses CUPTI too", shared_with());
    else if (pausing)
        snprintf(text, sizeof text, "paused, to stay within --gpu-overhead");
    __atomic_store_n(&session.cycle_ns, attach_ns + now_ns() - began, __ATOMIC_RELAXED);
    ring_say(&session.ring, pausing ? RING_PAUSED : RING_WAITING, text);
}

/* The next call of the application finalizes; where CUPTI is shared it is let go of at once. To be called while recording, by the library's
 * thread: who enables callbacks must not meet a finalize. */
void detach_soon(const char *message, int pausing)
{
    int shared = session.shared != NULL;
    uint64_t began = now_ns(), end = shared && !shared_lives() ? known_ns : began;
    if (!shared)
        calls_enable_more(&session.cupti, session.subscriber, 1);
    __atomic_store_n(&session.pausing, pausing, __ATOMIC_RELAXED);
    if (!pausing) {
        nvtx_listen(0);
        nvtx_flush(began, 1);
        ring_say(&session.ring, RING_DETACHING, message);
    }
    set_phase(shared ? FINALIZING : DETACH_WANTED);
    if (shared) {
        if (session.shared)
            shared_stop(session.subscriber);
        recording_ended(end);
        say_detached(began);
        set_phase(WAITING);
    }
}

void lost_cupti(void)
{
    char text[RING_TEXT];
    set_phase(FINALIZING);
    recording_ended(known_ns);
    snprintf(text, sizeof text, "%s has let go of CUPTI for the whole process; attaching anew", shared_with());
    log_line("%s", text);
    ring_say(&session.ring, RING_REFUSED, text);
    set_phase(WAITING);
}

/* Where another user of CUPTI finalizes it, our subscription ends without a word. */
int still_known(void)
{
    int known = !session.shared || shared_lives();
    if (known) {
        known_ns = now_ns();
        records_compare_clocks();
    }
    return known;
}

/* A listener is there again, or the pause is over, before the process made a call: nothing was finalized, go on. A new sampler is told what it
 * has not seen. */
void resume(void)
{
    if (!change_phase(DETACH_WANTED, RECORDING))
        return;
    calls_enable_more(&session.cupti, session.subscriber, 0);
    if (!__atomic_exchange_n(&session.pausing, 0, __ATOMIC_RELAXED)) {
        pthread_mutex_lock(&session.writer);
        names_forget_sent();
        paths_forget_sent();
        pthread_mutex_unlock(&session.writer);
        nvtx_listen(1);
    }
    records_compare_clocks();
    say_recording();
}

void finalize_here(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a handler that calls exit() here would wait for locks that this thread holds */
    uint64_t began = now_ns();
    session.cupti.cuptiActivityFlushAll(1);
    records_compare_clocks();
    cupti_alone(INSIDE_NS);
    if (!graphs_are_settled(GRAPHS_QUIET_NS)) { /* one is being made since: recording goes on until the library's thread parks */
        set_phase(DETACH_WANTED);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return;
    }
    if (!is_parked())
        recording_ended(began);
    cupti_result result = session.cupti.cuptiFinalize();
    log_line("finalized: %d", result);
    if (result != CUPTI_OK) { /* the next best: part of the cost stays, but not our subscription */
        session.cupti.cuptiActivityDisable(ACTIVITY_CONCURRENT_KERNEL);
        session.cupti.cuptiActivityDisable(ACTIVITY_MEMCPY);
        session.cupti.cuptiActivityDisable(ACTIVITY_MEMSET);
        session.cupti.cuptiUnsubscribe(session.subscriber);
    }
    say_detached(began);
    __atomic_store_n(&session.parked, 0, __ATOMIC_RELEASE);
    set_phase(WAITING);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
