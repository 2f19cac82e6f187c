/* Which calls of the CUDA driver are looked at (call_classes.h). */
#include "call_classes.h"
#include "events.h"
#include "graphs.h"

uint8_t call_classes[CALL_IDS];
static int events_awaited;  /* the process waits for events; atomic */
static int events_followed; /* the library's thread's */

static void enable(const struct cupti_api *cupti, cupti_subscriber subscriber, uint32_t id, enum call_class class)
{
    __atomic_store_n(&call_classes[id], (uint8_t)class, __ATOMIC_RELAXED);
    cupti->cuptiEnableCallback(1, subscriber, DOMAIN_DRIVER_API, id); /* an id that this CUPTI does not know is an error to ignore */
}

void calls_enable(const struct cupti_api *cupti, cupti_subscriber subscriber)
{
    static const uint32_t launches[] = {
        CBID_cuLaunch,           CBID_cuLaunchGrid,           CBID_cuLaunchGridAsync,
        CBID_cuLaunchKernel,     CBID_cuLaunchKernel_ptsz,    CBID_cuLaunchCooperativeKernel,
        CBID_cuLaunchKernelEx,   CBID_cuLaunchKernelEx_ptsz,  CBID_cuLaunchCooperativeKernel_ptsz,
        CBID_cuGraphLaunch,      CBID_cuGraphLaunch_ptsz,     CBID_cuLaunchCooperativeKernelMultiDevice,
    };
    static const struct cbid_range copies[] = CBID_COPY_RANGES;
    static const uint32_t waits[] = {
        CBID_cuCtxSynchronize, CBID_cuCtxSynchronize_v2, CBID_cuEventSynchronize, CBID_cuStreamSynchronize, CBID_cuStreamSynchronize_ptsz,
    };
    static const uint32_t frees[] = {CBID_cuMemFree_v2, CBID_cuMemFreeHost, CBID_cuMemHostUnregister};
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
        enable(cupti, subscriber, launches[i], CALL_LAUNCH);
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        for (uint32_t id = copies[i].first; id <= copies[i].last; id++)
            enable(cupti, subscriber, id, CALL_COPY);
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        enable(cupti, subscriber, waits[i], CALL_WAIT);
    for (size_t i = 0; i < sizeof frees / sizeof *frees; i++)
        enable(cupti, subscriber, frees[i], CALL_FREE);
    for (size_t i = 0; i < graphs_count; i++)
        enable(cupti, subscriber, graphs_ids[i], CALL_GRAPH);
    events_followed = 0;
    calls_follow_events(cupti, subscriber);
}

void calls_disable(const struct cupti_api *cupti, cupti_subscriber subscriber)
{
    for (uint32_t id = 0; id < CALL_IDS; id++) {
        enum call_class class = class_of_call(id);
        if (class != CALL_NONE && class != CALL_GRAPH)
            cupti->cuptiEnableCallback(0, subscriber, DOMAIN_DRIVER_API, id);
    }
}

static const uint32_t event_records[] = {
    CBID_cuEventRecord, CBID_cuEventRecord_ptsz, CBID_cuEventRecordWithFlags, CBID_cuEventRecordWithFlags_ptsz,
};

void calls_follow_events(const struct cupti_api *cupti, cupti_subscriber subscriber)
{
    if (events_followed || !__atomic_load_n(&events_awaited, __ATOMIC_RELAXED) || !cupti->cuptiGetStreamIdEx)
        return;
    events_followed = 1;
    events_forget();
    for (size_t i = 0; i < sizeof event_records / sizeof *event_records; i++)
        enable(cupti, subscriber, event_records[i], CALL_RECORD);
}

void calls_enable_more(const struct cupti_api *cupti, cupti_subscriber subscriber, uint32_t on)
{
    static const uint32_t more[] = {
        CBID_cuCtxGetCurrent, CBID_cuCtxSetCurrent, CBID_cuEventRecord,        CBID_cuEventRecord_ptsz,  CBID_cuEventQuery,
        CBID_cuStreamQuery,   CBID_cuMemAlloc_v2,   CBID_cuStreamQuery_ptsz,   CBID_cuMemGetInfo_v2,     CBID_cuMemAllocAsync,
        CBID_cuMemFreeAsync,  CBID_cuMemAllocAsync_ptsz, CBID_cuMemFreeAsync_ptsz,
    };
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        if (events_followed && (more[i] == CBID_cuEventRecord || more[i] == CBID_cuEventRecord_ptsz))
            continue; /* is enabled anyway, and stays */
        __atomic_store_n(&call_classes[more[i]], (uint8_t)CALL_OTHER, __ATOMIC_RELAXED);
        cupti->cuptiEnableCallback(on, subscriber, DOMAIN_DRIVER_API, more[i]);
    }
}

void calls_await_event(void)
{
    if (!__atomic_load_n(&events_awaited, __ATOMIC_RELAXED))
        __atomic_store_n(&events_awaited, 1, __ATOMIC_RELAXED);
}
