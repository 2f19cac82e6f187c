/* The activity half of the mock CUPTI: records in the client's buffers, of which each thread that makes calls fills one of its own, as with the
 * real one (CUDA 13.0). A buffer is handed over when it is full or on a flush; the period only says when full ones are looked for. */
#define _GNU_SOURCE
#include "mock_cupti.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAMS = 64, KIND_OVERHEAD = 17 };

struct buffer {
    struct buffer *next;
    uint8_t *bytes;
    size_t size, used;
    uint64_t thread;      /* whose records go into it */
    uint64_t complete_at; /* CLOCK_MONOTONIC: when the last of its work ends */
    struct client *client;
    cupti_buffer_completed completed; /* where it goes back to, whoever has left meanwhile */
    cupti_shared_completed shared_completed;
    int is_other;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;     /* guards all below; held while a buffer is requested */
static pthread_mutex_t delivery = PTHREAD_MUTEX_INITIALIZER; /* held while buffers are handed over; taken before `lock` */
static pthread_cond_t work_to_do = PTHREAD_COND_INITIALIZER;
struct client old_client;
static struct buffer *filling, *set_aside;
static uint64_t busy_until[STREAMS], made;
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

static struct buffer **own_buffer(const struct client *client) /* with `lock`: where that of this thread hangs, or would */
{
    if (!this_thread)
        this_thread = atomic_fetch_add(&threads, 1) + 1;
    struct buffer **place = &filling;
    while (*place && ((*place)->thread != this_thread || (*place)->client != client))
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
    while (activity_next(buffer->bytes, buffer->used, &record) == CUPTI_OK)
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
    while (activity_next(buffer->bytes, buffer->used, &record) == CUPTI_OK) {
        struct cupti_kernel *kernel = record;
        if (kernel->kind == ACTIVITY_CONCURRENT_KERNEL && kernel->end > now) {
            kernel->start = kernel->end = 0;
            COUNT(incomplete)++;
        }
    }
}

static void give(const struct buffer *buffer, size_t valid)
{
    if (buffer->shared_completed)
        buffer->shared_completed(buffer->bytes, buffer->size, valid, NULL);
    else
        buffer->completed(NULL, 0, buffer->bytes, buffer->size, valid);
}

/* With `delivery`. */
static void hand_over(struct buffer *list)
{
    while (list) {
        struct buffer *buffer = list;
        list = list->next;
        hide_incomplete(buffer);
        if (!buffer->is_other)
            COUNT(delivered) += records_in(buffer);
        COUNT(buffers_out) -= !buffer->is_other;
        in_delivery = 1;
        give(buffer, buffer->used);
        in_delivery = 0;
        free(buffer);
    }
}

static void deliver(int force)
{
    pthread_mutex_lock(&delivery);
    pthread_mutex_lock(&lock);
    struct buffer *list = take(force);
    pthread_mutex_unlock(&lock);
    hand_over(list);
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
    for (uint32_t i = 0; i < KINDS; i++) {
        atomic_store(&old_client.enabled[i], 0);
        for (int n = 0; n < SUBSCRIBERS; n++)
            atomic_store(&subscribers[n].client.enabled[i], 0);
    }
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
    struct buffer *list = take(1);
    old_client.requested = NULL;
    old_client.completed = NULL;
    pthread_mutex_unlock(&lock);
    while (list) { /* goes back empty */
        struct buffer *buffer = list;
        list = list->next;
        if (!buffer->is_other)
            COUNT(discarded) += records_in(buffer);
        COUNT(buffers_out) -= !buffer->is_other;
        give(buffer, 0);
        free(buffer);
    }
    pthread_mutex_unlock(&delivery);
}

/* A forked child's exit handler hands over what the parent was filling, under whatever locks the parent held. */
void activity_in_child_at_exit(void)
{
    for (struct buffer *buffer = filling; buffer; buffer = buffer->next)
        give(buffer, buffer->used);
}

/* ---- records ---------------------------------------------------------------------------------------------------------------- */

static size_t record_bytes(uint32_t kind)
{
    return kind == ACTIVITY_MEMCPY ? MOCK_MEMCPY_BYTES : kind == ACTIVITY_MEMSET ? MOCK_MEMSET_BYTES : MOCK_KERNEL_BYTES;
}

static void *new_record(struct client *client, size_t bytes, uint64_t complete_at) /* with `lock` */
{
    struct buffer **place = own_buffer(client), *current = *place;
    if (current && current->used + bytes > current->size) {
        put_aside(place);
        pthread_cond_signal(&work_to_do);
        place = own_buffer(client);
        current = NULL;
    }
    if (!current) {
        size_t size = 0, most = 0;
        uint8_t *given = NULL;
        if (client->shared_requested)
            client->shared_requested(&given, &size, &most, NULL);
        else
            client->requested(&given, &size, &most);
        for (size_t i = 0; given && !client->is_other && atomic_load(&wants_zeros) && i < size; i++)
            if (given[i]) {
                COUNT(fault_dirty_buffer)++;
                break;
            }
        if (!given) { /* allowed: the record is lost, and counted */
            client->lost++;
            return NULL;
        }
        if (size < 4096) {
            COUNT(fault_small_buffer)++;
            return NULL;
        }
        COUNT(buffers_out) += !client->is_other;
        current = *place = calloc(1, sizeof *current);
        current->bytes = given;
        current->size = size;
        current->thread = this_thread;
        current->client = client;
        current->completed = client->completed;
        current->shared_completed = client->shared_completed;
        current->is_other = client->is_other;
    }
    void *record = current->bytes + current->used;
    memset(record, 0, bytes);
    current->used += bytes;
    if (complete_at > current->complete_at)
        current->complete_at = complete_at;
    return record;
}

static void add_for(struct client *client, const struct mock_call *call, const struct mock_work *work, uint64_t start, uint64_t ends)
{
    if (client->is_other)
        COUNT(other_records)++;
    else
        COUNT(records)++;
    uint32_t *foreign = activity_each(SETTING(foreign_every), made) ? new_record(client, MOCK_KERNEL_BYTES, 0) : NULL;
    if (foreign)
        *foreign = KIND_OVERHEAD;
    void *record = NULL;
    if (activity_each(SETTING(lose_every), made))
        client->lost++;
    else
        record = new_record(client, record_bytes(work->kind), ends);
    if (!record)
        COUNT(lost)++;
    else
        activity_fill(record, call, work, start, made, (*own_buffer(client))->bytes);
}

static int takes(struct client *client, uint32_t kind)
{
    return atomic_load(&client->enabled[kind]) && (client->requested || client->shared_requested);
}

void activity_add(struct mock_call *call, const struct mock_work *work)
{
    int wanted = atomic_load(&old_client.enabled[work->kind]);
    for (int i = 0; i < SUBSCRIBERS; i++)
        wanted |= atomic_load(&subscribers[i].client.enabled[work->kind]);
    if (!wanted || atomic_load(&is_child) || atomic_load(&torn_down) || (work->graph && SETTING(whole_graphs)))
        return;
    pthread_mutex_lock(&lock);
    made++;
    uint64_t *busy = &busy_until[(work->device * 8 + work->stream) % STREAMS], now = mock_clock_ns(CLOCK_MONOTONIC);
    uint64_t from = *busy > now + 1000 ? *busy : now + 1000; /* work of a stream comes one after the other */
    uint64_t start = mock_cupti_ns() + (from - now);
    *busy = from + work->ns;
    if (takes(&old_client, work->kind))
        add_for(&old_client, call, work, start, *busy);
    for (int i = 0; i < SUBSCRIBERS; i++)
        if (takes(&subscribers[i].client, work->kind))
            add_for(&subscribers[i].client, call, work, start, *busy);
    pthread_mutex_unlock(&lock);
}

/* ---- for both kinds of clients ---------------------------------------------------------------------------------------------- */

void activity_register(struct client *client, cupti_buffer_requested requested, cupti_buffer_completed completed,
                       cupti_shared_requested shared_requested, cupti_shared_completed shared_completed)
{
    pthread_mutex_lock(&lock);
    client->requested = requested;
    client->completed = completed;
    client->shared_requested = shared_requested;
    client->shared_completed = shared_completed;
    pthread_mutex_unlock(&lock);
}

cupti_result activity_enable(struct client *client, uint32_t kind, int on)
{
    if (kind >= KINDS)
        return CUPTI_INVALID_PARAMETER;
    pthread_mutex_lock(&lock);
    if (on && !client->requested && !client->shared_requested) {
        pthread_mutex_unlock(&lock);
        return CUPTI_INVALID_PARAMETER;
    }
    if (atomic_exchange(&client->enabled[kind], (unsigned char)on) != on && !client->is_other)
        COUNT(kinds_enabled) += on ? 1 : -1;
    if (on && !worker_runs) {
        worker_stops = 0;
        worker_runs = pthread_create(&worker, NULL, work_off, NULL) == 0;
        if (worker_runs)
            pthread_setname_np(worker, "mock-cupti");
    }
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}

void activity_forget(struct client *client)
{
    for (uint32_t kind = 0; kind < KINDS; kind++)
        activity_enable(client, kind, 0);
    pthread_mutex_lock(&lock);
    for (struct buffer **place = &filling; *place;)
        if ((*place)->client == client)
            put_aside(place);
        else
            place = &(*place)->next;
    client->requested = NULL;
    client->shared_requested = NULL;
    pthread_mutex_unlock(&lock);
}

size_t activity_lost(struct client *client)
{
    pthread_mutex_lock(&lock);
    size_t lost = client->lost;
    client->lost = 0;
    pthread_mutex_unlock(&lock);
    return lost;
}

cupti_result activity_next(uint8_t *buffer, size_t valid, void **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + record_bytes(*(uint32_t *)*record) : buffer;
    if (next >= buffer + valid)
        return MAX_LIMIT_REACHED;
    *record = next;
    return CUPTI_OK;
}

/* ---- CUPTI's functions ------------------------------------------------------------------------------------------------------ */

cupti_result cuptiActivityRegisterCallbacks(cupti_buffer_requested requested, cupti_buffer_completed completed)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    old_function();
    activity_register(&old_client, requested, completed, NULL, NULL);
    return CUPTI_OK;
}

cupti_result cuptiActivityEnable(uint32_t kind)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    old_function();
    if (kind == ACTIVITY_CONCURRENT_KERNEL && SETTING(activity_result) != CUPTI_OK)
        return (cupti_result)SETTING(activity_result);
    return activity_enable(&old_client, kind, 1);
}

cupti_result cuptiActivityDisable(uint32_t kind)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    old_function();
    return activity_enable(&old_client, kind, 0);
}

cupti_result cuptiActivityFlushAll(uint32_t flag)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    if (in_delivery)
        COUNT(fault_flush_in_delivery)++;
    if (is_shared() && flag)
        COUNT(fault_forced)++; /* of another's records, too */
    COUNT(flushes)++;
    mock_sleep_ms(SETTING(flush_ms));
    pthread_mutex_lock(&lock);
    int known = old_client.completed != NULL;
    for (int i = 0; i < SUBSCRIBERS; i++)
        known |= subscribers[i].client.shared_completed != NULL;
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
    old_function();
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
    old_function();
    pthread_mutex_lock(&lock);
    period_ms = ms ? ms : 1000;
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}
#endif

cupti_result cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
    old_function();
    return activity_next(buffer, valid, record);
}

cupti_result cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
    (void)context, (void)stream;
    *dropped = activity_lost(&old_client);
    return CUPTI_OK;
}
