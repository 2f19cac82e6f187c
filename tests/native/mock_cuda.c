/* A libcuda.so.1 without a GPU: the driver calls that the harness and the injection library make.
 *
 * cuInit loads the library that CUDA_INJECTION64_PATH names and calls its InitializeInjection, as the driver does. Every other call goes
 * through the hooks that the mock CUPTI installed, if it did. Of the environment: MOCK_CUDA_DEVICES (2), MOCK_CUDA_INIT_MS (0): how long
 * cuInit takes after the injection, during which every call answers NOT_INITIALIZED. The primary context of device 0 is active from the
 * start, unless MOCK_CUDA_CONTEXTS gives another mask; mock_cuda_contexts sets it, and how long the question for it takes.
 */
#define _GNU_SOURCE
#include "mock_gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_HANDLE = 400 };

static const struct mock_tools *_Atomic tools;
static atomic_int initialized;
static int devices = 2;
static atomic_ullong wait_ns, contexts = 1, ask_ns, asked;

void mock_cuda_install(const struct mock_tools *new_tools) { atomic_store(&tools, new_tools); }

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static void initialize(void)
{
    devices = number("MOCK_CUDA_DEVICES", devices);
    atomic_store(&contexts, (unsigned long long)number("MOCK_CUDA_CONTEXTS", 1));
    const char *path = getenv("CUDA_INJECTION64_PATH");
    if (path && *path) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        int (*inject)(void) = NULL;
        if (library)
            *(void **)&inject = dlsym(library, "InitializeInjection");
        if (inject)
            inject();
    }
    int ms = number("MOCK_CUDA_INIT_MS", 0);
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
    atomic_store(&initialized, 1);
}

int cuInit(unsigned flags)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)flags;
    pthread_once(&once, initialize);
    return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    if (!atomic_load(&initialized))
        return NOT_INITIALIZED;
    *count = devices;
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= devices)
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

/* A UUID says in every byte which device it is and where in it the byte stands. */
int cuDeviceGetUuid_v2(uint8_t *uuid, int device)
{
    if (device < 0 || device >= devices)
        return INVALID_DEVICE;
    for (int i = 0; i < 16; i++)
        uuid[i] = (uint8_t)(16 * (device + 1) + i);
    return SUCCESS;
}

int cuDeviceGetUuid(uint8_t *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

void mock_cuda_contexts(uint64_t mask, uint64_t ns)
{
    atomic_store(&contexts, mask);
    atomic_store(&ask_ns, ns);
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    struct timespec pause = {.tv_nsec = (long)atomic_load(&ask_ns)};
    atomic_fetch_add(&asked, 1);
    if (device < 0 || device >= devices)
        return INVALID_DEVICE;
    nanosleep(&pause, NULL);
    *flags = 0;
    *active = atomic_load(&contexts) >> device & 1;
    return SUCCESS;
}

uint64_t mock_cuda_asked(void) { return atomic_load(&asked); }

void mock_cuda_wait(uint64_t ns) { atomic_store(&wait_ns, ns); }

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* As the driver waits by default: on the CPU. */
static void spin(void)
{
    uint64_t until = now_ns() + atomic_load(&wait_ns);
    while (now_ns() < until)
        ;
}

static int waits(uint32_t cbid)
{
    return cbid == CBID_STREAM_SYNCHRONIZE || cbid == CBID_MEMCPY_HTOD_V2 || cbid == CBID_EVENT_SYNCHRONIZE || cbid == CBID_CTX_SYNCHRONIZE ||
           cbid == CBID_MEM_FREE_V2;
}

static int call_with(uint32_t cbid, const char *name, const void *params, const struct mock_work *work, int count, int result)
{
    if (!atomic_load(&initialized))
        return NOT_INITIALIZED;
    const struct mock_tools *hooks = atomic_load(&tools);
    struct mock_call made = {.cbid = cbid, .name = name, .result = result, .params = params};
    if (!hooks)
        return result;
    hooks->enter(&made);
    for (int i = 0; i < count && result == SUCCESS; i++)
        hooks->work(&made, &work[i]);
    if (waits(cbid) && atomic_load(&wait_ns))
        spin();
    hooks->leave(&made);
    return result;
}

static int call(uint32_t cbid, const char *name, const struct mock_work *work, int count, int result)
{
    return call_with(cbid, name, NULL, work, count, result);
}

/* As `call`, and it takes `ns`. */
static int call_for(uint32_t cbid, const char *name, uint64_t ns)
{
    const struct mock_tools *hooks = atomic_load(&tools);
    struct mock_call made = {.cbid = cbid, .name = name, .result = SUCCESS};
    if (hooks)
        hooks->enter(&made);
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&pause, NULL);
    hooks = atomic_load(&tools);
    if (hooks)
        hooks->leave(&made);
    return SUCCESS;
}

static uint32_t stream_number(void *stream) { return stream ? (uint32_t)(uintptr_t)stream : 7; }

static int launch(uint32_t cbid, const char *name, const struct mock_function *f, void *stream)
{
    struct mock_work work = {.kind = MOCK_KERNEL, .stream = stream_number(stream)};
    if (!f)
        return call(cbid, name, NULL, 0, INVALID_VALUE);
    work.name = f->name;
    work.ns = f->ns;
    work.device = (uint32_t)f->device;
    return call(cbid, name, &work, 1, SUCCESS);
}

int cuLaunchKernel(struct mock_function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra)
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)params, (void)extra;
    return launch(CBID_LAUNCH_KERNEL, "cuLaunchKernel", f, stream);
}

int cuLaunchKernelEx(const void *config, struct mock_function *f, void **params, void **extra)
{
    (void)config, (void)params, (void)extra;
    return launch(CBID_LAUNCH_KERNEL_EX, "cuLaunchKernelEx", f, NULL);
}

int cuGraphLaunch(struct mock_graph *graph, void *stream)
{
    struct mock_work work[64];
    int nodes = graph->nodes < 64 ? graph->nodes : 64;
    for (int i = 0; i < nodes; i++)
        work[i] = (struct mock_work){
            .kind = MOCK_KERNEL,
            .name = graph->function->name,
            .ns = graph->function->ns,
            .device = (uint32_t)graph->function->device,
            .stream = stream_number(stream),
            .graph = graph->id,
            .graph_node = (uint64_t)graph->id << 32 | (uint32_t)(i + 1),
        };
    return call(CBID_GRAPH_LAUNCH, "cuGraphLaunch", work, nodes, SUCCESS);
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, uint64_t bytes)
{
    (void)to, (void)from;
    struct mock_work work = {.kind = MOCK_MEMCPY, .bytes = bytes, .ns = 100 + bytes / 16, .stream = 7};
    return call(CBID_MEMCPY_HTOD_V2, "cuMemcpyHtoD_v2", &work, 1, SUCCESS);
}

int cuMemsetD8_v2(uint64_t to, unsigned char value, uint64_t bytes)
{
    (void)to, (void)value;
    struct mock_work work = {.kind = MOCK_MEMSET, .bytes = bytes, .ns = 100 + bytes / 64, .stream = 7};
    return call(CBID_MEMSET_D8_V2, "cuMemsetD8_v2", &work, 1, SUCCESS);
}

int cuStreamSynchronize(void *stream)
{
    int known = stream != MOCK_NO_STREAM;
    return call_with(CBID_STREAM_SYNCHRONIZE, "cuStreamSynchronize", &stream, NULL, 0, known ? SUCCESS : INVALID_HANDLE);
}

int cuStreamQuery(void *stream)
{
    (void)stream;
    return call(CBID_STREAM_QUERY, "cuStreamQuery", NULL, 0, SUCCESS);
}

struct record_params { /* cuEventRecordWithFlags_params, and what the others begin with */
    void *event, *stream;
    unsigned flags;
};

/* A stream or an event that is none is refused. */
static int record(uint32_t cbid, const char *name, void *event, void *stream)
{
    struct record_params params = {.event = event, .stream = stream};
    int known = stream != MOCK_NO_STREAM && event != MOCK_NO_STREAM;
    return call_with(cbid, name, &params, NULL, 0, known ? SUCCESS : INVALID_HANDLE);
}

int cuEventRecord(void *event, void *stream) { return record(CBID_EVENT_RECORD, "cuEventRecord", event, stream); }

int cuEventRecord_ptsz(void *event, void *stream) { return record(CBID_EVENT_RECORD_PTSZ, "cuEventRecord_ptsz", event, stream); }

int cuEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
    (void)flags;
    return record(CBID_EVENT_RECORD_FLAGS, "cuEventRecordWithFlags", event, stream);
}

int cuEventRecordWithFlags_ptsz(void *event, void *stream, unsigned flags)
{
    (void)flags;
    return record(CBID_EVENT_RECORD_FLAGS_PTSZ, "cuEventRecordWithFlags_ptsz", event, stream);
}

int cuEventSynchronize(void *event)
{
    return call_with(CBID_EVENT_SYNCHRONIZE, "cuEventSynchronize", &event, NULL, 0, event != MOCK_NO_STREAM ? SUCCESS : INVALID_HANDLE);
}

int cuCtxSynchronize(void) { return call(CBID_CTX_SYNCHRONIZE, "cuCtxSynchronize", NULL, 0, SUCCESS); }

int cuMemFree_v2(uint64_t address)
{
    return call_with(CBID_MEM_FREE_V2, "cuMemFree_v2", &address, NULL, 0, SUCCESS);
}

int cuStreamBeginCapture_v2(void *stream, int mode)
{
    (void)mode;
    int known = stream != MOCK_NO_STREAM;
    return call_with(CBID_BEGIN_CAPTURE_V2, "cuStreamBeginCapture_v2", &stream, NULL, 0, known ? SUCCESS : INVALID_HANDLE);
}

int cuStreamEndCapture(void *stream, struct mock_graph **graph)
{
    (void)graph;
    return call_with(CBID_END_CAPTURE, "cuStreamEndCapture", &stream, NULL, 0, SUCCESS);
}

int cuGraphInstantiateWithFlags(struct mock_graph **ready, struct mock_graph *graph, uint64_t flags)
{
    (void)ready, (void)graph;
    return call_for(CBID_INSTANTIATE_FLAGS, "cuGraphInstantiateWithFlags", flags);
}

int cuGraphExecDestroy(struct mock_graph *ready)
{
    (void)ready;
    return call_for(CBID_EXEC_DESTROY, "cuGraphExecDestroy", 0);
}
