/* Paths of NVTX ranges as small numbers, and the rows of ranges that end (nvtx.h). */
#define _GNU_SOURCE
#include "nvtx.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLACES (2 * PATHS_MAX)
#define ROW_EVERY_NS 1000000u      /* a path has a row this often at most */
#define PERIOD_NS 100000000u       /* all together have ROWS_IN_PERIOD rows in one */
#define ROWS_IN_PERIOD 500u
#define WAITS_NS 200000000u        /* so long what has ended and has no row waits for the next end */

struct path {
    char *text;
    uint64_t hash;
    uint64_t next_row_ns; /* atomic */
    uint64_t pending;     /* ended since the last row; atomic */
    uint64_t ended_ns;    /* when the last of these did; atomic */
    uint32_t sent;        /* the listener that knows it; the writer's */
    uint16_t parent, length;
};

static struct path paths[PATHS_MAX]; /* path 0 is no range; an entry that has its place in by_hash never changes */
static uint16_t by_hash[PLACES];     /* atomic */
static uint32_t count = 1;
static size_t text_bytes;
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER; /* guards what is added; never held over anything else */
static uint32_t listener = 1;
static uint64_t period, rows_in_period; /* atomic */

static uint64_t hash_of(uint16_t parent, const char *text, size_t length)
{
    uint64_t hash = 1469598103934665603ull ^ parent; /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (uint8_t)text[i]) * 1099511628211ull;
    return hash ^ hash >> 32;
}

/* The path, or 0 and the free place that it would have. */
static uint16_t find(uint16_t parent, const char *text, size_t length, uint64_t hash, uint32_t *place)
{
    for (uint32_t at = (uint32_t)hash & (PLACES - 1);; at = (at + 1) & (PLACES - 1)) {
        uint16_t id = __atomic_load_n(&by_hash[at], __ATOMIC_ACQUIRE);
        *place = at;
        if (id == 0)
            return 0;
        const struct path *path = &paths[id];
        if (path->hash == hash && path->parent == parent && path->length == length && memcmp(path->text, text, length) == 0)
            return id;
    }
}

uint16_t path_of(uint16_t parent, const char *text)
{
    size_t length = strnlen(text, PATH_NAME_BYTES - 1);
    uint64_t hash = hash_of(parent, text, length);
    uint32_t place;
    uint16_t id = find(parent, text, length, hash, &place);
    if (id)
        return id;
    pthread_mutex_lock(&naming);
    id = find(parent, text, length, hash, &place);
    char *copy = NULL;
    if (!id && count < PATHS_MAX && text_bytes + length <= PATHS_TEXT_BYTES)
        copy = malloc(length + 1);
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = 0;
        text_bytes += length;
        id = (uint16_t)count++;
        paths[id] = (struct path){.text = copy, .hash = hash, .parent = parent, .length = (uint16_t)length};
        __atomic_store_n(&by_hash[place], id, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&naming);
    return id ? id : parent;
}

uint16_t path_within(uint16_t parent, uint16_t path) { return path ? path_of(parent, paths[path].text) : parent; }

/* ---- rows ----------------------------------------------------------------------------------------------------------------- */

int path_send(struct ring *ring, uint16_t path, uint32_t epoch)
{
    uint16_t todo[PATHS_DEEP];
    size_t deep = 0;
    for (uint16_t at = path; at && paths[at].sent != listener && deep < PATHS_DEEP; at = paths[at].parent)
        todo[deep++] = at;
    while (deep > 0) { /* the ranges around it first */
        uint16_t next = todo[--deep];
        if (ring_send_text(ring, SLOT_PATH, epoch, next, paths[next].parent, paths[next].text, paths[next].length) < 0)
            return -1;
        paths[next].sent = listener;
    }
    return ring_room(ring) > 0 ? 0 : -1;
}

void paths_forget_sent(void) { listener++; }

static void write_row(uint16_t path, uint64_t start_ns, uint64_t end_ns, uint64_t weight)
{
    struct ring *ring = &session.ring;
    uint32_t epoch = __atomic_load_n(&session.epoch, __ATOMIC_RELAXED);
    pthread_mutex_lock(&session.writer);
    struct ring_slot *slot = path_send(ring, path, epoch) == 0 ? ring_next(ring) : NULL;
    if (slot) {
        memset(slot, 0, sizeof *slot);
        slot->kind = SLOT_RANGE;
        slot->epoch = epoch;
        slot->range.start = start_ns;
        slot->range.end = end_ns;
        slot->range.weight = weight > UINT32_MAX ? UINT32_MAX : (uint32_t)weight;
        slot->range.thread = (uint32_t)gettid();
        slot->range.path = path;
    }
    ring_publish(ring);
    pthread_mutex_unlock(&session.writer);
    if (!slot) /* there is a next time */
        __atomic_fetch_add(&paths[path].pending, weight, __ATOMIC_RELAXED);
}

static int is_too_many(uint64_t now)
{
    uint64_t this_period = now / PERIOD_NS;
    if (__atomic_exchange_n(&period, this_period, __ATOMIC_RELAXED) != this_period)
        __atomic_store_n(&rows_in_period, 0, __ATOMIC_RELAXED);
    return __atomic_fetch_add(&rows_in_period, 1, __ATOMIC_RELAXED) >= ROWS_IN_PERIOD;
}

void path_ended(uint16_t id, uint64_t start_ns, uint64_t end_ns)
{
    struct path *path = &paths[id];
    uint64_t due = __atomic_load_n(&path->next_row_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&session.ring.header->ranges, 1, __ATOMIC_RELAXED);
    if (end_ns < due || is_too_many(end_ns) ||
        !__atomic_compare_exchange_n(&path->next_row_ns, &due, end_ns + ROW_EVERY_NS, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        __atomic_store_n(&path->ended_ns, end_ns, __ATOMIC_RELAXED);
        __atomic_fetch_add(&path->pending, 1, __ATOMIC_RELAXED);
        return;
    }
    write_row(id, start_ns, end_ns, 1 + __atomic_exchange_n(&path->pending, 0, __ATOMIC_RELAXED));
}

void nvtx_flush(uint64_t now, int all)
{
    pthread_mutex_lock(&naming);
    uint32_t known = count;
    pthread_mutex_unlock(&naming);
    for (uint32_t id = 1; id < known; id++) {
        struct path *path = &paths[id];
        uint64_t ended = __atomic_load_n(&path->ended_ns, __ATOMIC_RELAXED);
        if (__atomic_load_n(&path->pending, __ATOMIC_RELAXED) == 0 || (!all && now < ended + WAITS_NS))
            continue;
        uint64_t weight = __atomic_exchange_n(&path->pending, 0, __ATOMIC_RELAXED);
        if (weight > 0)
            write_row((uint16_t)id, ended, ended, weight);
    }
}
