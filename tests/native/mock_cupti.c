/* A libcupti without a GPU: one subscriber, callbacks only where it subscribed, activity records on the real layouts in buffers that the
 * client gives, handed over when full, once a period, or on a flush.
 *
 * Behaviour is scripted by MOCK_CUPTI="key=value,..." or mock_cupti_set(key, value); see `settings`. What happened is counted in the file that
 * MOCK_CUPTI_COUNTERS names (32-byte slots: name, value), which stays after the process is gone; see `counters`.
 *
 * It is strict where the real one is fragile: client callbacks come with its own locks held, records made after the last flush are lost in
 * cuptiFinalize, it is unusable once its own exit handler has run, and what a client must not do is counted (fault_*).
 * -DMOCK_OLD leaves out what CUPTI 11 lacks, -DMOCK_INCOMPLETE cuptiFinalize.
 */
#define _GNU_SOURCE
#include "../../bpf/inject/cupti_abi.h"
#include "mock_gpu.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { NOT_INITIALIZED = 15, MAX_LIMIT_REACHED = 12, INVALID_OPERATION = 16, UNKNOWN = 999 };
enum { CALLBACK_IDS = 1024, KINDS = 64, STREAMS = 64, KIND_OVERHEAD = 17 };

#define SETTINGS(S)                                                                                                    \
    S(subscribe_result)   /* what cuptiSubscribe answers instead of trying */                                          \
    S(activity_result)    /* what cuptiActivityEnable answers for kernels */                                           \
    S(finalize_result)                                                                                                 \
    S(params_size)        /* the largest cuptiSubscribe_v2 structure that is accepted (13.0: 32) */                    \
    S(clock_offset)       /* ns on top of CLOCK_REALTIME; a change is a step */                                        \
    S(first_correlation)  /* the id of the next call */                                                                \
    S(bad_every)          /* each nth kernel record is a lie: times of 0, an end before the start, the far future */   \
    S(foreign_every)      /* each nth record is preceded by one of a kind that nobody asked for */                     \
    S(lose_every)         /* each nth record is not kept, and counted as dropped */                                    \
    S(backwards)          /* the kernels of a buffer come in reverse order */                                          \
    S(flush_ms)           /* how long cuptiActivityFlushAll takes; -1 for ever */                                      \
    S(subscribe_ms)

#define COUNTERS(C)                                                                                                    \
    C(loaded) C(subscribes) C(refusals) C(finalizes) C(subscribers) C(callbacks_enabled) C(kinds_enabled)              \
    C(enters) C(exits) C(records) C(delivered) C(discarded) C(lost) C(bad) C(incomplete) C(buffers_out) C(teardowns)   \
    C(fault_null_buffer) C(fault_finalize_outside_exit) C(fault_after_teardown) C(fault_flush_in_delivery)             \
    C(fault_signals_open)

enum {
#define NAME(name) set_##name,
    SETTINGS(NAME) SETTINGS_COUNT,
#undef NAME
#define NAME(name) count_##name,
    COUNTERS(NAME) COUNTERS_COUNT
#undef NAME
};

struct counter {
    char name[24];
    _Atomic int64_t value;
};

struct buffer {
    struct buffer *next;
    uint8_t *bytes;
    size_t size, used;
    uint64_t complete_at; /* CLOCK_MONOTONIC */
};

static _Atomic int64_t settings[SETTINGS_COUNT];
static struct counter spare_counters[COUNTERS_COUNT - SETTINGS_COUNT];
static struct counter *counters = spare_counters;
#define SETTING(name) atomic_load(&settings[set_##name])
#define COUNT(name) counters[count_##name - SETTINGS_COUNT].value

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;     /* subscriber, buffers, enabled kinds; held in buffer requests */
static pthread_mutex_t delivery = PTHREAD_MUTEX_INITIALIZER; /* held while full buffers are handed over */
static pthread_cond_t work_to_do = PTHREAD_COND_INITIALIZER;
static _Atomic(cupti_callback) callback;
static void *_Atomic callback_user;
static char subscriber_name[64];
static atomic_uchar callback_enabled[CALLBACK_IDS];
static atomic_uchar kind_enabled[KINDS];
static cupti_buffer_requested on_requested;
static cupti_buffer_completed on_completed;
static struct buffer *current, *full, **full_end = &full;
static uint64_t busy_until[STREAMS];
static atomic_uint next_correlation;
static uint64_t made;
static size_t lost_now;
static pthread_t worker;
static int worker_runs, worker_stops;
static uint32_t period_ms = 1000;
static atomic_int torn_down, is_child;
static __thread int in_exit_callback, in_delivery;

static uint64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t cupti_ns(void) { return clock_ns(CLOCK_REALTIME) + (uint64_t)SETTING(clock_offset); }

static void sleep_ms(int64_t ms)
{
    struct timespec pause = {.tv_sec = ms < 0 ? 1000000 : ms / 1000, .tv_nsec = ms < 0 ? 0 : ms % 1000 * 1000000};
    if (ms != 0)
        nanosleep(&pause, NULL);
}

static int gone(void)
{
    if (!atomic_load(&torn_down))
        return 0;
    COUNT(fault_after_teardown)++;
    return 1;
}

/* ---- scripting ------------------------------------------------------------------------------------------------------------ */

int mock_cupti_set(const char *key, long long value);
int mock_cupti_set(const char *key, long long value)
{
#define NAME(name)                                                                                                     \
    if (strcmp(key, #name) == 0) {                                                                                     \
        atomic_store(&settings[set_##name], value);                                                                    \
        if (set_##name == set_first_correlation)                                                                       \
            atomic_store(&next_correlation, (unsigned)value);                                                          \
        return 0;                                                                                                      \
    }
    SETTINGS(NAME)
#undef NAME
    return -1;
}

static void in_child(void)
{
    atomic_store(&is_child, 1);
    counters = spare_counters; /* the file is the parent's */
}

/* The real library's own exit handlers run before those that were registered before it was loaded. In a forked child it hands over what it
 * inherited, as a buffer that nobody completed. */
static void tear_down(void)
{
    COUNT(teardowns)++;
    if (atomic_load(&is_child) && on_completed && current)
        on_completed(NULL, 0, current->bytes, current->size, current->used);
    atomic_store(&torn_down, 1);
}

__attribute__((constructor)) static void load(void)
{
    atomic_store(&next_correlation, 1);
    atomic_store(&settings[set_params_size], (int64_t)sizeof(struct cupti_subscriber_params));
    const char *path = getenv("MOCK_CUPTI_COUNTERS");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0 && ftruncate(fd, sizeof spare_counters) == 0) {
        void *mapped = mmap(NULL, sizeof spare_counters, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (mapped != MAP_FAILED)
            counters = mapped;
    }
    if (fd >= 0)
        close(fd);
#define NAME(counter) strncpy(counters[count_##counter - SETTINGS_COUNT].name, #counter, sizeof counters->name - 1);
    COUNTERS(NAME)
#undef NAME
    char text[512] = "", *rest = text;
    const char *script = getenv("MOCK_CUPTI");
    strncpy(text, script ? script : "", sizeof text - 1);
    for (char *pair; (pair = strsep(&rest, ",")) != NULL;) {
        char *value = strchr(pair, '=');
        if (value)
            *value = 0, mock_cupti_set(pair, atoll(value + 1));
    }
    COUNT(loaded)++;
    pthread_atfork(NULL, NULL, in_child);
    atexit(tear_down);
}

/* ---- buffers ---------------------------------------------------------------------------------------------------------------- */

static void set_aside(void) /* with `lock`: the current buffer is one to hand over */
{
    if (!current)
        return;
    *full_end = current;
    full_end = &current->next;
    current = NULL;
}

/* Hands over every buffer set aside; `force` hides that the work of some records has not ended. */
static void deliver(int force)
{
    pthread_mutex_lock(&delivery);
    pthread_mutex_lock(&lock);
    struct buffer *list = full, *kept = NULL;
    full = NULL, full_end = &full;
    pthread_mutex_unlock(&lock);
    uint64_t now = cupti_ns();
    while (list) {
        struct buffer *buffer = list;
        list = list->next;
        if (!force && buffer->complete_at > clock_ns(CLOCK_MONOTONIC)) {
            buffer->next = kept;
            kept = buffer;
            continue;
        }
        size_t records = 0;
        void *record = NULL;
        while (cuptiActivityGetNextRecord(buffer->bytes, buffer->used, &record) == CUPTI_OK) {
            struct cupti_kernel *kernel = record;
            records++;
            if (force && kernel->kind == ACTIVITY_CONCURRENT_KERNEL && kernel->end > now && kernel->end < now + 1000000000000u)
                kernel->start = kernel->end = 0, COUNT(incomplete)++;
        }
        COUNT(delivered) += (int64_t)records;
        COUNT(buffers_out)--;
        in_delivery = 1;
        on_completed(NULL, 0, buffer->bytes, buffer->size, buffer->used);
        in_delivery = 0;
        free(buffer);
    }
    pthread_mutex_lock(&lock);
    while (kept) {
        struct buffer *buffer = kept;
        kept = kept->next;
        buffer->next = full;
        full = buffer;
        if (!buffer->next)
            full_end = &buffer->next;
    }
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&delivery);
}

static void *work_off(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!worker_stops) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (long)(period_ms % 1000) * 1000000L;
        until.tv_sec += period_ms / 1000 + until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        if (!full)
            pthread_cond_timedwait(&work_to_do, &lock, &until);
        if (current && current->complete_at <= clock_ns(CLOCK_MONOTONIC))
            set_aside();
        int stop = worker_stops;
        pthread_mutex_unlock(&lock);
        if (!stop)
            deliver(0);
        pthread_mutex_lock(&lock);
        if (full && !worker_stops) { /* work that has not ended yet */
            pthread_mutex_unlock(&lock);
            sleep_ms(1);
            pthread_mutex_lock(&lock);
        }
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* With `lock`: room for one record. */
static void *new_record(size_t bytes, uint64_t complete_at)
{
    if (current && current->used + bytes > current->size) {
        set_aside();
        pthread_cond_signal(&work_to_do);
    }
    if (!current) {
        size_t size = 0, most = 0;
        uint8_t *given = NULL;
        on_requested(&given, &size, &most);
        if (!given || size < 4096) {
            COUNT(fault_null_buffer)++;
            return NULL;
        }
        COUNT(buffers_out)++;
        current = calloc(1, sizeof *current);
        current->bytes = given;
        current->size = size;
    }
    void *record = current->bytes + current->used;
    memset(record, 0, bytes);
    current->used += bytes;
    if (complete_at > current->complete_at)
        current->complete_at = complete_at;
    return record;
}

static size_t record_bytes(uint32_t kind)
{
    return kind == ACTIVITY_MEMCPY ? MOCK_MEMCPY_BYTES : kind == ACTIVITY_MEMSET ? MOCK_MEMSET_BYTES : MOCK_KERNEL_BYTES;
}

static int each(int64_t n, uint64_t count) { return n > 0 && count % (uint64_t)n == 0; }

static void lie(struct cupti_kernel *kernel, uint64_t nth)
{
    COUNT(bad)++;
    if (nth % 3 == 0)
        kernel->start = kernel->end = 0;
    else if (nth % 3 == 1)
        kernel->end = kernel->start - 200;
    else
        kernel->start += 1ull << 62, kernel->end += 1ull << 62;
}

static void add_work(struct mock_call *call, const struct mock_work *work)
{
    if (!atomic_load(&kind_enabled[work->kind]) || atomic_load(&is_child) || atomic_load(&torn_down))
        return;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&kind_enabled[work->kind]) || !on_requested) {
        pthread_mutex_unlock(&lock);
        return;
    }
    made++;
    COUNT(records)++;
    uint64_t *busy = &busy_until[(work->device * 8 + work->stream) % STREAMS], now = clock_ns(CLOCK_MONOTONIC);
    uint64_t from = *busy > now + 1000 ? *busy : now + 1000;
    uint64_t start = cupti_ns() + (from - now), end = start + work->ns;
    *busy = from + work->ns;
    if (each(SETTING(foreign_every), made)) {
        uint32_t *foreign = new_record(MOCK_KERNEL_BYTES, 0);
        if (foreign)
            *foreign = KIND_OVERHEAD;
    }
    void *record = NULL;
    if (each(SETTING(lose_every), made))
        lost_now++, COUNT(lost)++;
    else
        record = new_record(record_bytes(work->kind), *busy);
    if (record && work->kind == MOCK_KERNEL) {
        struct cupti_kernel *k = record;
        k->kind = ACTIVITY_CONCURRENT_KERNEL, k->start = start, k->end = end, k->device = work->device, k->context = 1;
        k->stream = work->stream, k->correlation = call->correlation, k->name = work->name;
        k->graph = work->graph, k->graph_node = work->graph_node;
        if (each(SETTING(bad_every), made))
            lie(k, made / (uint64_t)SETTING(bad_every));
        struct cupti_kernel *previous = (void *)((uint8_t *)k - MOCK_KERNEL_BYTES);
        if (SETTING(backwards) && (uint8_t *)k > current->bytes && previous->kind == ACTIVITY_CONCURRENT_KERNEL) {
            struct cupti_kernel swap = *previous;
            *previous = *k;
            *k = swap;
        }
    } else if (record && work->kind == MOCK_MEMCPY) {
        struct cupti_memcpy *m = record;
        m->kind = ACTIVITY_MEMCPY, m->copy_kind = 1, m->bytes = work->bytes, m->start = start, m->end = end, m->device = work->device;
        m->context = 1, m->stream = work->stream, m->correlation = call->correlation;
    } else if (record) {
        struct cupti_memset *m = record;
        m->kind = ACTIVITY_MEMSET, m->bytes = work->bytes, m->start = start, m->end = end, m->device = work->device;
        m->context = 1, m->stream = work->stream, m->correlation = call->correlation;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- the driver's hooks ------------------------------------------------------------------------------------------------------- */

static void call_back(struct mock_call *call, uint32_t site)
{
    cupti_callback function = atomic_load(&callback);
    if (!function || call->cbid >= CALLBACK_IDS || !atomic_load(&callback_enabled[call->cbid]))
        return;
    struct cupti_callback_data data = {
        .site = site,
        .function_name = call->name,
        .return_value = site == SITE_EXIT ? &call->result : NULL,
        .correlation_data = &call->correlation_data,
        .correlation_id = call->correlation,
    };
    if (site == SITE_EXIT)
        COUNT(exits)++;
    else
        COUNT(enters)++;
    in_exit_callback = site == SITE_EXIT;
    function(atomic_load(&callback_user), DOMAIN_DRIVER_API, call->cbid, &data);
    in_exit_callback = 0;
}

static void hook_enter(struct mock_call *call)
{
    call->correlation = atomic_fetch_add(&next_correlation, 1);
    call_back(call, SITE_ENTER);
}

static void hook_leave(struct mock_call *call) { call_back(call, SITE_EXIT); }

static const struct mock_tools hooks = {hook_enter, add_work, hook_leave};

static void install(const struct mock_tools *tools)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void (*set)(const struct mock_tools *) = NULL;
    if (driver)
        *(void **)&set = dlsym(driver, "mock_cuda_install");
    if (set)
        set(tools);
}

#include "mock_cupti_api.h"
