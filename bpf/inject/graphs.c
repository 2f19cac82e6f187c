/* Whether the process makes, changes or destroys CUDA graphs (graphs.h). */
#define _GNU_SOURCE
#include "graphs.h"
#include "cupti_abi.h"
#include "session.h"

#ifndef CAPTURE_NS
#define CAPTURE_NS 30000000000ull /* a capture of which nothing was heard for so long ended otherwise, as with its stream */
#endif

const uint32_t graphs_ids[] = {
    CBID_cuStreamBeginCapture,        CBID_cuStreamBeginCapture_ptsz,    CBID_cuStreamEndCapture,
    CBID_cuStreamEndCapture_ptsz,     CBID_cuGraphCreate,                CBID_cuGraphAddKernelNode,
    CBID_cuGraphAddMemcpyNode,        CBID_cuGraphAddMemsetNode,         CBID_cuGraphInstantiate,
    CBID_cuGraphExecDestroy,          CBID_cuGraphDestroy,               CBID_cuGraphDestroyNode,
    CBID_cuGraphClone,                CBID_cuGraphAddChildGraphNode,     CBID_cuStreamBeginCapture_v2,
    CBID_cuStreamBeginCapture_v2_ptsz, CBID_cuGraphExecUpdate,           CBID_cuGraphInstantiate_v2,
    CBID_cuGraphInstantiateWithFlags, CBID_cuGraphInstantiateWithParams, CBID_cuGraphInstantiateWithParams_ptsz,
    CBID_cuGraphAddKernelNode_v2,     CBID_cuGraphExecUpdate_v2,         CBID_cuGraphAddNode,
    CBID_cuStreamBeginCaptureToGraph, CBID_cuStreamBeginCaptureToGraph_ptsz, CBID_cuGraphAddNode_v2,
};
const size_t graphs_count = sizeof graphs_ids / sizeof *graphs_ids;

static int64_t inside, captures; /* calls that are under way; streams that are being captured; atomic */
static uint64_t last_ns;         /* when one began or ended, 0: never; it outlasts the subscription; atomic */

static void heard(void) { __atomic_store_n(&last_ns, now_ns(), __ATOMIC_SEQ_CST); }

void graphs_entered(void)
{
    __atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST);
    heard();
}

static int begins_capture(uint32_t cbid)
{
    return cbid == CBID_cuStreamBeginCapture || cbid == CBID_cuStreamBeginCapture_ptsz || cbid == CBID_cuStreamBeginCapture_v2 ||
           cbid == CBID_cuStreamBeginCapture_v2_ptsz || cbid == CBID_cuStreamBeginCaptureToGraph || cbid == CBID_cuStreamBeginCaptureToGraph_ptsz;
}

void graphs_left(uint32_t cbid, int counted, int failed)
{
    if (begins_capture(cbid) && !failed)
        __atomic_fetch_add(&captures, 1, __ATOMIC_SEQ_CST);
    if (cbid == CBID_cuStreamEndCapture || cbid == CBID_cuStreamEndCapture_ptsz) { /* one that was begun before the subscription is not counted */
        int64_t now = __atomic_load_n(&captures, __ATOMIC_SEQ_CST);
        while (now > 0 && !__atomic_compare_exchange_n(&captures, &now, now - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            ;
    }
    heard();
    if (counted)
        __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
}

void graphs_forget(void)
{
    __atomic_store_n(&inside, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&captures, 0, __ATOMIC_SEQ_CST);
}

int graphs_are_settled(uint64_t quiet_ns)
{
    if (__atomic_load_n(&inside, __ATOMIC_SEQ_CST) != 0)
        return 0;
    uint64_t last = __atomic_load_n(&last_ns, __ATOMIC_SEQ_CST), now = now_ns(), ago = now > last ? now - last : 0;
    if (__atomic_load_n(&captures, __ATOMIC_SEQ_CST) != 0 && ago < CAPTURE_NS)
        return 0;
    return last == 0 || ago >= quiet_ns;
}
