/* The process's NVTX ranges, as its libraries tell of them (nvtx.h). Loaded through NVTX_INJECTION64_PATH at the first call of NVTX, by each
 * library that has NVTX compiled in; one handle is returned for all of them. */
#define _GNU_SOURCE
#include "nvtx.h"
#include "nvtx_abi.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define STARTED 1024u     /* ranges that were started, not pushed, and are open */
#define DOMAINS_MAX 256u
#define TIMED_EVERY 61u   /* one call of so many is timed; no number of calls that a program repeats is a multiple of it */
#define STRINGS_BYTES (4u << 20) /* of registered strings */

/* What a handle of ours points to. */
struct text {
    char text[1];
};

struct open {
    const void *domain;
    uint64_t start_ns; /* 0: it is left out */
    uint16_t path;
};

/* A thread's open ranges; of the time since `heard` began. */
struct thread_ranges {
    uint32_t heard, depth, beyond;
    uint32_t not_counted;
    uint8_t calls[RANGE_DEPTHS]; /* of those */
    struct open open[PATHS_DEEP];
};

struct started {
    uint64_t id, start_ns; /* id 0: free; atomic */
    uint16_t path;
};

static uint32_t listening;           /* 0: nobody does; else a number that is another each time; atomic */
static int wanted;                   /* somebody listens, whether or not the budget allows ranges; the library's thread's */
static uint32_t follow = RANGE_DEPTHS; /* ranges in so many others are left out; atomic */
static uint64_t calls[RANGE_DEPTHS], timed_calls, timed_ns; /* all atomic */
static pthread_key_t ranges_of_thread;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static int has_key;                  /* atomic */
static struct started started[STARTED];
static uint64_t last_started;        /* atomic */
static pthread_mutex_t handles = PTHREAD_MUTEX_INITIALIZER; /* only ever tried: a forked child may find it locked for good */
static size_t handle_bytes, domains;

static void make_key(void) { __atomic_store_n(&has_key, pthread_key_create(&ranges_of_thread, free) == 0, __ATOMIC_RELEASE); }

static void hear(int on)
{
    static uint32_t times;
    pthread_once(&key_once, make_key);
    if (!on)
        __atomic_store_n(&listening, 0, __ATOMIC_RELAXED);
    else if (__atomic_load_n(&listening, __ATOMIC_RELAXED) == 0 && __atomic_load_n(&has_key, __ATOMIC_ACQUIRE))
        __atomic_store_n(&listening, ++times ? times : ++times, __ATOMIC_RELEASE);
}

void nvtx_listen(int on)
{
    wanted = on;
    hear(on && __atomic_load_n(&follow, __ATOMIC_RELAXED) > 0);
}

void nvtx_follow(uint32_t depth)
{
    __atomic_store_n(&follow, depth, __ATOMIC_RELAXED);
    hear(wanted && depth > 0);
}

static struct thread_ranges *mine(uint32_t heard, int make)
{
    struct thread_ranges *ranges = pthread_getspecific(ranges_of_thread);
    if (!ranges && make && (ranges = calloc(1, sizeof *ranges)) && pthread_setspecific(ranges_of_thread, ranges) != 0) {
        free(ranges);
        ranges = NULL;
    }
    if (ranges && ranges->heard != heard) { /* what was open when nobody listened may have ended meanwhile */
        ranges->heard = heard;
        ranges->depth = ranges->beyond = 0;
    }
    return ranges;
}

uint16_t nvtx_path(void)
{
    uint32_t heard = __atomic_load_n(&listening, __ATOMIC_RELAXED);
    struct thread_ranges *ranges = heard ? mine(heard, 0) : NULL;
    return ranges && ranges->depth ? ranges->open[ranges->depth - 1].path : 0;
}

/* ---- names ---------------------------------------------------------------------------------------------------------------- */

/* UTF-8 of wide characters, as far as there is room. */
static void narrow(const wchar_t *wide, char *text, size_t size)
{
    size_t used = 0;
    for (; wide && *wide; wide++) {
        uint32_t c = (uint32_t)*wide;
        if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            c = 0xfffd;
        size_t bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        if (used + bytes >= size)
            break;
        if (bytes == 1) {
            text[used++] = (char)c;
            continue;
        }
        static const uint8_t heads[] = {0, 0, 0xc0, 0xe0, 0xf0};
        text[used] = (char)(heads[bytes] | c >> 6 * (bytes - 1));
        for (size_t i = 1; i < bytes; i++)
            text[used + i] = (char)(0x80 | (c >> 6 * (bytes - 1 - i) & 0x3f));
        used += bytes;
    }
    text[used] = 0;
}

/* The text of an event, in `room` where it has to be put together. */
static const char *text_of(const void *domain, int type, const void *message, char *room)
{
    size_t used = domain ? strnlen(((const struct text *)domain)->text, PATH_NAME_BYTES / 2) : 0;
    const char *text = "";
    if (used > 0) {
        memcpy(room, ((const struct text *)domain)->text, used);
        memcpy(room + used, ": ", 2);
        used += 2;
    }
    if (message && type == NVTX_MESSAGE_WIDE) {
        narrow(message, room + used, PATH_NAME_BYTES - used);
        if (room[used])
            return room;
    } else if (message && type == NVTX_MESSAGE_ASCII)
        text = message;
    else if (message && type == NVTX_MESSAGE_OF_STRING)
        text = ((const struct text *)message)->text;
    if (!*text)
        text = "(no name)";
    if (used == 0)
        return text;
    size_t length = strnlen(text, PATH_NAME_BYTES - 1 - used);
    memcpy(room + used, text, length);
    room[used + length] = 0;
    return room;
}

static const void *message_of(const struct nvtx_event *event, int *type)
{
    *type = 0;
    if (!event || event->size < sizeof *event)
        return NULL;
    *type = event->message_type;
    return event->message;
}

/* A handle with a copy of a text; NULL, which is no handle, when there are too many. They live as long as the process. */
static void *keep(const char *text, int domain)
{
    size_t length = text ? strnlen(text, PATH_NAME_BYTES - 1) : 0;
    struct text *kept = NULL;
    if (pthread_mutex_trylock(&handles) != 0)
        return NULL;
    if (handle_bytes + length + 1 <= STRINGS_BYTES && (!domain || domains < DOMAINS_MAX) && (kept = malloc(sizeof *kept + length))) {
        if (length)
            memcpy(kept->text, text, length);
        kept->text[length] = 0;
        handle_bytes += sizeof *kept + length;
        domains += (size_t)domain;
    }
    pthread_mutex_unlock(&handles);
    return kept;
}

/* ---- ranges --------------------------------------------------------------------------------------------------------------- */

static void add(uint64_t *total, uint64_t more) { __atomic_fetch_add(total, more, __ATOMIC_RELAXED); }

/* Counts a call of this thread's, at a depth; whether it is one to time. */
static int count_call(struct thread_ranges *ranges, uint32_t depth)
{
    ranges->calls[depth < RANGE_DEPTHS ? depth : RANGE_DEPTHS - 1]++;
    if (++ranges->not_counted < TIMED_EVERY)
        return 0;
    for (uint32_t i = 0; i < RANGE_DEPTHS; i++)
        if (ranges->calls[i]) {
            add(&calls[i], ranges->calls[i]);
            ranges->calls[i] = 0;
        }
    ranges->not_counted = 0;
    return 1;
}

static void count_time(uint64_t began)
{
    add(&timed_calls, 1);
    add(&timed_ns, now_ns() - began);
}

void nvtx_count(struct controller_counts *counts)
{
    for (uint32_t i = 0; i < RANGE_DEPTHS; i++)
        counts->range_calls[i] = __atomic_load_n(&calls[i], __ATOMIC_RELAXED);
    counts->timed_ranges = __atomic_load_n(&timed_calls, __ATOMIC_RELAXED);
    counts->timed_ranges_ns = __atomic_load_n(&timed_ns, __ATOMIC_RELAXED);
}

static int is_left_out(uint32_t depth)
{
    uint32_t within = __atomic_load_n(&follow, __ATOMIC_RELAXED);
    return within < RANGE_DEPTHS && depth >= within;
}

static int push(const void *domain, int type, const void *message)
{
    uint32_t heard = __atomic_load_n(&listening, __ATOMIC_RELAXED);
    if (!heard)
        return NVTX_NOT_TRACKED;
    struct thread_ranges *ranges = mine(heard, 1);
    if (!ranges)
        return NVTX_NOT_TRACKED;
    int timed = count_call(ranges, ranges->depth);
    if (ranges->depth == PATHS_DEEP)
        return PATHS_DEEP + (int)ranges->beyond++;
    char room[PATH_NAME_BYTES];
    uint16_t parent = ranges->depth ? ranges->open[ranges->depth - 1].path : 0;
    struct open *open = &ranges->open[ranges->depth];
    open->domain = domain;
    if (is_left_out(ranges->depth)) {
        open->path = parent;
        open->start_ns = 0;
        return (int)ranges->depth++;
    }
    uint64_t began = timed ? now_ns() : 0;
    open->path = path_of(parent, text_of(domain, type, message, room));
    open->start_ns = now_ns();
    if (timed)
        count_time(began);
    return (int)ranges->depth++;
}

/* The innermost range of the domain ends; it need not be the innermost of all. */
static int pop(const void *domain)
{
    uint32_t heard = __atomic_load_n(&listening, __ATOMIC_RELAXED);
    struct thread_ranges *ranges = heard ? mine(heard, 0) : NULL;
    if (!ranges || ranges->depth == 0)
        return NVTX_NOT_TRACKED;
    int timed = count_call(ranges, ranges->depth - 1);
    if (ranges->beyond > 0)
        return PATHS_DEEP + (int)--ranges->beyond;
    uint64_t began = timed ? now_ns() : 0;
    uint32_t at = ranges->depth;
    while (at > 0 && ranges->open[at - 1].domain != domain)
        at--;
    if (at == 0) /* it began when nobody listened */
        return NVTX_NOT_TRACKED;
    struct open ended = ranges->open[at - 1];
    ranges->depth--;
    for (uint32_t i = at - 1; i < ranges->depth; i++) { /* those within it, of other domains, are within what it was in */
        ranges->open[i] = ranges->open[i + 1];
        uint16_t parent = i ? ranges->open[i - 1].path : 0;
        ranges->open[i].path = ranges->open[i].start_ns ? path_within(parent, ranges->open[i].path) : parent;
    }
    if (ended.path && ended.start_ns)
        path_ended(ended.path, ended.start_ns, now_ns());
    if (timed && ended.start_ns)
        count_time(began);
    return (int)at - 1;
}

/* A range that any thread may end; it is not around the launches of one, but counted. */
static uint64_t start(const void *domain, int type, const void *message)
{
    if (!__atomic_load_n(&listening, __ATOMIC_RELAXED))
        return 0;
    char room[PATH_NAME_BYTES];
    uint64_t id = __atomic_add_fetch(&last_started, 1, __ATOMIC_RELAXED);
    struct started *place = &started[id % STARTED];
    uint64_t began = id % TIMED_EVERY == 0 ? now_ns() : 0;
    __atomic_store_n(&place->id, 0, __ATOMIC_RELAXED); /* one that is open for very long loses its place */
    place->path = path_of(0, text_of(domain, type, message, room));
    place->start_ns = now_ns();
    __atomic_store_n(&place->id, id, __ATOMIC_RELEASE);
    if (began) {
        add(&calls[0], 2 * TIMED_EVERY); /* each has an end */
        count_time(began);
    }
    return id;
}

static void end(uint64_t id)
{
    if (!__atomic_load_n(&listening, __ATOMIC_RELAXED) || id == 0)
        return;
    struct started *place = &started[id % STARTED], was = *place;
    if (__atomic_compare_exchange_n(&place->id, &id, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED) && was.path)
        path_ended(was.path, was.start_ns, now_ns());
}

/* ---- what NVTX calls ------------------------------------------------------------------------------------------------------ */

static int push_ex(const struct nvtx_event *event)
{
    int type;
    const void *message = message_of(event, &type);
    return push(NULL, type, message);
}
static int push_a(const char *text) { return push(NULL, NVTX_MESSAGE_ASCII, text); }
static int push_w(const wchar_t *text) { return push(NULL, NVTX_MESSAGE_WIDE, text); }
static int pop_default(void) { return pop(NULL); }
static uint64_t start_ex(const struct nvtx_event *event)
{
    int type;
    const void *message = message_of(event, &type);
    return start(NULL, type, message);
}
static uint64_t start_a(const char *text) { return start(NULL, NVTX_MESSAGE_ASCII, text); }
static uint64_t start_w(const wchar_t *text) { return start(NULL, NVTX_MESSAGE_WIDE, text); }

static uint64_t domain_start(const void *domain, const struct nvtx_event *event)
{
    int type;
    const void *message = message_of(event, &type);
    return start(domain, type, message);
}
static void domain_end(const void *domain, uint64_t id)
{
    (void)domain;
    end(id);
}
static int domain_push(const void *domain, const struct nvtx_event *event)
{
    int type;
    const void *message = message_of(event, &type);
    return push(domain, type, message);
}
static int domain_pop(const void *domain) { return pop(domain); }
static void *register_a(const void *domain, const char *text)
{
    (void)domain;
    return keep(text, 0);
}
static void *register_w(const void *domain, const wchar_t *text)
{
    char room[PATH_NAME_BYTES];
    (void)domain;
    narrow(text, room, sizeof room);
    return keep(room, 0);
}
static void *create_a(const char *text) { return keep(text, 1); }
static void *create_w(const wchar_t *text)
{
    char room[PATH_NAME_BYTES];
    narrow(text, room, sizeof room);
    return keep(room, 1);
}

struct entry {
    unsigned id;
    nvtx_function function;
};

static void fill(const struct nvtx_callbacks *callbacks, int module, const struct entry *entries, size_t number)
{
    nvtx_function **table = NULL;
    unsigned size = 0;
    if (!callbacks->get_module(module, &table, &size) || !table)
        return;
    for (size_t i = 0; i < number; i++)
        if (entries[i].id < size && table[entries[i].id])
            *table[entries[i].id] = entries[i].function;
}

#define ENTRY(id, function) {id, (nvtx_function)function}

/* NVTX calls this once for each copy of it in the process. 1: its calls come here from now on. */
EXPORT int InitializeInjectionNvtx2(nvtx_get_table get_table);
EXPORT int InitializeInjectionNvtx2(nvtx_get_table get_table)
{
    static const struct entry core[] = {
        ENTRY(NVTX_CORE_RangeStartEx, start_ex), ENTRY(NVTX_CORE_RangeStartA, start_a), ENTRY(NVTX_CORE_RangeStartW, start_w),
        ENTRY(NVTX_CORE_RangeEnd, end),          ENTRY(NVTX_CORE_RangePushEx, push_ex), ENTRY(NVTX_CORE_RangePushA, push_a),
        ENTRY(NVTX_CORE_RangePushW, push_w),     ENTRY(NVTX_CORE_RangePop, pop_default),
    };
    static const struct entry core2[] = {
        ENTRY(NVTX_CORE2_DomainRangeStartEx, domain_start),   ENTRY(NVTX_CORE2_DomainRangeEnd, domain_end),
        ENTRY(NVTX_CORE2_DomainRangePushEx, domain_push),     ENTRY(NVTX_CORE2_DomainRangePop, domain_pop),
        ENTRY(NVTX_CORE2_DomainRegisterStringA, register_a),  ENTRY(NVTX_CORE2_DomainRegisterStringW, register_w),
        ENTRY(NVTX_CORE2_DomainCreateA, create_a),            ENTRY(NVTX_CORE2_DomainCreateW, create_w),
    };
    const struct nvtx_callbacks *callbacks = get_table ? get_table(NVTX_TABLE_CALLBACKS) : NULL;
    if (!callbacks || callbacks->struct_size < sizeof *callbacks || !callbacks->get_module)
        return 0;
    fill(callbacks, NVTX_MODULE_CORE, core, sizeof core / sizeof *core);
    fill(callbacks, NVTX_MODULE_CORE2, core2, sizeof core2 / sizeof *core2);
    return 1;
}
