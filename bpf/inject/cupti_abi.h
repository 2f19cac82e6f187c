/* The part of CUPTI's binary interface that the injection library uses, declared by this project so that it builds with nothing but a
 * C compiler. Offsets and numbers are facts of NVIDIA's cupti_activity.h, cupti_callbacks.h and cupti_*_cbid.h (CUDA 11.8 to 13.5, x86-64);
 * tests/native compares each of them with the real headers.
 */
#ifndef GPUPROF_CUPTI_ABI_H
#define GPUPROF_CUPTI_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int cupti_result;
typedef void *cupti_subscriber;

enum {
    CUPTI_OK = 0,
    CUPTI_INVALID_PARAMETER = 1,
    CUPTI_MULTIPLE_SUBSCRIBERS = 39,
};

enum { DOMAIN_DRIVER_API = 1, DOMAIN_RUNTIME_API = 2 };
enum { SITE_ENTER = 0, SITE_EXIT = 1 };
enum { ACTIVITY_MEMCPY = 1, ACTIVITY_MEMSET = 2, ACTIVITY_CONCURRENT_KERNEL = 10 };

enum {
    ATTR_DEVICE_BUFFER_POOL_LIMIT = 2,
    ATTR_ZEROED_OUT_ACTIVITY_BUFFER = 5,
    ATTR_USER_DEFINED_RECORDS = 11,  /* CUPTI 13.2 */
    ATTR_SHARED_GRAPH_TRACE = 20, /* CUPTI 13.3: graphs come as one record each, for every subscriber */
};

/* Driver API calls that put kernels on the device. A runtime launch always passes through one of them, with the same correlation id, so
 * that subscribing to the driver domain alone sees every launch once. */
enum {
    CBID_cuLaunch = 115,
    CBID_cuLaunchGrid = 116,
    CBID_cuLaunchGridAsync = 117,
    CBID_cuLaunchKernel = 307,
    CBID_cuLaunchKernel_ptsz = 442,
    CBID_cuLaunchCooperativeKernel = 477,
    CBID_cuLaunchCooperativeKernel_ptsz = 478,
    CBID_cuLaunchCooperativeKernelMultiDevice = 480,
    CBID_cuGraphLaunch = 514,
    CBID_cuGraphLaunch_ptsz = 515,
    CBID_cuLaunchKernelEx = 652,
    CBID_cuLaunchKernelEx_ptsz = 653,
};

/* Driver API calls that return when the device has done what it was asked for. */
enum {
    CBID_cuCtxSynchronize = 17,
    CBID_cuEventSynchronize = 121,
    CBID_cuStreamSynchronize = 126,
    CBID_cuStreamSynchronize_ptsz = 440,
    CBID_cuCtxSynchronize_v2 = 800,
};

/* Driver API calls that say which stream an event is of. */
enum {
    CBID_cuEventRecord = 119,
    CBID_cuEventRecord_ptsz = 441,
    CBID_cuEventRecordWithFlags = 587,
    CBID_cuEventRecordWithFlags_ptsz = 588,
};

/* Driver API calls that wait for the device before they give something back, where it still works. */
enum {
    CBID_cuMemFreeHost = 38,
    CBID_cuMemFree_v2 = 245,
    CBID_cuMemHostUnregister = 302,
};

/* Driver API calls that processes make all the time and at whose exit CUPTI can be let go of. */
enum {
    CBID_cuEventQuery = 120,
    CBID_cuStreamQuery = 125,
    CBID_cuMemGetInfo_v2 = 242,
    CBID_cuMemAlloc_v2 = 243,
    CBID_cuCtxSetCurrent = 303,
    CBID_cuCtxGetCurrent = 304,
    CBID_cuStreamQuery_ptsz = 439,
    CBID_cuMemAllocAsync = 598,
    CBID_cuMemAllocAsync_ptsz = 599,
    CBID_cuMemFreeAsync = 600,
    CBID_cuMemFreeAsync_ptsz = 601,
};

/* Driver API calls that make, change or destroy graphs. */
enum {
    CBID_cuStreamBeginCapture = 495,
    CBID_cuStreamBeginCapture_ptsz = 496,
    CBID_cuStreamEndCapture = 497,
    CBID_cuStreamEndCapture_ptsz = 498,
    CBID_cuGraphCreate = 501,
    CBID_cuGraphAddKernelNode = 502,
    CBID_cuGraphAddMemcpyNode = 504,
    CBID_cuGraphAddMemsetNode = 506,
    CBID_cuGraphInstantiate = 513,
    CBID_cuGraphExecDestroy = 516,
    CBID_cuGraphDestroy = 517,
    CBID_cuGraphDestroyNode = 522,
    CBID_cuGraphClone = 523,
    CBID_cuGraphAddChildGraphNode = 525,
    CBID_cuStreamBeginCapture_v2 = 539,
    CBID_cuStreamBeginCapture_v2_ptsz = 540,
    CBID_cuGraphExecUpdate = 561,
    CBID_cuGraphInstantiate_v2 = 578,
    CBID_cuGraphInstantiateWithFlags = 643,
    CBID_cuGraphInstantiateWithParams = 656,
    CBID_cuGraphInstantiateWithParams_ptsz = 657,
    CBID_cuGraphAddKernelNode_v2 = 689,
    CBID_cuGraphExecUpdate_v2 = 696,
    CBID_cuGraphAddNode = 712,
    CBID_cuStreamBeginCaptureToGraph = 720,
    CBID_cuStreamBeginCaptureToGraph_ptsz = 721,
    CBID_cuGraphAddNode_v2 = 723,
};

/* Driver API calls that copy or set memory, as ranges of ids; the odd ids from 217 to 225 are not in use. */
struct cbid_range {
    uint32_t first;
    uint32_t last;
};
#define CBID_COPY_RANGES                                                                                               \
    {                                                                                                                  \
        {216, 226}, {249, 254}, {276, 293}, {305, 306}, {318, 321}, {397, 416}, {418, 433}, {776, 779}, {796, 799},    \
            {837, 840},                                                                                                \
    }

struct cupti_callback_data { /* CUpti_CallbackData */
    uint32_t site;
    uint32_t pad0;
    const char *function_name;
    const void *params;
    void *return_value;
    const char *symbol_name;
    void *context;
    uint32_t context_uid;
    uint32_t pad1;
    uint64_t *correlation_data; /* one word that is kept from the enter to the exit of a call */
    uint32_t correlation_id;
    uint32_t pad2;
};

struct cuda_stream_params { /* cuStreamSynchronize_params and cuStreamSynchronize_ptsz_params */
    void *stream;
};

struct cuda_event_params { /* cuEventSynchronize_params, and the head of cuEventRecord*_params */
    void *event;
    void *stream; /* of a record only */
};

struct cupti_subscriber_params { /* CUpti_SubscriberParams, CUDA 13 */
    size_t struct_size;
    const char *subscriber_name;
    char *old_subscriber_name;
    size_t old_subscriber_size;
    uint8_t allow_multiple;
    uint8_t pad[7];
};

struct cupti_kernel { /* the head of CUpti_ActivityKernel5..13, alike in all of them */
    uint32_t kind;
    uint8_t pad0[12];
    uint64_t start;
    uint64_t end;
    uint64_t completed;
    uint32_t device;
    uint32_t context;
    uint32_t stream;
    uint8_t pad1[40];
    uint32_t correlation;
    uint8_t pad2[8];
    const char *name;
    uint8_t pad3[32];
    uint64_t graph_node;
    uint8_t pad4[4];
    uint32_t graph;
};

struct cupti_memcpy { /* the head of CUpti_ActivityMemcpy4..7 */
    uint32_t kind;
    uint8_t copy_kind;
    uint8_t pad0[3];
    uint64_t bytes;
    uint64_t start;
    uint64_t end;
    uint32_t device;
    uint32_t context;
    uint32_t stream;
    uint32_t correlation;
};

struct cupti_memset { /* the head of CUpti_ActivityMemset3..5 */
    uint32_t kind;
    uint32_t value;
    uint64_t bytes;
    uint64_t start;
    uint64_t end;
    uint32_t device;
    uint32_t context;
    uint32_t stream;
    uint32_t correlation;
};

_Static_assert(offsetof(struct cupti_callback_data, correlation_data) == 56, "CUpti_CallbackData");
_Static_assert(offsetof(struct cupti_callback_data, correlation_id) == 64, "CUpti_CallbackData");
_Static_assert(offsetof(struct cupti_kernel, start) == 16, "CUpti_ActivityKernel");
_Static_assert(offsetof(struct cupti_kernel, device) == 40, "CUpti_ActivityKernel");
_Static_assert(offsetof(struct cupti_kernel, correlation) == 92, "CUpti_ActivityKernel");
_Static_assert(offsetof(struct cupti_kernel, name) == 104, "CUpti_ActivityKernel");
_Static_assert(offsetof(struct cupti_kernel, graph_node) == 144, "CUpti_ActivityKernel");
_Static_assert(offsetof(struct cupti_kernel, graph) == 156, "CUpti_ActivityKernel");
_Static_assert(offsetof(struct cupti_memcpy, correlation) == 44, "CUpti_ActivityMemcpy");
_Static_assert(offsetof(struct cupti_memset, correlation) == 44, "CUpti_ActivityMemset");
_Static_assert(sizeof(struct cupti_subscriber_params) == 40, "CUpti_SubscriberParams");

typedef void (*cupti_callback)(void *user, int domain, uint32_t cbid, const void *data);
typedef void (*cupti_buffer_requested)(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void (*cupti_buffer_completed)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
typedef void (*cupti_shared_requested)(uint8_t **buffer, size_t *size, size_t *max_records, void *info);
typedef void (*cupti_shared_completed)(uint8_t *buffer, size_t size, size_t valid, void *info);

/* Every CUPTI entry point that is called: name, return type, arguments. */
#define CUPTI_FUNCTIONS(F)                                                                                             \
    F(cuptiGetVersion, (uint32_t *))                                                                                   \
    F(cuptiGetTimestamp, (uint64_t *))                                                                                 \
    F(cuptiSubscribe, (cupti_subscriber *, cupti_callback, void *))                                                    \
    F(cuptiUnsubscribe, (cupti_subscriber))                                                                            \
    F(cuptiEnableCallback, (uint32_t, cupti_subscriber, int, uint32_t))                                                \
    F(cuptiActivityRegisterCallbacks, (cupti_buffer_requested, cupti_buffer_completed))                                \
    F(cuptiActivityEnable, (uint32_t))                                                                                 \
    F(cuptiActivityDisable, (uint32_t))                                                                                \
    F(cuptiActivityFlushAll, (uint32_t))                                                                               \
    F(cuptiActivityGetNextRecord, (uint8_t *, size_t, void **))                                                        \
    F(cuptiActivityGetNumDroppedRecords, (void *, uint32_t, size_t *))                                                 \
    F(cuptiFinalize, (void))

/* Entry points that older CUPTI lacks. */
#define CUPTI_OPTIONAL(F)                                                                                              \
    F(cuptiSubscribe_v2, (cupti_subscriber *, cupti_callback, void *, struct cupti_subscriber_params *))               \
    F(cuptiActivitySetAttribute, (uint32_t, size_t *, void *))                                                         \
    F(cuptiActivityFlushPeriod, (uint32_t))                                                                            \
    F(cuptiGetStreamIdEx, (void *, void *, uint8_t, uint32_t *))                                                       \
    F(cuptiGetResultString, (cupti_result, const char **))

/* Entry points by which one of several subscribers records (CUPTI 13.3). */
#define CUPTI_SHARED(F)                                                                                                \
    F(cuptiActivityRegisterCallbacks_v2, (cupti_subscriber, cupti_shared_requested, cupti_shared_completed))           \
    F(cuptiActivityEnable_v2, (cupti_subscriber, uint32_t, void *))                                                    \
    F(cuptiActivityDisable_v2, (cupti_subscriber, uint32_t, void *))                                                   \
    F(cuptiActivityGetNextRecord_v2, (cupti_subscriber, uint8_t *, size_t, void **))                                   \
    F(cuptiActivityGetNumDroppedRecords_v2, (cupti_subscriber, void *, uint32_t, size_t *))                            \
    F(cuptiActivityGetAttribute_v2, (cupti_subscriber, uint32_t, size_t *, void *))                                    \
    F(cuptiGetTimestamp_v2, (cupti_subscriber, uint64_t *))

struct cupti_api {
#define DECLARE(name, arguments) cupti_result(*name) arguments;
    CUPTI_FUNCTIONS(DECLARE)
    CUPTI_OPTIONAL(DECLARE)
    CUPTI_SHARED(DECLARE)
#undef DECLARE
};

/* Opens the CUPTI that belongs to the process's own toolkit. Returns 0, or -1 with `problem` telling what is missing; `path` says which
 * library was opened. */
int cupti_open(struct cupti_api *api, char *path, size_t path_size, char *problem, size_t problem_size);

#endif
