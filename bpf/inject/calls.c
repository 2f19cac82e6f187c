/* What happens at each call of the CUDA driver: launches are stamped and some of them, chosen by chance, call the probe; calls that wait for
 * the device are timed (calls.h). */
#define _GNU_SOURCE
#include "call_classes.h"
#include "calls.h"
#include "events.h"
#include "graphs.h"
#include "launch_notes.h"
#include "nvtx.h"
#include "session.h"
#include "shared.h"

#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define TIMED_MASK 63u    /* one callback of so many is timed */
#define SHIFT_BITS 6      /* of the word that CUPTI keeps from enter to exit: the rest of it is the time */
#define BURST_SHIFT 6
#define LONG_COPY_NS 50000u /* a copy that may return before it is done has waited when it took so long; so has a call that frees */
#define NESTED 4u           /* calls of a thread that are within each other, as far as they are told apart */

static uint64_t probe_ns, timed_calls, timed_ns, probes, stacks_now, others, other_ns; /* all atomic */

/* The uprobe sits on the first instruction, a 5-byte nop, which the kernel replaces by a call instead of a trap. Arguments: rdi correlation id,
 * rsi CLOCK_MONOTONIC ns at the call's enter, rdx attach epoch, rcx how many launches this one stands for; 0: it is there for the wait only. */
EXPORT __attribute__((naked, noinline)) void gpuprof_launch(uint64_t correlation, uint64_t enter_ns, uint64_t attach, uint64_t weight)
{
    (void)correlation, (void)enter_ns, (void)attach, (void)weight;
    __asm__ volatile(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n\tret");
}

/* ---- chance --------------------------------------------------------------------------------------------------------------- */

/* 64 bits that nobody foresees, from what no two calls have in common; there is no state to share between threads. */
static uint64_t chance(uint32_t correlation, uint64_t time_ns)
{
    uint64_t x = time_ns * 0x9e3779b97f4a7c15ull ^ (uint64_t)correlation << 32 ^ (uintptr_t)&session;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static int one_of(uint64_t random, uint32_t shift) { return shift == 0 || random >> (64 - shift) == 0; }

/* ---- from the enter of a call to its exit ---------------------------------------------------------------------------------- */

/* CUPTI keeps one word for that, which several subscribers may have in common: there it is kept here. A call whose enter was not seen has 0. */
struct under_way {
    uint32_t correlation, cbid;
    uint64_t word;
};
static __thread struct under_way under_way[NESTED];
static __thread uint32_t entered_calls;

/* `shared`: whether the subscription that is called is one of several; of one that has just ended a call may still be under way. */
static void keep(const struct cupti_callback_data *call, uint32_t cbid, int shared, uint64_t word)
{
    if (shared)
        under_way[entered_calls++ % NESTED] = (struct under_way){call->correlation_id, cbid, word};
    else
        *call->correlation_data = word;
}

static uint64_t kept(const struct cupti_callback_data *call, uint32_t cbid, int shared)
{
    if (!shared)
        return *call->correlation_data;
    for (uint32_t i = 1; i <= NESTED; i++) { /* the newest first */
        const struct under_way *place = &under_way[(entered_calls - i) % NESTED];
        if (place->correlation == call->correlation_id && place->cbid == cbid)
            return place->word;
    }
    return 0;
}

static void add(uint64_t *total, uint64_t more) { __atomic_fetch_add(total, more, __ATOMIC_RELAXED); }

/* Of calls that make graphs: whether they are under way. The word says of which subscription the enter was. */
static void graph_call(const struct cupti_callback_data *call, uint32_t cbid, int shared)
{
    uint64_t word = (uint64_t)__atomic_load_n(&session.epoch, __ATOMIC_RELAXED) << 1 | 1;
    const int *result = call->return_value;
    if (call->site == SITE_ENTER) {
        keep(call, cbid, shared, word);
        graphs_entered();
    } else {
        const struct cuda_stream_params *params = call->params; /* of those that begin or end a capture */
        int of_capture = graphs_is_of_capture(cbid);
        graphs_left(cbid, kept(call, cbid, shared) == word, result && *result != 0, of_capture && params ? params->stream : NULL);
        add(&others, 1);
    }
}

/* ---- a call --------------------------------------------------------------------------------------------------------------- */

static void call_probe(const struct cupti_callback_data *call, uint64_t entered, uint64_t epoch, uint64_t weight)
{
    uint64_t before = now_ns();
    gpuprof_launch(call->correlation_id, entered, epoch, weight);
    add(&probe_ns, now_ns() - before);
    add(&probes, 1);
    add(&stacks_now, 1);
}

/* What is decided here goes by what is known before the launch, so that a weight of 1/p is right whatever the launches then do. */
static void enter(const struct cupti_callback_data *call, uint32_t cbid, enum call_class class, int shared)
{
    if (class == CALL_RECORD || class == CALL_OTHER)
        return;
    uint64_t now = now_ns(), shift = 0;
    int taken = 0;
    if (class == CALL_LAUNCH || class == CALL_COPY) {
        uint32_t at_once = __atomic_load_n(&session.plan.stacks_at_once, __ATOMIC_RELAXED);
        shift = __atomic_load_n(&session.plan.shift, __ATOMIC_RELAXED);
        if (at_once && __atomic_load_n(&stacks_now, __ATOMIC_RELAXED) >= at_once)
            shift += BURST_SHIFT;
        taken = one_of(chance(call->correlation_id, now), (uint32_t)shift);
        launch_note(call->correlation_id, now, !taken);
    }
    /* now < 2^58: nine years after the machine's start. */
    keep(call, cbid, shared, now << SHIFT_BITS | (taken ? shift + 1 : 0));
}

/* Whether a copy is one that returns when it is done; the others do so only when they took long. */
static int blocks(const char *name) { return name && strncmp(name, "cuMemcpy", 8) == 0 && !strstr(name, "Async"); }

/* The number of a stream, as of the records; whether it is known. A handle is asked about only after the driver has accepted it, in this call. */
static int number_of(void *stream, uint8_t per_thread, uint32_t *number)
{
    int known = 0;
    if (!session.cupti.cuptiGetStreamIdEx)
        return 0;
    if (cupti_enter())
        known = session.cupti.cuptiGetStreamIdEx(NULL, stream, per_thread, number) == CUPTI_OK;
    cupti_leave();
    return known;
}

static int failed(const struct cupti_callback_data *call)
{
    const int *result = call->return_value;
    return !call->params || (result && *result != 0);
}

/* Of a call that waits for one stream, or for an event of one: which. A wait for a context is one for all of its streams. */
static void note_stream(const struct cupti_callback_data *call, uint32_t cbid, struct ring_slot *slot)
{
    const struct cuda_stream_params *stream = call->params;
    const struct cuda_event_params *event = call->params;
    int known = 0;
    if (failed(call))
        return;
    if (cbid == CBID_cuStreamSynchronize || cbid == CBID_cuStreamSynchronize_ptsz)
        known = number_of(stream->stream, cbid == CBID_cuStreamSynchronize_ptsz, &slot->wait.stream);
    else if (cbid == CBID_cuEventSynchronize)
        known = events_stream(event->event, &slot->wait.stream);
    if (known)
        slot->flags = WAIT_HAS_STREAM;
    else
        slot->wait.stream = 0;
}

static void note_event(const struct cupti_callback_data *call, uint32_t cbid)
{
    const struct cuda_event_params *event = call->params;
    uint32_t stream;
    if (!failed(call) && number_of(event->stream, cbid == CBID_cuEventRecord_ptsz || cbid == CBID_cuEventRecordWithFlags_ptsz, &stream))
        events_recorded(event->event, stream);
}

static void waited(const struct cupti_callback_data *call, uint32_t cbid, enum call_class class, uint64_t entered, uint64_t epoch, int probed)
{
    uint64_t end = now_ns();
    int may_wait = class == CALL_FREE || (class == CALL_COPY && !blocks(call->function_name));
    if (cbid == CBID_cuEventSynchronize)
        calls_await_event();
    if (end <= entered || (may_wait && end - entered < LONG_COPY_NS))
        return;
    uint64_t length = end - entered, threshold = __atomic_load_n(&session.plan.wait_ns, __ATOMIC_RELAXED);
    add(&session.ring.header->waits, 1);
    add(&session.ring.header->wait_ns, length);
    if (length < threshold && (chance(~call->correlation_id, entered) >> 32) * threshold >= length << 32)
        return;
    struct ring_slot slot = {.kind = SLOT_WAIT, .epoch = (uint32_t)epoch};
    slot.wait.start = entered;
    slot.wait.end = end;
    slot.wait.correlation = call->correlation_id;
    slot.wait.thread = (uint32_t)gettid();
    slot.wait.weight = length < threshold ? (float)((double)threshold / (double)length) : 1;
    note_stream(call, cbid, &slot);
    if (!probed)
        call_probe(call, entered, epoch, 0);
    records_add_wait(&slot, call->function_name);
}

static void leave(const struct cupti_callback_data *call, uint32_t cbid, enum call_class class, int shared)
{
    uint64_t now = get_state(), word = class == CALL_RECORD || class == CALL_OTHER ? 0 : kept(call, cbid, shared);
    uint64_t entered = word >> SHIFT_BITS, taken = word & ((1u << SHIFT_BITS) - 1);
    /* While another thread finalizes, records still come until it is done, and want their launches. */
    int listening = (phase_of(now) == RECORDING || phase_of(now) == DETACH_WANTED || phase_of(now) == FINALIZING) && !is_parked();
    /* The word of a call that was under way when we attached may be from the attach before. */
    if (class == CALL_RECORD && listening)
        note_event(call, cbid);
    if (class == CALL_RECORD || class == CALL_FREE)
        add(&others, 1);
    if (listening && word && entered >= __atomic_load_n(&session.attached_ns, __ATOMIC_RELAXED)) {
        const int *result = call->return_value;
        int probed = 0;
        if ((class == CALL_LAUNCH || class == CALL_COPY) && (!result || *result == 0)) { /* one that failed has no kernel */
            add(&session.ring.header->launches, 1);
            if (taken) {
                add(&session.ring.header->stacks, 1);
                call_probe(call, entered, now >> 8, 1ull << (taken - 1));
                probed = 1;
            }
        }
        if (class != CALL_LAUNCH && phase_of(now) != FINALIZING) /* it would ask CUPTI for the stream */
            waited(call, cbid, class, entered, now >> 8, probed);
    }
    if (phase_of(now) == DETACH_WANTED && graphs_are_settled(GRAPHS_QUIET_NS) && change_state(now, with_phase(now, FINALIZING)))
        finalize_here();
}

void calls_back(void *user, int domain, uint32_t cbid, const void *data)
{
    (void)domain;
    int shared = user != NULL;
    const struct cupti_callback_data *call = data;
    enum call_class class = class_of_call(cbid);
    if (class == CALL_NONE)
        return;
    if (class == CALL_GRAPH) {
        graph_call(call, cbid, shared);
        return;
    }
    int timed = (call->correlation_id & TIMED_MASK) == 0;
    if (!timed || (class != CALL_LAUNCH && class != CALL_RECORD) || (class == CALL_RECORD && phase_of(get_state()) != RECORDING)) {
        if (call->site == SITE_ENTER)
            enter(call, cbid, class, shared);
        else
            leave(call, cbid, class, shared);
        return;
    }
    /* The enter and the exit of one launch in so many, each with its part of the two clock readings. */
    uint64_t before = now_ns();
    if (class == CALL_RECORD) {
        if (call->site == SITE_EXIT)
            leave(call, cbid, class, shared);
        add(&other_ns, (TIMED_MASK + 1) * (now_ns() - before));
    } else if (call->site == SITE_ENTER) {
        enter(call, cbid, class, shared);
        add(&timed_calls, 1);
        add(&timed_ns, now_ns() - before);
    } else if ((kept(call, cbid, shared) & ((1u << SHIFT_BITS) - 1)) == 0 && phase_of(get_state()) == RECORDING) {
        leave(call, cbid, class, shared);
        add(&timed_ns, now_ns() - before);
    } else {
        leave(call, cbid, class, shared);
    }
}

/* ---- for the controller --------------------------------------------------------------------------------------------------- */

struct controller_counts calls_counts(void)
{
    struct ring_header *header = session.ring.header;
    struct controller_counts counts = {.now_ns = now_ns()};
    counts.launches = __atomic_load_n(&header->launches, __ATOMIC_RELAXED);
    counts.records = __atomic_load_n(&header->records, __ATOMIC_RELAXED);
    counts.waits = __atomic_load_n(&header->waits, __ATOMIC_RELAXED);
    counts.wait_ns = __atomic_load_n(&header->wait_ns, __ATOMIC_RELAXED);
    counts.judged = __atomic_load_n(&header->judged, __ATOMIC_RELAXED);
    counts.behind = __atomic_load_n(&header->behind, __ATOMIC_RELAXED);
    counts.stacks = __atomic_load_n(&probes, __ATOMIC_RELAXED);
    counts.probe_ns = __atomic_load_n(&probe_ns, __ATOMIC_RELAXED);
    counts.timed_calls = __atomic_load_n(&timed_calls, __ATOMIC_RELAXED);
    counts.timed_ns = __atomic_load_n(&timed_ns, __ATOMIC_RELAXED);
    counts.others = __atomic_load_n(&others, __ATOMIC_RELAXED);
    counts.other_ns = __atomic_load_n(&other_ns, __ATOMIC_RELAXED);
    nvtx_count(&counts);
    counts.cycle_ns = __atomic_load_n(&session.cycle_ns, __ATOMIC_RELAXED);
    return counts;
}

void calls_begin_step(void) { __atomic_store_n(&stacks_now, 0, __ATOMIC_RELAXED); }
