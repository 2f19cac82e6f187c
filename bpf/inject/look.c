/* What the library's thread does at each look at its listener (inject.c has the states). */
#define _GNU_SOURCE
#include "look.h"
#include "calls.h"
#include "graphs.h"
#include "nvtx.h"
#include "session.h"
#include "shared.h"

#include <string.h>

#define CLOCK_NS 1000000000ull /* how often the clocks are compared */
#define RETRY_NS 2000000000ull /* after a refusal */
#define ASK_AHEAD_NS 2500000000ull /* so long before the end of a pause contexts are asked for; longer than they must be settled */
#define FLUSH_BUSY_NS 200000000ull    /* while the process launches, and for FLUSH_AFTER_NS after */
#define FLUSH_QUIET_NS 1000000000ull
#define FLUSH_AFTER_NS 3000000000ull
#define SHARED_AFTER_NS 1000000000ull /* where CUPTI is shared: what is out for so long is asked for, */
#define SHARED_FLUSH_NS 2000000000ull /* so often at most */
#define STEP_NS 40000000ull    /* between two steps of the controller */
#ifndef UNSETTLED_NS
#define UNSETTLED_NS 3000000000ull /* so long a detach waits for contexts that come and go; an attach waits on */
#endif
#ifndef EXPECT_NS
#define EXPECT_NS 3000000000ull /* for so long a listener that is expected counts as one */
#endif

static uint64_t expected_until; /* on CLOCK_MONOTONIC, as the next three; the library's thread's */
static uint64_t next_clock, next_try;
static uint64_t unsettled_since; /* 0: contexts are settled */

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

/* Whether the sampler, which sees graphs being made before there are callbacks, wants CUPTI left alone. */
static int is_held(uint64_t now) { return now < __atomic_load_n(&session.ring.header->hold_until_ns, __ATOMIC_RELAXED); }

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

/* Stops recording, with a detach or, while the process makes graphs, without; returns whether it does. */
static int stop(uint64_t now, int settled, int pausing, uint64_t quiet_ns)
{
    if (!session.shared && !graphs_are_settled(quiet_ns)) {
        park(pausing);
        return 1;
    }
    if (!may_finalize(now, settled))
        return 0;
    detach_soon(pausing ? "" : "waiting for the next CUDA call", pausing);
    return 1;
}

/* CUPTI still knows us, and nothing is recorded. */
static void look_parked(uint64_t now, int listener, int settled)
{
    int pausing = __atomic_load_n(&session.pausing, __ATOMIC_RELAXED);
    if (!listener && pausing) {
        __atomic_store_n(&session.pausing, 0, __ATOMIC_RELAXED);
        park_say();
    }
    if (!listener)
        next_try = 0;
    if (listener && now >= next_try) {
        if (change_phase(WAITING, ATTACHING))
            try_attach(now);
    } else {
        park_look(now, listener ? GRAPHS_PAUSE_NS : GRAPHS_QUIET_NS, may_finalize(now, settled));
    }
}

void look(void)
{
    uint64_t now = now_ns(), pause;
    int listener = has_listener(now);
    enum phase phase = phase_of(get_state());
    /* The driver is left alone while nobody listens, in a pause, and where nothing will be finalized; it is asked at each look otherwise, so that
     * what has not changed is known. (Parked, a finalize is to come.) */
    int asked = phase == RECORDING ? !session.shared : is_parked() || (listener && now + ASK_AHEAD_NS >= next_try);
    int settled = asked ? contexts_are_settled() : phase == RECORDING;
    switch (phase) {
    case WAITING:
        if (!listener)
            nvtx_listen(0); /* it left in a pause */
        shared_tidy(now);
        if (is_parked())
            look_parked(now, listener, settled);
        else if (!listener && (next_try || unsettled_since)) { /* a refusal is news to the next sampler, who shall not wait for the retry */
            ring_say(&session.ring, RING_WAITING, "");
            next_try = unsettled_since = 0;
        } else if (listener && now >= next_try && !settled) {
            say_unsettled(now);
        } else if (listener && now >= next_try && !is_held(now) && change_phase(WAITING, ATTACHING)) {
            unsettled_since = 0;
            records_note_devices();
            try_attach(now);
        }
        break;
    case RECORDING:
        if (!listener && stop(now, settled, 0, GRAPHS_QUIET_NS))
            break;
        flush_slow_records(now);
        pause = may_finalize(now, settled) || !graphs_are_settled(GRAPHS_PAUSE_NS) ? keep_within_budget(now) : 0;
        if (pause && stop(now, settled, 1, GRAPHS_PAUSE_NS)) {
            next_try = now + pause;
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
        if (listener && is_parked() && now >= next_try) {
            if (change_phase(DETACH_WANTED, ATTACHING))
                try_attach(now);
        } else if (listener && !is_parked() && (!__atomic_load_n(&session.pausing, __ATOMIC_RELAXED) || now >= next_try)) {
            resume();
            next_clock = now + CLOCK_NS;
        } else {
            if (!listener) {
                nvtx_listen(0);
                next_try = 0; /* a pause was the last sampler's */
                if (__atomic_exchange_n(&session.pausing, 0, __ATOMIC_RELAXED))
                    ring_say(&session.ring, RING_DETACHING, "waiting for the next CUDA call");
            }
            if (!graphs_are_settled(GRAPHS_QUIET_NS))
                park(__atomic_load_n(&session.pausing, __ATOMIC_RELAXED));
        }
        break;
    default:
        break;
    }
}

void look_expecting(void)
{
    uint64_t now = now_ns();
    expected_until = now + EXPECT_NS;
    try_attach(now);
}
