/* A stop without a finalize, while the process makes CUDA graphs (session.h). */
#define _GNU_SOURCE
#include "call_classes.h"
#include "graphs.h"
#include "nvtx.h"
#include "session.h"

#define FLUSH_NS 500000000ull    /* between two flushes for what is still out */
#ifndef GIVE_UP_NS
#define GIVE_UP_NS 5000000000ull /* a buffer that is not back by then comes later, or never */
#endif

static uint64_t stopped_ns, next_flush;

void stopped(void)
{
    session.cupti.cuptiActivityFlushAll(0); /* by force records would come before they are complete */
    records_compare_clocks();
    stopped_ns = now_ns();
    next_flush = stopped_ns + FLUSH_NS;
}

int stopped_awaits(uint64_t now)
{
    if (records_oldest_ns() == 0 || now >= stopped_ns + GIVE_UP_NS)
        return 0;
    if (now >= next_flush) {
        next_flush = now + FLUSH_NS;
        session.cupti.cuptiActivityFlushAll(0);
    }
    return records_oldest_ns() != 0;
}

void park_say(void)
{
    if (__atomic_load_n(&session.pausing, __ATOMIC_RELAXED))
        ring_say(&session.ring, RING_PAUSED, "paused, to stay within --gpu-overhead; CUPTI stays loaded while the process makes CUDA graphs");
    else
        ring_say(&session.ring, RING_WAITING, "CUPTI stays loaded while the process makes CUDA graphs");
}

void park(int pausing)
{
    uint64_t began = now_ns();
    int anew = !is_parked();
    if (!change_phase(RECORDING, FINALIZING) && !change_phase(DETACH_WANTED, FINALIZING))
        return; /* the exit of a call finalizes */
    __atomic_store_n(&session.pausing, pausing, __ATOMIC_RELAXED);
    if (anew) { /* kinds first: a launch without its record is a count, a record without its launch has no stack */
        session.cupti.cuptiActivityDisable(ACTIVITY_CONCURRENT_KERNEL);
        session.cupti.cuptiActivityDisable(ACTIVITY_MEMCPY);
        session.cupti.cuptiActivityDisable(ACTIVITY_MEMSET);
    }
    calls_disable(&session.cupti, session.subscriber);
    if (!pausing) {
        nvtx_listen(0);
        nvtx_flush(began, 1);
    }
    if (anew) {
        recording_ended(began);
        stopped();
        __atomic_fetch_add(&session.ring.header->pauses, (uint32_t)pausing, __ATOMIC_RELAXED);
    }
    log_line("parked");
    __atomic_store_n(&session.parked, 1, __ATOMIC_RELEASE);
    park_say();
    set_phase(WAITING);
}

void park_look(uint64_t now, uint64_t quiet_ns, int may)
{
    if (stopped_awaits(now) || !may || !graphs_are_settled(quiet_ns))
        return;
    calls_enable(&session.cupti, session.subscriber); /* one of them will finalize */
    calls_enable_more(&session.cupti, session.subscriber, 1);
    if (!__atomic_load_n(&session.pausing, __ATOMIC_RELAXED))
        ring_say(&session.ring, RING_DETACHING, "waiting for the next CUDA call");
    set_phase(DETACH_WANTED);
}
