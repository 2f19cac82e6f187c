/* The parts of the mock CUPTI: mock_cupti.c (subscriber, callbacks), mock_activity.c (records and buffers), mock_script.c (what it shall do, and
 * what was done to it).
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
    S(subscribe_ms)

#define COUNTERS(C)                                                                                                    \
    C(loaded) C(subscribes) C(refusals) C(finalizes) C(subscribers) C(callbacks_enabled) C(kinds_enabled)              \
    C(enters) C(exits) C(records) C(delivered) C(discarded) C(lost) C(bad) C(incomplete) C(buffers_out) C(teardowns)   \
    C(fault_small_buffer) C(fault_finalize_outside_exit) C(fault_after_teardown) C(fault_flush_in_delivery)             \
    C(fault_signals_open) C(fault_dirty_buffer) C(fault_bad_stream) C(pool_limit)

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
#undef DECLARE

int mock_cupti_set(const char *key, long long value);
int mock_gone(void); /* whether the exit handler has run; a call after it is a fault */
void mock_sleep_ms(int64_t ms);
uint64_t mock_clock_ns(int clock);
uint64_t mock_cupti_ns(void);

void activity_add(struct mock_call *call, const struct mock_work *work);
void activity_finalize(void);
void activity_in_child_at_exit(void);

#endif
