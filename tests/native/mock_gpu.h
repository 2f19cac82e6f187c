/* What the mock driver, the mock CUPTI and the harness share: how a CUDA call of the mock driver reaches the mock CUPTI. */
#ifndef MOCK_GPU_H
#define MOCK_GPU_H

#include <stdint.h>

/* Sizes of the records that the mock CUPTI hands over: CUpti_ActivityKernel13, Memcpy7, Memset5. */
enum { MOCK_KERNEL_BYTES = 248, MOCK_MEMCPY_BYTES = 112, MOCK_MEMSET_BYTES = 104 };

enum { MOCK_MEMCPY = 1, MOCK_MEMSET = 2, MOCK_KERNEL = 10 };

enum { CBID_MEMCPY_HTOD_V2 = 276, CBID_MEMSET_D8_V2 = 249, CBID_STREAM_SYNCHRONIZE = 126, CBID_STREAM_QUERY = 125 };
enum { CBID_EVENT_RECORD = 119, CBID_EVENT_RECORD_PTSZ = 441, CBID_EVENT_RECORD_FLAGS = 587, CBID_EVENT_RECORD_FLAGS_PTSZ = 588 };
enum { CBID_EVENT_SYNCHRONIZE = 121, CBID_CTX_SYNCHRONIZE = 17, CBID_MEM_FREE_V2 = 245 };
enum { CBID_BEGIN_CAPTURE_V2 = 539, CBID_END_CAPTURE = 497, CBID_INSTANTIATE_FLAGS = 643, CBID_EXEC_DESTROY = 516 };
enum { CBID_LAUNCH_KERNEL = 307, CBID_GRAPH_LAUNCH = 514, CBID_LAUNCH_KERNEL_EX = 652 };

struct mock_function { /* what a CUfunction of the mock points to */
    const char *name;
    uint64_t ns; /* how long one launch of it keeps the device busy */
    int device;
};

struct mock_graph { /* what a CUgraphExec points to */
    struct mock_function *function;
    int nodes;
    uint32_t id;
};

struct mock_call { /* one driver call, from its enter to its exit */
    uint32_t cbid;
    const char *name;
    uint32_t correlation;
    uint64_t correlation_data;
    int result;
    const void *params; /* what the call was given, as CUPTI shows it */
};

struct mock_work { /* what a call puts on the device */
    uint32_t kind;
    const char *name;
    uint64_t ns, bytes, graph_node;
    uint32_t device, stream, graph;
};

struct mock_tools { /* the hooks that CUPTI has in the driver */
    void (*enter)(struct mock_call *);
    void (*work)(struct mock_call *, const struct mock_work *);
    void (*leave)(struct mock_call *);
};

void mock_cuda_install(const struct mock_tools *tools); /* exported by the mock driver; NULL: none */

#define MOCK_NO_STREAM ((void *)~(uintptr_t)0) /* a handle of nothing */

#ifndef MOCK_LAYOUTS_ONLY /* NVIDIA's cuda.h is included too */
/* The mock driver's calls, as the harness uses them. */
int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int cuLaunchKernel(struct mock_function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra);
int cuLaunchKernelEx(const void *config, struct mock_function *f, void **params, void **extra);
int cuGraphLaunch(struct mock_graph *graph, void *stream);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, uint64_t bytes);
int cuMemsetD8_v2(uint64_t to, unsigned char value, uint64_t bytes);
int cuStreamSynchronize(void *stream);
int cuStreamQuery(void *stream);
int cuEventRecord(void *event, void *stream);
int cuEventRecord_ptsz(void *event, void *stream);
int cuEventRecordWithFlags(void *event, void *stream, unsigned flags);
int cuEventRecordWithFlags_ptsz(void *event, void *stream, unsigned flags);
int cuEventSynchronize(void *event);
int cuCtxSynchronize(void);
int cuMemFree_v2(uint64_t address);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, struct mock_graph **graph);
int cuGraphInstantiateWithFlags(struct mock_graph **ready, struct mock_graph *graph, uint64_t flags); /* flags: how many ns it takes */
int cuGraphExecDestroy(struct mock_graph *ready);
int graphs_obey(const char *line, long *answer); /* harness_graphs.c: makes and destroys graphs */
int other_obey(const char *line, long *answer); /* harness_other.c: the same of another user of CUPTI */
int mock_nvtx_obey(const char *line, long *answer); /* mock_nvtx.c: does what a line says of NVTX; 0: it says nothing of it */
void mock_cuda_wait(uint64_t ns); /* how long synchronizes, blocking copies and frees take from now on */
void mock_cuda_contexts(uint64_t mask, uint64_t ns); /* which primary contexts are active, and what each question for them takes */
uint64_t mock_cuda_asked(void); /* how many such questions there were */
#endif

#endif
