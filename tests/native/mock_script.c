/* What the mock CUPTI shall do, and what was done to it (mock_cupti.h). */
#define _GNU_SOURCE
#include "mock_cupti.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

_Atomic int64_t mock_settings[SETTINGS_COUNT];
static struct counter own_counters[COUNTERS_COUNT];
struct counter *mock_counters = own_counters;
atomic_uint next_correlation;
atomic_int torn_down, is_child;

uint64_t mock_clock_ns(int clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t mock_cupti_ns(void) { return mock_clock_ns(CLOCK_REALTIME) + (uint64_t)SETTING(clock_offset); }

void mock_sleep_ms(int64_t ms)
{
    struct timespec pause = {.tv_sec = ms < 0 ? 1000000 : ms / 1000, .tv_nsec = ms < 0 ? 0 : ms % 1000 * 1000000};
    if (ms != 0)
        nanosleep(&pause, NULL);
}

int mock_gone(void)
{
    if (!atomic_load(&torn_down))
        return 0;
    COUNT(fault_after_teardown)++;
    return 1;
}

int mock_cupti_set(const char *key, long long value)
{
#define NAME(name)                                                                                                     \
    if (strcmp(key, #name) == 0) {                                                                                     \
        atomic_store(&mock_settings[set_##name], value);                                                               \
        if ((int)set_##name == (int)set_first_correlation)                                                             \
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
    mock_counters = own_counters; /* the file is the parent's */
}

/* The real library's exit handlers, too, run before those that were registered before it was loaded. */
static void tear_down(void)
{
    COUNT(teardowns)++;
    if (atomic_load(&is_child))
        activity_in_child_at_exit();
    atomic_store(&torn_down, 1);
}

__attribute__((constructor)) static void load(void)
{
    atomic_store(&next_correlation, 1);
    atomic_store(&mock_settings[set_params_size], (int64_t)sizeof(struct cupti_subscriber_params));
    const char *path = getenv("MOCK_CUPTI_COUNTERS");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0 && ftruncate(fd, sizeof own_counters) == 0) {
        void *mapped = mmap(NULL, sizeof own_counters, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (mapped != MAP_FAILED)
            mock_counters = mapped;
    }
    if (fd >= 0)
        close(fd);
#define NAME(counter) strncpy(mock_counters[count_##counter].name, #counter, sizeof mock_counters->name - 1);
    COUNTERS(NAME)
#undef NAME
    char text[512] = "", *rest = text, *pair;
    const char *script = getenv("MOCK_CUPTI");
    strncpy(text, script ? script : "", sizeof text - 1);
    while ((pair = strsep(&rest, ",")) != NULL) {
        char *value = strchr(pair, '=');
        if (value) {
            *value = 0;
            mock_cupti_set(pair, atoll(value + 1));
        }
    }
    COUNT(loaded)++;
    pthread_atfork(NULL, NULL, in_child);
    atexit(tear_down);
}
