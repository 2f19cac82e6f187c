/* The parts of the mock CUPTI: mock_cupti.c (subscribers, callbacks), mock_activity.c (buffers, and what goes into them), mock_records.c (records), mock_shared.c (what one of several
 * subscribers calls), mock_script.c (what it shall do, and what was done to it).
 *
 * Behaviour is scripted by MOCK_CUPTI="key=value,..." or mock_cupti_set(key, value): SETTINGS. What happened is counted in the file that
 * MOCK_CUPTI_COUNTERS names (48-byte slots: name, value), which stays when the process is gone: COUNTERS.
 *
 * It is strict where the real one is fragile: the client is called with its locks held, records made after the last flush are lost in
 * cuptiFinalize, it is unusable once its own exit handler has run, and what a client must not do is counted (fault_*).
 */
#ifndef MOCK_CUPTI_H
#define MOCK_CUPTI_H

#include "../../bpf/inject/cupti_abi.h"
#include "mock_gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum { MAX_LIMIT_REACHED = 12, NOT_INITIALIZED = 15, INVALID_OPERATION = 16 };

#define SETTINGS(S)                                                                                                    \
    S(subscribe_result)  /* what cuptiSubscribe answers instead of trying */                                           \
    S(activity_result)   /* what cuptiActivityEnable answers for kernels */                                            \
    S(finalize_result)                                                                                                 \
    S(params_size)       /* the largest cuptiSubscribe_v2 structure that is accepted (13.0: 32) */                     \
    S(clock_offset)      /* ns on top of CLOCK_REALTIME; a change is a step */                                         \
    S(first_correlation) /* the id of the next call */                                                                 \
    S(bad_every)         /* each nth kernel record is a lie: times of 0, an end before the start, the far future */    \
    S(foreign_every)     /* each nth record comes after one of a kind that nobody asked for */                         \
    S(lose_every)        /* each nth record is not kept, and reported as dropped */                                    \
    S(backwards)         /* neighbouring kernels of a buffer swap places */                                            \
    S(flush_ms)          /* how long cuptiActivityFlushAll takes; -1: for ever */                                      \
    S(subscribe_ms)                                                                                                    \
    S(sticky)            /* that several subscribers are allowed stays so when all have left */                        \
    S(user_records)      /* subscribers have records of another layout */                                              \
    S(whole_graphs)      /* another subscriber has asked for graphs as one record each */

#define COUNTERS(C)                                                                                                    \
    C(loaded) C(subscribes) C(refusals) C(finalizes) C(subscribers) C(callbacks_enabled) C(kinds_enabled)              \
    C(enters) C(exits) C(records) C(delivered) C(discarded) C(lost) C(bad) C(incomplete) C(buffers_out) C(teardowns)   \
    C(fault_small_buffer) C(fault_finalize_outside_exit) C(fault_after_teardown) C(fault_flush_in_delivery)             \
    C(fault_signals_open) C(fault_dirty_buffer) C(fault_bad_stream) C(pool_limit)                                      \
    C(flushes) C(other_records) C(other_finalizes) C(unsubscribes) C(fault_forced) C(fault_old_function) C(fault_stale)        \
    C(fault_in_graph)

enum { SUBSCRIBERS = 4, CALLBACK_IDS = 1024, KINDS = 64 };

/* Who takes records: the client of the functions without a subscriber, or a subscriber by those with one. */
struct client {
    atomic_uchar enabled[KINDS];
    cupti_buffer_requested requested;
    cupti_buffer_completed completed;
    cupti_shared_requested shared_requested;
    cupti_shared_completed shared_completed;
    size_t lost;
    atomic_int is_other; /* its records are counted apart */
};

struct subscriber {
    _Atomic uintptr_t handle; /* 0: free; each is given out once */
    _Atomic(cupti_callback) callback;
    void *_Atomic user;
    char name[64];
    atomic_uchar callback_enabled[CALLBACK_IDS];
    struct client client;
};

extern struct subscriber subscribers[SUBSCRIBERS];
extern struct client old_client;

enum setting {
#define NAME(name) set_##name,
    SETTINGS(NAME) SETTINGS_COUNT
#undef NAME
};

enum counter_name {
#define NAME(name) count_##name,
    COUNTERS(NAME) COUNTERS_COUNT
#undef NAME
};

struct counter {
    char name[40];
    _Atomic int64_t value;
};

extern _Atomic int64_t mock_settings[SETTINGS_COUNT];
extern struct counter *mock_counters;
#define SETTING(name) atomic_load(&mock_settings[set_##name])
#define COUNT(name) mock_counters[count_##name].value

extern atomic_uint next_correlation;
extern atomic_int torn_down, is_child;
extern __thread int in_delivery;

#define DECLARE(name, arguments) cupti_result name arguments;
CUPTI_FUNCTIONS(DECLARE)
CUPTI_OPTIONAL(DECLARE)
CUPTI_SHARED(DECLARE)
#undef DECLARE

int mock_cupti_set(const char *key, long long value);
int mock_gone(void); /* whether the exit handler has run; a call after it is a fault */
void mock_sleep_ms(int64_t ms);
uint64_t mock_clock_ns(int clock);
uint64_t mock_cupti_ns(void);

struct subscriber *subscriber_of(cupti_subscriber handle); /* NULL: there is none of this handle */
int is_shared(void);                                       /* several subscribers are allowed, and there is one */
void old_function(void);                                   /* was called, which is a fault where CUPTI is shared */
void mock_cupti_finalize(void);                            /* by another user of CUPTI */

cupti_result activity_enable(struct client *client, uint32_t kind, int on);
void activity_register(struct client *client, cupti_buffer_requested requested, cupti_buffer_completed completed,
                       cupti_shared_requested shared_requested, cupti_shared_completed shared_completed);
void activity_forget(struct client *client); /* its subscriber has left; its buffers come back to it later */
size_t activity_lost(struct client *client);
cupti_result activity_next(uint8_t *buffer, size_t valid, void **record);
int activity_each(int64_t n, uint64_t count); /* whether this is an nth */
void activity_fill(void *record, const struct mock_call *call, const struct mock_work *work, uint64_t start, uint64_t made,
                   const uint8_t *first); /* `first`: where the record's buffer begins */
void activity_add(struct mock_call *call, const struct mock_work *work);
void activity_finalize(void);
void activity_in_child_at_exit(void);

#endif
