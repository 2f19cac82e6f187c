/* What CUPTI hands over, written into the ring: activity records, its clock, the process's devices (session.h). */
#define _GNU_SOURCE
#include "launch_notes.h"
#include "names.h"
#include "nvtx.h"
#include "session.h"
#include "shared.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* CUPTI fills a buffer for each thread that makes calls. */
#define BUFFER_BYTES (256u << 10)
#define SPARE_BUFFERS 16
#define LARGE_BUFFERS 32            /* 8 MB: further ones are small, so that each of very many threads can have one */
#define SMALL_BUFFER_BYTES (32u << 10)
#define MOST_BUFFERS 256            /* with 7 MB of small ones: enough for 128 threads, which take others while a flush goes on */
#define RECORDS_AT_ONCE 64
#define RECORD_BYTES 248 /* of a kernel, which most are: for the count of those that cannot be read any more */
#define NULL_IS_SAFE 130000u   /* CUPTI's version from which a NULL buffer means that records are dropped, and counted */
#define CLOCK_READINGS 16
#define BEHIND_NS 100000         /* a launch that waits so long for the device could have come later by what we cost it */
#define LONGEST_NS 3600000000000 /* no launch waits longer: a record that lies */

static pthread_mutex_t buffers = PTHREAD_MUTEX_INITIALIZER; /* guards the spare ones */
static uint8_t last_resort[4096] __attribute__((aligned(8))); /* a NULL buffer crashes CUPTI before 12.9 */
static uint8_t *spare[SPARE_BUFFERS];
static int spare_count, given_count;

/* Behind each buffer, beyond what CUPTI knows of it. */
struct loan {
    struct loan *next, *previous;
    uint64_t since_ns;
    uint32_t epoch; /* of the launches whose records it is for */
};
static struct loan loans = {.next = &loans, .previous = &loans}; /* oldest first; with `buffers` */
static int refused; /* a buffer, for want of room; atomic */

/* ---- clocks and devices -------------------------------------------------------------------------------------------------- */

void records_compare_clocks(void)
{
    cupti_subscriber shared = session.shared;
    uint64_t best = UINT64_MAX, cupti_at = 0, mono_at = 0;
    for (int i = 0; i < CLOCK_READINGS; i++) { /* the tightest bracket counts */
        uint64_t there = 0, before = now_ns();
        cupti_result result = shared ? session.cupti.cuptiGetTimestamp_v2(shared, &there) : session.cupti.cuptiGetTimestamp(&there);
        if (result != CUPTI_OK)
            return;
        uint64_t width = now_ns() - before;
        if (width < best)
            best = width, cupti_at = there, mono_at = before + width / 2;
    }
    __atomic_store_n(&session.clock_ns, (int64_t)(mono_at - cupti_at), __ATOMIC_RELAXED);
    pthread_mutex_lock(&session.writer);
    struct ring_slot *slot = ring_next(&session.ring);
    if (slot) {
        memset(slot, 0, sizeof *slot);
        slot->kind = SLOT_CLOCK;
        slot->epoch = __atomic_load_n(&session.epoch, __ATOMIC_RELAXED);
        slot->clock.cupti_ns = cupti_at;
        slot->clock.mono_ns = mono_at;
        slot->clock.width_ns = best;
        ring_publish(&session.ring);
    }
    pthread_mutex_unlock(&session.writer);
}

void records_note_devices(void)
{
    /* Which device is which: CUPTI speaks of the process's own ordinals, which CUDA_VISIBLE_DEVICES shifts. */
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!driver)
        return;
    int (*get_count)(int *) = NULL;
    int (*get_device)(int *, int) = NULL;
    int (*get_uuid)(uint8_t *, int) = NULL;
    *(void **)&get_count = dlsym(driver, "cuDeviceGetCount");
    *(void **)&get_device = dlsym(driver, "cuDeviceGet");
    *(void **)&get_uuid = dlsym(driver, "cuDeviceGetUuid_v2");
    if (!get_uuid)
        *(void **)&get_uuid = dlsym(driver, "cuDeviceGetUuid");
    int count = 0;
    if (get_count && get_device && get_uuid && get_count(&count) == 0 && count > 0) {
        if (count > RING_DEVICES)
            count = RING_DEVICES;
        for (int i = 0; i < count; i++) {
            int device;
            uint8_t uuid[16] = {0};
            if (get_device(&device, i) == 0 && get_uuid(uuid, device) == 0)
                memcpy(session.ring.header->uuid[i], uuid, sizeof uuid);
        }
        session.ring.header->devices = (uint32_t)count;
    }
    dlclose(driver);
}

/* ---- what is not CUPTI's ------------------------------------------------------------------------------------------------- */

void records_add_wait(const struct ring_slot *wait, const char *name)
{
    struct ring_slot full = *wait;
    pthread_mutex_lock(&session.writer);
    struct ring_slot *slot = NULL;
    if (names_id(&session.ring, name, wait->epoch, &full.wait.name) == 0)
        slot = ring_next(&session.ring);
    if (slot)
        *slot = full;
    else
        ring_drop(&session.ring);
    ring_publish(&session.ring);
    pthread_mutex_unlock(&session.writer);
}

void records_add_span(uint64_t start_ns, uint64_t end_ns)
{
    pthread_mutex_lock(&session.writer);
    struct ring_slot *slot = ring_next(&session.ring);
    if (slot) {
        memset(slot, 0, sizeof *slot);
        slot->kind = SLOT_SPAN;
        slot->epoch = __atomic_load_n(&session.epoch, __ATOMIC_RELAXED);
        slot->span.start = start_ns;
        slot->span.end = end_ns;
        ring_publish(&session.ring);
    }
    pthread_mutex_unlock(&session.writer);
}

/* ---- activity records ----------------------------------------------------------------------------------------------------- */

static void lend(struct loan *loan) /* with `buffers` */
{
    loan->since_ns = now_ns();
    loan->epoch = __atomic_load_n(&session.epoch, __ATOMIC_RELAXED);
    loan->next = &loans;
    loan->previous = loans.previous;
    loan->previous->next = loans.previous = loan;
}

static void request(uint8_t **buffer, size_t *size, size_t *max_records, int shared)
{
    uint8_t *given = NULL;
    int too_many = 0, is_child = __atomic_load_n(&session.forked, __ATOMIC_RELAXED); /* which may have inherited the lock locked */
    size_t bytes = BUFFER_BYTES;
    if (!is_child) {
        pthread_mutex_lock(&buffers);
        if (given_count >= LARGE_BUFFERS || shared) /* shared: see flush_shared_records */
            bytes = SMALL_BUFFER_BYTES;
        else if (spare_count > 0)
            given = spare[--spare_count];
        too_many = !given && given_count >= MOST_BUFFERS && session.ring.header->cupti_version >= NULL_IS_SAFE;
        given_count += !too_many;
        pthread_mutex_unlock(&buffers);
    }
    *max_records = 0;
    if (too_many) {
        __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
        *buffer = NULL;
        *size = 0;
        return;
    }
    if (!given)
        given = calloc(1, bytes + sizeof(struct loan)); /* zeros, as attach.c has promised */
    if (given && !is_child) {
        pthread_mutex_lock(&buffers);
        lend((struct loan *)(given + bytes));
        pthread_mutex_unlock(&buffers);
    }
    *buffer = given ? given : last_resort;
    *size = given ? bytes : sizeof last_resort;
}

void records_buffer_requested(uint8_t **buffer, size_t *size, size_t *max_records) { request(buffer, size, max_records, 0); }

void records_shared_requested(uint8_t **buffer, size_t *size, size_t *max_records, void *info)
{
    (void)info;
    request(buffer, size, max_records, 1);
}

int records_were_refused(void) { return __atomic_exchange_n(&refused, 0, __ATOMIC_RELAXED); }

uint64_t records_oldest_ns(void)
{
    pthread_mutex_lock(&buffers);
    uint64_t since = loans.next == &loans ? 0 : loans.next->since_ns;
    pthread_mutex_unlock(&buffers);
    return since;
}

static uint32_t epoch_of(const uint8_t *buffer, size_t size)
{
    if (buffer == last_resort)
        return __atomic_load_n(&session.epoch, __ATOMIC_RELAXED);
    return ((const struct loan *)(const void *)(buffer + size))->epoch;
}

static void give_back(uint8_t *buffer, size_t size)
{
    if (size == BUFFER_BYTES)
        memset(buffer, 0, BUFFER_BYTES); /* in CUPTI's thread rather than in a launching one */
    pthread_mutex_lock(&buffers);
    given_count--;
    if (buffer != last_resort) {
        struct loan *loan = (struct loan *)(void *)(buffer + size);
        loan->previous->next = loan->next;
        loan->next->previous = loan->previous;
    }
    if (buffer == last_resort)
        buffer = NULL;
    else if (size == BUFFER_BYTES && spare_count < SPARE_BUFFERS) {
        spare[spare_count++] = buffer;
        buffer = NULL;
    }
    pthread_mutex_unlock(&buffers);
    free(buffer);
}

/* Writes one record, `work`, after its name and ranges where it has some; a record that finds the ring full is counted. */
static void write_work(struct ring_slot *work, const char *name)
{
    struct ring *ring = &session.ring;
    if ((work->kind == SLOT_KERNEL && names_id(ring, name, work->epoch, &work->work.name) < 0) ||
        (work->work.path && path_send(ring, work->work.path, work->epoch) < 0)) {
        ring_drop(ring);
        return;
    }
    struct ring_slot *slot = ring_next(ring);
    if (!slot)
        ring_drop(ring);
    else
        *slot = *work;
}

static uint16_t ordinal(uint32_t device) { return (uint16_t)(device > UINT16_MAX ? UINT16_MAX : device); }

/* Counts whether the device was behind when this was launched. The kernels of a graph come one after the other; the first to start counts. */
static void judge(const struct ring_slot *slot)
{
    static uint32_t last;         /* correlation id of the launch that is being judged; under the writer's mutex, as all here */
    static uint64_t first, enter; /* of it: when the first of its work started, on CUPTI's clock; when it was launched */
    if (slot->work.correlation == last && slot->work.enter == enter) {
        if (slot->work.start < first)
            first = slot->work.start;
        return;
    }
    struct ring_header *header = session.ring.header;
    int64_t delay = (int64_t)first + __atomic_load_n(&session.clock_ns, __ATOMIC_RELAXED) - (int64_t)enter;
    if (enter != 0 && first != 0 && delay < LONGEST_NS) {
        __atomic_store_n(&header->judged, header->judged + 1, __ATOMIC_RELAXED);
        __atomic_store_n(&header->behind, header->behind + (delay >= BEHIND_NS), __ATOMIC_RELAXED);
    }
    last = slot->work.correlation;
    first = slot->work.start;
    enter = slot->work.enter;
}

/* What records of all kinds have, under the same names. */
#define TAKE_WORK(slot, record)                             \
    do {                                                    \
        (slot).device = ordinal((record)->device);          \
        (slot).work.start = (record)->start;                \
        (slot).work.end = (record)->end;                    \
        (slot).work.correlation = (record)->correlation;    \
        (slot).work.stream = (record)->stream;              \
        (slot).work.context = (record)->context;            \
    } while (0)

/* Returns whether the record is of a kind that is wanted. */
static int write_record(const void *record, uint32_t epoch)
{
    struct ring_slot slot = {.epoch = epoch};
    const char *name = NULL;
    switch (*(const uint32_t *)record) {
    case ACTIVITY_CONCURRENT_KERNEL: {
        const struct cupti_kernel *k = record;
        slot.kind = SLOT_KERNEL;
        TAKE_WORK(slot, k);
        slot.work.bytes_or_node = k->graph_node;
        slot.work.graph = k->graph;
        name = k->name;
        break;
    }
    case ACTIVITY_MEMCPY: {
        const struct cupti_memcpy *m = record;
        slot.kind = SLOT_MEMCPY;
        slot.flags = m->copy_kind;
        TAKE_WORK(slot, m);
        slot.work.bytes_or_node = m->bytes;
        break;
    }
    case ACTIVITY_MEMSET: {
        const struct cupti_memset *m = record;
        slot.kind = SLOT_MEMSET;
        TAKE_WORK(slot, m);
        slot.work.bytes_or_node = m->bytes;
        break;
    }
    default:
        return 0;
    }
    slot.work.enter = launch_noted(slot.work.correlation, epoch, &slot.work.no_stack, &slot.work.path);
    judge(&slot);
    write_work(&slot, name);
    return 1;
}

static void add_to(uint64_t *total, uint64_t more) { __atomic_store_n(total, *total + more, __ATOMIC_RELAXED); }

/* Writes what a buffer holds. CUPTI is asked for the records without the writer's mutex: with several subscribers it may take a lock for that. */
static void write_all(cupti_subscriber shared, uint8_t *buffer, size_t valid, uint32_t epoch, uint64_t lost)
{
    struct ring_header *header = session.ring.header;
    const void *found[RECORDS_AT_ONCE];
    void *record = NULL;
    int more = valid > 0;
    do {
        size_t number = 0;
        while (more && number < RECORDS_AT_ONCE) {
            more = (shared ? session.cupti.cuptiActivityGetNextRecord_v2(shared, buffer, valid, &record)
                           : session.cupti.cuptiActivityGetNextRecord(buffer, valid, &record)) == CUPTI_OK;
            if (more)
                found[number++] = record;
        }
        uint64_t records = 0;
        pthread_mutex_lock(&session.writer);
        for (size_t i = 0; i < number; i++)
            records += (uint64_t)write_record(found[i], epoch);
        add_to(&header->records, records);
        add_to(&header->cupti_dropped, lost);
        ring_publish(&session.ring);
        pthread_mutex_unlock(&session.writer);
        lost = 0;
    } while (more);
}

void records_buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    if (__atomic_load_n(&session.forked, __ATOMIC_RELAXED)) /* the parent's records, and locks that nobody will open */
        return;
    size_t lost = 0;
    if (session.cupti.cuptiActivityGetNumDroppedRecords(context, stream, &lost) != CUPTI_OK)
        lost = 0;
    write_all(NULL, buffer, valid, epoch_of(buffer, size), lost);
    give_back(buffer, size);
}

/* It may come after we have unsubscribed: then nobody can tell its records apart, and about how many they are is counted as lost. */
void records_shared_completed(uint8_t *buffer, size_t size, size_t valid, void *info)
{
    (void)info;
    if (__atomic_load_n(&session.forked, __ATOMIC_RELAXED))
        return;
    size_t lost = 0;
    cupti_subscriber shared = shared_enter();
    if (!shared)
        lost = (valid + RECORD_BYTES - 1) / RECORD_BYTES;
    else if (session.cupti.cuptiActivityGetNumDroppedRecords_v2(shared, NULL, 0, &lost) != CUPTI_OK)
        lost = 0;
    write_all(shared, buffer, shared ? valid : 0, epoch_of(buffer, size), lost);
    cupti_leave();
    give_back(buffer, size);
}
