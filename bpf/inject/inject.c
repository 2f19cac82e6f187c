/* libgpuprof_inject.so: records GPU work of the process it is loaded into, while a sampler listens.
 *
 * Loaded by the CUDA driver through CUDA_INJECTION64_PATH, or later into a running process. It links neither CUPTI, libcuda nor libstdc++,
 * never throws, never exits, never prints unless GPUPROF_INJECT_LOG is set. One thread of its own, with all signals blocked, looks for a
 * listener; without one, CUPTI is finalized and the process runs at its native speed.
 *
 *   waiting -> recording   a sampler holds its lock on the ring: subscribe, enable
 *   recording -> detaching the lock is gone: the next launch flushes and finalizes at its exit (a finalize from another thread, while the
 *                          application is in CUDA calls, can crash)
 *   waiting -> refused     another CUPTI user is subscribed, or CUPTI is missing: said in the ring's header, tried again
 */
#define _GNU_SOURCE
#include "cupti_abi.h"
#include "names.h"
#include "ring.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define POLL_NS 50000000ull         /* how often a listener is looked for */
#define CLOCK_NS 1000000000ull      /* how often the clocks are compared */
#define RETRY_NS 2000000000ull      /* after a refusal */
#define FLUSH_PERIOD_MS 100u        /* CUPTI hands over what is complete this often */
#define BUFFER_BYTES (256u << 10)
#define SPARE_BUFFERS 16

enum detach { DETACH_NO = 0, DETACH_WANTED = 1, DETACH_RUNNING = 2 };

static struct cupti_api cupti;
static int cupti_opened;
static cupti_subscriber subscriber;
static struct ring ring = {.fd = -1};
/* `writer` guards the ring's writing side and the names, `buffers` the spare ones. Neither is held over a call that may wait for a lock of
 * CUPTI's, since CUPTI calls back with its own locks held. */
static pthread_mutex_t writer = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t buffers = PTHREAD_MUTEX_INITIALIZER;
static uint8_t last_resort[4096] __attribute__((aligned(8))); /* a NULL buffer crashes CUPTI before 12.9 */
static uint8_t *spare[SPARE_BUFFERS];
static int spare_count;
static uint32_t epoch;
static volatile int recording; /* read on the launch path */
static int detach_state;       /* enum detach, atomic */
static int started;
static volatile int forked;

/* The uprobe sits on the first instruction, a 5-byte nop, which the kernel replaces by a call instead of a trap. Arguments: rdi correlation id,
 * rsi CLOCK_MONOTONIC ns at the launch's enter, rdx attach epoch, rcx how many launches this one stands for. */
EXPORT __attribute__((naked, noinline)) void gpuprof_launch(uint64_t correlation, uint64_t enter_ns, uint64_t attach, uint64_t weight)
{
    (void)correlation, (void)enter_ns, (void)attach, (void)weight;
    __asm__ volatile(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n\tret");
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

__attribute__((format(printf, 1, 2))) static void log_line(const char *format, ...)
{
    static int wanted = -1;
    if (wanted < 0)
        wanted = getenv("GPUPROF_INJECT_LOG") != NULL;
    if (!wanted)
        return;
    char line[512];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    dprintf(2, "gpuprof[%d]: %s\n", (int)getpid(), line);
}

/* ---- clocks ------------------------------------------------------------------------------------------------------------ */

/* The tightest of a few brackets of CUPTI's clock between two readings of CLOCK_MONOTONIC. */
static void compare_clocks(void)
{
    uint64_t best = UINT64_MAX, cupti_at = 0, mono_at = 0;
    for (int i = 0; i < 16; i++) {
        uint64_t there = 0, before = now_ns();
        if (cupti.cuptiGetTimestamp(&there) != CUPTI_OK)
            return;
        uint64_t width = now_ns() - before;
        if (width < best)
            best = width, cupti_at = there, mono_at = before + width / 2;
    }
    pthread_mutex_lock(&writer);
    struct ring_slot *slot = ring_next(&ring);
    if (slot) {
        memset(slot, 0, sizeof *slot);
        slot->kind = SLOT_CLOCK;
        slot->epoch = epoch;
        slot->clock.cupti_ns = cupti_at;
        slot->clock.mono_ns = mono_at;
        slot->clock.width_ns = best;
        ring_publish(&ring);
    }
    pthread_mutex_unlock(&writer);
}

/* ---- activity records ----------------------------------------------------------------------------------------------------- */

static void on_buffer_requested(uint8_t **buffer, size_t *size, size_t *max_records)
{
    uint8_t *given = NULL;
    pthread_mutex_lock(&buffers);
    if (spare_count > 0)
        given = spare[--spare_count];
    pthread_mutex_unlock(&buffers);
    if (!given)
        given = aligned_alloc(8, BUFFER_BYTES);
    *buffer = given ? given : last_resort;
    *size = given ? BUFFER_BYTES : sizeof last_resort;
    *max_records = 0;
}

static void write_work(uint8_t kind, uint8_t flags, uint32_t device, uint64_t start, uint64_t end, uint32_t correlation, uint32_t stream,
                       uint32_t context, uint32_t name, uint64_t bytes_or_node, uint32_t graph)
{
    struct ring_slot *slot = ring_next(&ring);
    if (!slot)
        return;
    memset(slot, 0, sizeof *slot);
    slot->kind = kind;
    slot->flags = flags;
    slot->device = (uint16_t)(device > UINT16_MAX ? UINT16_MAX : device);
    slot->epoch = epoch;
    slot->work.start = start;
    slot->work.end = end;
    slot->work.correlation = correlation;
    slot->work.stream = stream;
    slot->work.context = context;
    slot->work.name = name;
    slot->work.bytes_or_node = bytes_or_node;
    slot->work.graph = graph;
}

static void on_buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)size;
    size_t lost = 0;
    if (cupti.cuptiActivityGetNumDroppedRecords(context, stream, &lost) != CUPTI_OK)
        lost = 0;
    pthread_mutex_lock(&writer);
    void *record = NULL;
    uint64_t records = 0;
    while (valid > 0 && ring.header && cupti.cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_OK) {
        switch (*(const uint32_t *)record) {
        case ACTIVITY_CONCURRENT_KERNEL: {
            const struct cupti_kernel *k = record;
            write_work(SLOT_KERNEL, 0, k->device, k->start, k->end, k->correlation, k->stream, k->context,
                       names_id(&ring, k->name, epoch), k->graph_node, k->graph);
            break;
        }
        case ACTIVITY_MEMCPY: {
            const struct cupti_memcpy *m = record;
            write_work(SLOT_MEMCPY, m->copy_kind, m->device, m->start, m->end, m->correlation, m->stream, m->context, 0, m->bytes, 0);
            break;
        }
        case ACTIVITY_MEMSET: {
            const struct cupti_memset *m = record;
            write_work(SLOT_MEMSET, 0, m->device, m->start, m->end, m->correlation, m->stream, m->context, 0, m->bytes, 0);
            break;
        }
        default:
            continue;
        }
        records++;
    }
    if (ring.header) {
        ring.header->records += records;
        ring.header->cupti_dropped += lost;
        ring_publish(&ring);
    }
    pthread_mutex_unlock(&writer);

    if (buffer == last_resort)
        return;
    pthread_mutex_lock(&buffers);
    if (spare_count < SPARE_BUFFERS) {
        spare[spare_count++] = buffer;
        buffer = NULL;
    }
    pthread_mutex_unlock(&buffers);
    free(buffer);
}

/* ---- the launch path ------------------------------------------------------------------------------------------------------- */

static void finalize_here(void)
{
    recording = 0;
    cupti.cuptiActivityFlushAll(1);
    cupti_result result = cupti.cuptiFinalize();
    log_line("finalized: %d", result);
    ring_say(&ring, RING_WAITING, "");
    __atomic_store_n(&detach_state, DETACH_NO, __ATOMIC_RELEASE);
}

static void on_call(void *user, int domain, uint32_t cbid, const void *data)
{
    (void)user, (void)domain, (void)cbid;
    const struct cupti_callback_data *call = data;
    if (call->site == SITE_ENTER) {
        *call->correlation_data = now_ns();
        return;
    }
    if (recording && !forked) {
        __atomic_fetch_add(&ring.header->launches, 1, __ATOMIC_RELAXED);
        gpuprof_launch(call->correlation_id, *call->correlation_data, epoch, 1);
    }
    int wanted = DETACH_WANTED;
    if (__atomic_load_n(&detach_state, __ATOMIC_RELAXED) == DETACH_WANTED &&
        __atomic_compare_exchange_n(&detach_state, &wanted, DETACH_RUNNING, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        finalize_here();
}

/* ---- attaching ---------------------------------------------------------------------------------------------------------- */

/* Which device is which: CUPTI speaks of the process's own ordinals, which CUDA_VISIBLE_DEVICES shifts. */
static void note_devices(void)
{
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
    if (!get_count || !get_device || !get_uuid || get_count(&count) != 0)
        return;
    if (count > RING_DEVICES)
        count = RING_DEVICES;
    for (int i = 0; i < count; i++) {
        int device;
        if (get_device(&device, i) == 0)
            get_uuid(ring.header->uuid[i], device);
    }
    ring.header->devices = (uint32_t)count;
}

static int subscribe(char *problem, size_t problem_size)
{
    cupti_result result = CUPTI_INVALID_PARAMETER;
    char other[128] = "";
    struct cupti_subscriber_params params = {
        .subscriber_name = "gpuprof",
        .old_subscriber_name = other,
        .old_subscriber_size = sizeof other,
    };
    /* CUPTI 13.0 knows the parameters without allow_multiple and refuses a larger structure. */
    const size_t sizes[] = {sizeof params, offsetof(struct cupti_subscriber_params, allow_multiple)};
    for (size_t i = 0; i < 2 && cupti.cuptiSubscribe_v2 && result == CUPTI_INVALID_PARAMETER; i++) {
        params.struct_size = sizes[i];
        result = cupti.cuptiSubscribe_v2(&subscriber, on_call, NULL, &params);
    }
    if (result == CUPTI_INVALID_PARAMETER)
        result = cupti.cuptiSubscribe(&subscriber, on_call, NULL);
    if (result == CUPTI_OK)
        return 0;
    if (result == CUPTI_MULTIPLE_SUBSCRIBERS)
        snprintf(problem, problem_size, "another profiler uses CUPTI in this process: %s", other[0] ? other : "it gives no name");
    else {
        const char *text = NULL;
        if (cupti.cuptiGetResultString)
            cupti.cuptiGetResultString(result, &text);
        snprintf(problem, problem_size, "CUPTI refuses a subscriber: %s (%d)", text ? text : "no text", result);
    }
    return -1;
}

static int attach(char *problem, size_t problem_size)
{
    if (!cupti_opened) {
        if (cupti_open(&cupti, ring.header->library, RING_TEXT, problem, problem_size) < 0)
            return -1;
        cupti_opened = 1;
        cupti.cuptiGetVersion(&ring.header->cupti_version);
    }
    if (subscribe(problem, problem_size) < 0)
        return -1;
    note_devices();

    pthread_mutex_lock(&writer);
    epoch++;
    ring.header->epoch = epoch;
    pthread_mutex_unlock(&writer);

    cupti.cuptiActivityRegisterCallbacks(on_buffer_requested, on_buffer_completed);
    if (cupti.cuptiActivityFlushPeriod)
        cupti.cuptiActivityFlushPeriod(FLUSH_PERIOD_MS);
    compare_clocks();
    recording = 1;

    static const uint32_t launches[] = {
        CBID_cuLaunch,           CBID_cuLaunchGrid,           CBID_cuLaunchGridAsync,
        CBID_cuLaunchKernel,     CBID_cuLaunchKernel_ptsz,    CBID_cuLaunchCooperativeKernel,
        CBID_cuLaunchKernelEx,   CBID_cuLaunchKernelEx_ptsz,  CBID_cuLaunchCooperativeKernel_ptsz,
        CBID_cuGraphLaunch,      CBID_cuGraphLaunch_ptsz,     CBID_cuLaunchCooperativeKernelMultiDevice,
    };
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) /* an id that this CUPTI does not know is an error to ignore */
        cupti.cuptiEnableCallback(1, subscriber, DOMAIN_DRIVER_API, launches[i]);
    cupti_result result = cupti.cuptiActivityEnable(ACTIVITY_CONCURRENT_KERNEL);
    cupti.cuptiActivityEnable(ACTIVITY_MEMCPY);
    cupti.cuptiActivityEnable(ACTIVITY_MEMSET);
    log_line("attached, epoch %u, %s, kernel records %d", epoch, ring.header->library, result);
    ring_say(&ring, RING_RECORDING, result == CUPTI_OK ? "" : "CUPTI gives no kernel records");
    return 0;
}

static void *watch(void *unused)
{
    (void)unused;
    uint64_t next_clock = 0, next_try = 0;
    while (!forked) {
        struct timespec pause = {.tv_nsec = (long)POLL_NS};
        nanosleep(&pause, NULL);
        uint64_t now = now_ns();
        int listener = ring_has_listener(&ring);
        if (listener && !recording && __atomic_load_n(&detach_state, __ATOMIC_ACQUIRE) == DETACH_NO && now >= next_try) {
            char problem[RING_TEXT] = "";
            if (attach(problem, sizeof problem) < 0) {
                log_line("refused: %s", problem);
                ring_say(&ring, RING_REFUSED, problem);
                next_try = now + RETRY_NS;
            } else {
                next_clock = now + CLOCK_NS;
            }
        } else if (listener && __atomic_load_n(&detach_state, __ATOMIC_ACQUIRE) == DETACH_WANTED) {
            /* A new sampler came before the process made a CUDA call: nothing was finalized, go on. */
            int wanted = DETACH_WANTED;
            if (__atomic_compare_exchange_n(&detach_state, &wanted, DETACH_NO, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
                ring_say(&ring, RING_RECORDING, "");
        } else if (!listener && recording && __atomic_load_n(&detach_state, __ATOMIC_ACQUIRE) == DETACH_NO) {
            ring_say(&ring, RING_DETACHING, "waiting for the next launch");
            __atomic_store_n(&detach_state, DETACH_WANTED, __ATOMIC_RELEASE);
        }
        if (recording && now >= next_clock && __atomic_load_n(&detach_state, __ATOMIC_ACQUIRE) == DETACH_NO) {
            compare_clocks();
            next_clock = now + CLOCK_NS;
        }
    }
    return NULL;
}

/* ---- starting and ending -------------------------------------------------------------------------------------------------- */

static void at_exit(void)
{
    if (recording && !forked && ring.header) {
        cupti.cuptiActivityFlushAll(1); /* the last records; the sampler holds the memory and reads on after the process is gone */
        ring_say(&ring, RING_ENDED, "");
    }
}

static void in_child(void)
{
    forked = 1; /* no thread, and the ring is not mapped here */
    recording = 0;
    ring.header = NULL;
    if (ring.fd >= 0)
        close(ring.fd); /* else the child would hold the file that its parent's sampler looks for */
    ring.fd = -1;
}

/* Starts watching for a sampler; idempotent. Returns 0, or -errno where the ring or the thread cannot be made. For attaching to a running
 * process; through CUDA_INJECTION64_PATH the driver calls InitializeInjection. */
EXPORT int gpuprof_start(void)
{
    int first = 0;
    if (!__atomic_compare_exchange_n(&started, &first, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return 0;
    int result = ring_create(&ring);
    if (result < 0) {
        log_line("no ring: %s", strerror(-result));
        return result;
    }
    pthread_atfork(NULL, NULL, in_child);
    atexit(at_exit);

    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the application's signals are for its own threads */
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    result = pthread_create(&thread, &attributes, watch, NULL);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (result != 0) {
        log_line("no thread: %s", strerror(result));
        return -result;
    }
    pthread_setname_np(thread, "gpuprof");
    return 0;
}

/* Called by the CUDA driver during cuInit. 1: loaded. A failure of ours must not fail the application, so it is always 1. */
EXPORT int InitializeInjection(void)
{
    gpuprof_start();
    return 1;
}
