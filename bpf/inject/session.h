/* What the parts of the injection library share.
 *
 *   inject.c        starts and ends, and the library's thread
 *   look.c          what that thread does at each look at its listener
 *   attach.c        CUPTI taken into use, and let go of
 *   shared.c        the same beside another subscriber
 *   call_classes.c  which calls of the CUDA driver are looked at
 *   calls.c         what happens at each of them
 *   launch_notes.c  what is known of a launch until its record comes
 *   events.c        which stream an event is of
 *   contexts.c      whether a context is being made
 *   graphs.c        whether graphs are being made
 *   park.c          a stop without a finalize, while they are
 *   records.c       what CUPTI hands over, written into the ring
 *   nvtx.c          the program's NVTX ranges, and which of them a launch is in (nvtx_entry.c, nvtx_text.c, nvtx_paths.c)
 *   controller.c    how many stacks, and how much time, the budget allows
 */
#ifndef GPUPROF_SESSION_H
#define GPUPROF_SESSION_H

#include "controller.h"
#include "cupti_abi.h"
#include "ring.h"

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* Only the library's thread attaches (or who calls cuInit, before there is that thread) and asks to detach, only a call's exit finalizes (or, where CUPTI is shared and nothing is
 * finalized, that thread itself); ATTACHING and FINALIZING belong to who set them. */
enum phase { WAITING, ATTACHING, RECORDING, DETACH_WANTED, FINALIZING, ENDED };

struct session {
    struct cupti_api cupti;
    struct ring ring;
    pthread_mutex_t writer; /* guards the ring's writing side and the names; never held over a call that may wait for a lock of CUPTI's,
                             * since CUPTI calls back with its own locks held */
    uint64_t state;         /* attach epoch << 8 | enum phase, atomic: a launch goes by one reading of both */
    uint64_t attached_ns;   /* when the present attach began, atomic */
    uint32_t epoch;         /* attaches so far, atomic */
    uint32_t attaches;      /* the same, and those that go on in an epoch that CUPTI has not ended; the library's thread's */
    cupti_subscriber subscriber; /* ours, as long as CUPTI knows us; written by the library's thread */
    cupti_subscriber shared; /* our subscription where CUPTI is shared with others, else NULL; set by the library's thread, atomic */
    int forked;             /* this is a forked child: no thread, no ring; atomic */
    int parked;             /* CUPTI knows us, and nothing is recorded; atomic */
    int pausing;            /* the detach that is wanted or done is the budget's; atomic */
    int64_t clock_ns;       /* CLOCK_MONOTONIC minus CUPTI's clock, atomic */
    uint64_t cycle_ns;      /* what the last attach and the last detach took together, atomic */
    struct controller_plan plan; /* what the budget allows now; each field atomic */
};

extern struct session session;

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline enum phase phase_of(uint64_t word) { return (enum phase)(word & 0xff); }

static inline uint64_t with_phase(uint64_t word, enum phase to) { return (word & ~0xffull) | to; }

static inline uint64_t get_state(void) { return __atomic_load_n(&session.state, __ATOMIC_ACQUIRE); }

static inline int change_state(uint64_t from, uint64_t to)
{
    return __atomic_compare_exchange_n(&session.state, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Only for who owns the present phase. */
static inline void set_phase(enum phase to) { __atomic_store_n(&session.state, with_phase(get_state(), to), __ATOMIC_RELEASE); }

static inline int change_phase(enum phase from, enum phase to)
{
    uint64_t now = get_state();
    return phase_of(now) == from && change_state(now, with_phase(now, to));
}

/* A line on standard error, where GPUPROF_INJECT_LOG is set. */
__attribute__((format(printf, 1, 2))) void log_line(const char *format, ...);

/* At exit of the process; registered anew once CUPTI is loaded (inject.c). */
void at_exit(void);

/* attach.c: subscribes and enables; 0, or -1 with the reason in `problem`. finalize_here only at the exit of a call. still_known compares the
 * clocks, and tells whether CUPTI still knows us; lost_cupti: it does not, since another user of it, with which it was shared, has finalized it. */
int attach(char *problem, size_t problem_size);
void detach_soon(const char *message, int pausing);
int still_known(void);
void lost_cupti(void);
void resume(void);
void finalize_here(void);
void enable_activity(void);
void follow_events(void);
int has_no_kernels(void); /* CUPTI gives no kernel records though it is attached */

/* attach.c: what an end of recording, and what the end of a detach or a stop, tells the sampler. */
void recording_ended(uint64_t end_ns);

/* park.c: stops recording and keeps the subscription, since CUPTI must not be let go of while the process makes graphs; to be called while
 * recording, or while a detach is wanted. attach() goes on from there; park_look, at each look meanwhile, sees to what CUPTI still has, and wants
 * the detach once `quiet_ns` are over and `may` says so too. park_say: what the ring's header says of it. */
static inline int is_parked(void) { return __atomic_load_n(&session.parked, __ATOMIC_ACQUIRE); }
void park(int pausing);
void park_look(uint64_t now, uint64_t quiet_ns, int may);
void park_say(void);

/* After a stop without a finalize: asks for the records that are due, then, at each look, now and then for what CUPTI still has; whether that may
 * still come. The library's thread's. */
void stopped(void);
int stopped_awaits(uint64_t now);

/* Whether the process's contexts have been the same for a while, as far as the driver tells: cuptiSubscribe in another thread than that which
 * makes a context crashes in CUPTI 13.0, at the context's end of creation or at its next module. To be called at each look, since it is what a
 * while is known by; the library's thread's. */
int contexts_are_settled(void);

/* CUPTI's requests for buffers, and the buffers that it has filled. */
void records_buffer_requested(uint8_t **buffer, size_t *size, size_t *max_records);
void records_buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
void records_shared_requested(uint8_t **buffer, size_t *size, size_t *max_records, void *info);
void records_shared_completed(uint8_t *buffer, size_t size, size_t valid, void *info);

/* Since when CUPTI has had the buffer that it has had for longest; 0: it has none. */
uint64_t records_oldest_ns(void);

/* Whether CUPTI got no buffer since the last call, because too many threads hold one. */
int records_were_refused(void);

/* Says to a sampler that this ring is there (knock.c), and returns whether one has heard it; where others do so too, it is tried once, or for a
 * while. */
int knock(int patiently);

/* Waits, a second at most, until the sampler that has heard it listens. */
void meet_listener(void);

/* Writes how CUPTI's clock stands against CLOCK_MONOTONIC. */
void records_compare_clocks(void);

/* Writes a call that waited, or a span of time that was recorded. */
void records_add_wait(const struct ring_slot *wait, const char *name);
void records_add_span(uint64_t start_ns, uint64_t end_ns);

/* Notes the UUID of every device; 0 devices are noted while the driver is not initialised. */
void records_note_devices(void);

#endif
