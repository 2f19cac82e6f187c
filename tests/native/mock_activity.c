/* The activity half of the mock CUPTI: records in the client's buffers, of which each thread that makes calls fills one of its own, as with the
 * real one (CUDA 13.0). A buffer is handed over when it is full or on a flush; the period only says when full ones are looked for. */
#define _GNU_SOURCE
#include "mock_cupti.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KINDS = 64, STREAMS = 64, KIND_OVERHEAD = 17 };

struct buffer {
    struct buffer *next;
    uint8_t *bytes;
    size_t size, used;
    uint64_t thread;      /* whose records go into it */
    uint64_t complete_at; /* CLOCK_MONOTONIC: when the last of its work ends */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;     /* guards all below; held while a buffer is requested */
static pthread_mutex_t delivery = PTHREAD_MUTEX_INITIALIZER; /* held while buffers are handed over; taken before `lock` */
static pthread_cond_t work_to_do = PTHREAD_COND_INITIALIZER;
static atomic_uchar kind_enabled[KINDS];
static cupti_buffer_requested on_requested;
static cupti_buffer_completed on_completed;
static struct buffer *filling, *set_aside;
static uint64_t busy_until[STREAMS], made;
static size_t lost_now;
static pthread_t worker;
static int worker_runs, worker_stops;
static uint32_t period_ms = 1000;
static atomic_uchar wants_zeros;
static atomic_ullong threads; /* numbers given out: a thread's own id would be another's later */
static __thread uint64_t this_thread;
__thread int in_delivery;

/* ---- handing over --------------------------------------------------------------------------------------------------------- */

/* With `lock`: a buffer that is being filled is ready to be handed over; `place` is where it hangs. */
static void put_aside(struct buffer **place)
{
    struct buffer *buffer = *place, **end = &set_aside;
    *place = buffer->next;
    buffer->next = NULL;
    while (*end)
        end = &(*end)->next;
    *end = buffer;
}

static void put_all_aside(void) /* with `lock` */
{
    while (filling)
        put_aside(&filling);
}

static struct buffer **own_buffer(void) /* with `lock`: where that of this thread hangs, or would */
{
    if (!this_thread)
        this_thread = atomic_fetch_add(&threads, 1) + 1;
    struct buffer **place = &filling;
    while (*place && (*place)->thread != this_thread)
        place = &(*place)->next;
    return place;
}

/* With `lock`: what can be handed over is taken off the list. */
static struct buffer *take(int force)
{
    struct buffer *taken = NULL, **taken_end = &taken, **place = &set_aside;
    uint64_t now = mock_clock_ns(CLOCK_MONOTONIC);
    while (*place) {
        struct buffer *buffer = *place;
        if (!force && buffer->complete_at > now) {
            place = &buffer->next;
            continue;
        }
        *place = buffer->next;
        buffer->next = NULL;
        *taken_end = buffer;
        taken_end = &buffer->next;
    }
    return taken;
}

static int64_t records_in(const struct buffer *buffer)
{
    int64_t records = 0;
    void *record = NULL;
    while (cuptiActivityGetNextRecord(buffer->bytes, buffer->used, &record) == CUPTI_OK)
        records += *(uint32_t *)record != KIND_OVERHEAD;
    return records;
}

/* Work that has not ended when its buffer is taken by force has no times. */
static void hide_incomplete(struct buffer *buffer)
{
    uint64_t now = mock_cupti_ns();
    void *record = NULL;
    if (buffer->complete_at <= mock_clock_ns(CLOCK_MONOTONIC))
        return;
    while (cuptiActivityGetNextRecord(buffer->bytes, buffer->used, &record) == CUPTI_OK) {
        struct cupti_kernel *kernel = record;
        if (kernel->kind == ACTIVITY_CONCURRENT_KERNEL && kernel->end > now) {
            kernel->start = kernel->end = 0;
            COUNT(incomplete)++;
        }
    }
}

/* With `delivery`. */
static void hand_over(struct buffer *list, cupti_buffer_completed completed)
{
    while (list) {
        struct buffer *buffer = list;
        list = list->next;
        hide_incomplete(buffer);
        COUNT(delivered) += records_in(buffer);
        COUNT(buffers_out)--;
        in_delivery = 1;
        completed(NULL, 0, buffer->bytes, buffer->size, buffer->used);
        in_delivery = 0;
        free(buffer);
    }
}

static void deliver(int force)
{
    pthread_mutex_lock(&delivery);
    pthread_mutex_lock(&lock);
    cupti_buffer_completed completed = on_completed;
    struct buffer *list = completed ? take(force) : NULL;
    pthread_mutex_unlock(&lock);
    hand_over(list, completed);
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
        until.tv_sec += (long)(period_ms / 1000) + until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&work_to_do, &lock, &until);
        if (worker_stops)
            break;
        pthread_mutex_unlock(&lock);
        deliver(0);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

void activity_finalize(void)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < KINDS; i++)
        atomic_store(&kind_enabled[i], 0);
    COUNT(kinds_enabled) = 0;
    worker_stops = 1;
    int join = worker_runs;
    worker_runs = 0;
    pthread_cond_signal(&work_to_do);
    pthread_mutex_unlock(&lock);
    if (join)
        pthread_join(worker, NULL);

    pthread_mutex_lock(&delivery);
    pthread_mutex_lock(&lock);
    put_all_aside();
    cupti_buffer_completed completed = on_completed;
    struct buffer *list = take(1);
    on_requested = NULL;
    on_completed = NULL;
    pthread_mutex_unlock(&lock);
    while (list) { /* goes back empty */
        struct buffer *buffer = list;
        list = list->next;
        COUNT(discarded) += records_in(buffer);
        COUNT(buffers_out)--;
        completed(NULL, 0, buffer->bytes, buffer->size, 0);
        free(buffer);
    }
    pthread_mutex_unlock(&delivery);
}

/* A forked child's exit handler hands over what the parent was filling, under whatever locks the parent held. */
void activity_in_child_at_exit(void)
{
    for (struct buffer *buffer = filling; on_completed && buffer; buffer = buffer->next)
        on_completed(NULL, 0, buffer->bytes, buffer->size, buffer->used);
}

/* ---- records ---------------------------------------------------------------------------------------------------------------- */

static size_t record_bytes(uint32_t kind)
{
    return kind == ACTIVITY_MEMCPY ? MOCK_MEMCPY_BYTES : kind == ACTIVITY_MEMSET ? MOCK_MEMSET_BYTES : MOCK_KERNEL_BYTES;
}

static void *new_record(size_t bytes, uint64_t complete_at) /* with `lock` */
{
    struct buffer **place = own_buffer(), *current = *place;
    if (current && current->used + bytes > current->size) {
        put_aside(place);
        pthread_cond_signal(&work_to_do);
        place = own_buffer();
        current = NULL;
    }
    if (!current) {
        size_t size = 0, most = 0;
        uint8_t *given = NULL;
        on_requested(&given, &size, &most);
        for (size_t i = 0; given && atomic_load(&wants_zeros) && i < size; i++)
            if (given[i]) {
                COUNT(fault_dirty_buffer)++;
                break;
            }
        if (!given) { /* allowed: the record is lost, and counted */
            lost_now++;
            return NULL;
        }
        if (size < 4096) {
            COUNT(fault_small_buffer)++;
            return NULL;
        }
        COUNT(buffers_out)++;
        current = *place = calloc(1, sizeof *current);
        current->bytes = given;
        current->size = size;
        current->thread = this_thread;
    }
    void *record = current->bytes + current->used;
    memset(record, 0, bytes);
    current->used += bytes;
    if (complete_at > current->complete_at)
        current->complete_at = complete_at;
    return record;
}

static int each(int64_t n, uint64_t count) { return n > 0 && count % (uint64_t)n == 0; }

static void spoil(struct cupti_kernel *kernel, uint64_t nth)
{
    COUNT(bad)++;
    if (nth % 3 == 0)
        kernel->start = kernel->end = 0;
    else if (nth % 3 == 1)
        kernel->end = kernel->start - 200;
    else
        kernel->start += 1ull << 62, kernel->end += 1ull << 62;
}

static void fill_kernel(struct cupti_kernel *k, const struct mock_call *call, const struct mock_work *work, uint64_t start)
{
    k->kind = ACTIVITY_CONCURRENT_KERNEL;
    k->start = start;
    k->end = start + work->ns;
    k->device = work->device;
    k->context = 1;
    k->stream = work->stream;
    k->correlation = call->correlation;
    k->name = work->name;
    k->graph = work->graph;
    k->graph_node = work->graph_node;
    if (each(SETTING(bad_every), made))
        spoil(k, made / (uint64_t)SETTING(bad_every));
    struct cupti_kernel *previous = (void *)((uint8_t *)k - MOCK_KERNEL_BYTES);
    if (SETTING(backwards) && (uint8_t *)k > (*own_buffer())->bytes && previous->kind == ACTIVITY_CONCURRENT_KERNEL) {
        struct cupti_kernel swap = *previous;
        *previous = *k;
        *k = swap;
    }
}

static void fill_memcpy(struct cupti_memcpy *m, const struct mock_call *call, const struct mock_work *work, uint64_t start)
{
    m->kind = ACTIVITY_MEMCPY;
    m->copy_kind = 1;
    m->bytes = work->bytes;
    m->start = start;
    m->end = start + work->ns;
    m->device = work->device;
    m->context = 1;
    m->stream = work->stream;
    m->correlation = call->correlation;
}

static void fill_memset(struct cupti_memset *m, const struct mock_call *call, const struct mock_work *work, uint64_t start)
{
    m->kind = ACTIVITY_MEMSET;
    m->bytes = work->bytes;
    m->start = start;
    m->end = start + work->ns;
    m->device = work->device;
    m->context = 1;
    m->stream = work->stream;
    m->correlation = call->correlation;
}

void activity_add(struct mock_call *call, const struct mock_work *work)
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
    uint64_t *busy = &busy_until[(work->device * 8 + work->stream) % STREAMS], now = mock_clock_ns(CLOCK_MONOTONIC);
    uint64_t from = *busy > now + 1000 ? *busy : now + 1000; /* work of a stream comes one after the other */
    uint64_t start = mock_cupti_ns() + (from - now);
    *busy = from + work->ns;
    uint32_t *foreign = each(SETTING(foreign_every), made) ? new_record(MOCK_KERNEL_BYTES, 0) : NULL;
    if (foreign)
        *foreign = KIND_OVERHEAD;
    void *record = NULL;
    if (each(SETTING(lose_every), made))
        lost_now++;
    else
        record = new_record(record_bytes(work->kind), *busy);
    if (!record)
        COUNT(lost)++;
    else if (work->kind == MOCK_KERNEL)
        fill_kernel(record, call, work, start);
    else if (work->kind == MOCK_MEMCPY)
        fill_memcpy(record, call, work, start);
    else
        fill_memset(record, call, work, start);
    pthread_mutex_unlock(&lock);
}

/* ---- CUPTI's functions ------------------------------------------------------------------------------------------------------ */

cupti_result cuptiActivityRegisterCallbacks(cupti_buffer_requested requested, cupti_buffer_completed completed)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    on_requested = requested;
    on_completed = completed;
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}

cupti_result cuptiActivityEnable(uint32_t kind)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    if (kind == ACTIVITY_CONCURRENT_KERNEL && SETTING(activity_result) != CUPTI_OK)
        return (cupti_result)SETTING(activity_result);
    pthread_mutex_lock(&lock);
    if (kind >= KINDS || !on_requested) {
        pthread_mutex_unlock(&lock);
        return CUPTI_INVALID_PARAMETER;
    }
    if (!atomic_exchange(&kind_enabled[kind], 1))
        COUNT(kinds_enabled)++;
    if (!worker_runs) {
        worker_stops = 0;
        worker_runs = pthread_create(&worker, NULL, work_off, NULL) == 0;
        if (worker_runs)
            pthread_setname_np(worker, "mock-cupti");
    }
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}

cupti_result cuptiActivityDisable(uint32_t kind)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    if (kind < KINDS && atomic_exchange(&kind_enabled[kind], 0))
        COUNT(kinds_enabled)--;
    return CUPTI_OK;
}

cupti_result cuptiActivityFlushAll(uint32_t flag)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    if (in_delivery)
        COUNT(fault_flush_in_delivery)++;
    mock_sleep_ms(SETTING(flush_ms));
    pthread_mutex_lock(&lock);
    int known = on_completed != NULL;
    if (known)
        put_all_aside();
    pthread_mutex_unlock(&lock);
    if (!known)
        return INVALID_OPERATION;
    deliver((int)(flag & 1));
    return CUPTI_OK;
}

#ifndef MOCK_OLD
cupti_result cuptiActivitySetAttribute(uint32_t attribute, size_t *size, void *value)
{
    if (attribute == ATTR_DEVICE_BUFFER_POOL_LIMIT && *size == sizeof(size_t))
        COUNT(pool_limit) = (int64_t) * (size_t *)value;
    else if (attribute == ATTR_ZEROED_OUT_ACTIVITY_BUFFER && *size == 1)
        atomic_store(&wants_zeros, *(uint8_t *)value);
    else
        return CUPTI_INVALID_PARAMETER;
    return CUPTI_OK;
}

cupti_result cuptiActivityFlushPeriod(uint32_t ms)
{
    pthread_mutex_lock(&lock);
    period_ms = ms ? ms : 1000;
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}
#endif

cupti_result cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + record_bytes(*(uint32_t *)*record) : buffer;
    if (next >= buffer + valid)
        return MAX_LIMIT_REACHED;
    *record = next;
    return CUPTI_OK;
}

cupti_result cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
    (void)context, (void)stream;
    pthread_mutex_lock(&lock);
    *dropped = lost_now;
    lost_now = 0;
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}
