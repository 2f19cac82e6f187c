/* Another user of CUPTI in the harness's process, as torch.profiler is one.
 *
 *   other NAME|-          subscribes alone, with a name or the old way
 *   other_shares NAME     subscribes as one of several; looks at launches, records kernels, copies and sets, and leaves a word in each call
 *   other_records         flushes; answers how many records it has got so far
 *   other_calls           answers how many exits of launches it has seen
 *   other_spoilt          answers how many of its words were gone at a call's exit
 *   other_leave           goes
 *   other_finalizes       lets go of CUPTI for the whole process
 */
#define _GNU_SOURCE
#include "../../bpf/inject/cupti_abi.h"
#include "mock_gpu.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cupti_subscriber subscriber;
static int shares;
static atomic_long records, calls, spoilt;

static void *symbol(const char *name)
{
    const char *path = getenv("GPUPROF_CUPTI");
    void *mock = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    return mock ? dlsym(mock, name) : NULL;
}

#define CUPTI(name) (*(__typeof__(((struct cupti_api *)0)->name) *)&(void *){symbol(#name)})

static void ignore_call(void *user, int domain, uint32_t cbid, const void *data) { (void)user, (void)domain, (void)cbid, (void)data; }

/* Of a call that was under way when it subscribed it has seen no enter, and left no word. */
static void look_at_call(void *user, int domain, uint32_t cbid, const void *data)
{
    static __thread uint32_t entered;
    const struct cupti_callback_data *call = data;
    uint64_t word = 0x5a5a000000000000ull | call->correlation_id;
    (void)user, (void)domain, (void)cbid;
    if (call->site == SITE_ENTER) {
        *call->correlation_data = word;
        entered = call->correlation_id;
    } else if (entered != call->correlation_id)
        return;
    else if (*call->correlation_data == word)
        atomic_fetch_add(&calls, 1);
    else
        atomic_fetch_add(&spoilt, 1);
}

static void request(uint8_t **buffer, size_t *size, size_t *most, void *info)
{
    (void)info;
    *most = 0;
    *size = 64u << 10;
    *buffer = malloc(*size); /* not cleared: nobody has promised that */
}

static cupti_result (*next_record)(cupti_subscriber, uint8_t *, size_t, void **);

static void complete(uint8_t *buffer, size_t size, size_t valid, void *info)
{
    void *record = NULL;
    (void)size, (void)info;
    while (valid > 0 && next_record(subscriber, buffer, valid, &record) == CUPTI_OK)
        atomic_fetch_add(&records, 1);
    free(buffer);
}

static const uint32_t kinds[] = {ACTIVITY_CONCURRENT_KERNEL, ACTIVITY_MEMCPY, ACTIVITY_MEMSET};

static int subscribe(const char *name, int allow)
{
    struct cupti_subscriber_params params = {.subscriber_name = name, .allow_multiple = (uint8_t)allow};
    params.struct_size = allow ? sizeof params : offsetof(struct cupti_subscriber_params, allow_multiple);
    shares = allow;
    if (strcmp(name, "-") == 0)
        return CUPTI(cuptiSubscribe)(&subscriber, ignore_call, NULL);
    int result = CUPTI(cuptiSubscribe_v2)(&subscriber, allow ? look_at_call : ignore_call, NULL, &params);
    if (result != CUPTI_OK || !allow)
        return result;
    next_record = CUPTI(cuptiActivityGetNextRecord_v2);
    CUPTI(cuptiActivityRegisterCallbacks_v2)(subscriber, request, complete);
    CUPTI(cuptiEnableCallback)(1, subscriber, DOMAIN_DRIVER_API, CBID_cuLaunchKernel);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        CUPTI(cuptiActivityEnable_v2)(subscriber, kinds[i], NULL);
    return result;
}

static int leave(void)
{
    for (size_t i = 0; shares && i < sizeof kinds / sizeof *kinds; i++)
        CUPTI(cuptiActivityDisable_v2)(subscriber, kinds[i], NULL);
    if (shares)
        CUPTI(cuptiActivityFlushAll)(0);
    return CUPTI(cuptiUnsubscribe)(subscriber);
}

int other_obey(const char *line, long *answer)
{
    char name[128];
    void (*finalize)(void) = NULL;
    if (strcmp(line, "other_records") == 0) {
        CUPTI(cuptiActivityFlushAll)(0);
        *answer = atomic_load(&records);
    } else if (strcmp(line, "other_calls") == 0) {
        *answer = atomic_load(&calls);
    } else if (strcmp(line, "other_spoilt") == 0) {
        *answer = atomic_load(&spoilt);
    } else if (strcmp(line, "other_leave") == 0) {
        *answer = leave();
    } else if (strcmp(line, "other_finalizes") == 0) {
        *(void **)&finalize = symbol("mock_cupti_finalize");
        finalize();
        *answer = 0;
    } else if (sscanf(line, "other_shares %127s", name) == 1) {
        *answer = subscribe(name, 1);
    } else if (sscanf(line, "other %127s", name) == 1) {
        *answer = subscribe(name, 0);
    } else {
        return 0;
    }
    return 1;
}
