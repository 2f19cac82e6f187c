/* Whether the process makes, changes or destroys CUDA graphs (graphs.h). */
#define _GNU_SOURCE
#include "graphs.h"
#include "cupti_abi.h"
#include "session.h"

#ifndef CALL_NS
#define CALL_NS 600000000000ull /* none takes so long: its thread has left it otherwise */
#endif
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

#define CAPTURES 32

static int64_t inside;              /* calls that are under way; atomic */
static uintptr_t captures[CAPTURES]; /* streams that are being captured, plus one; 0: none; atomic */
static uint64_t last_ns, captured_ns; /* when one of the calls, and one that begins or ends a capture, was last heard of, 0: never; they outlast
                                       * the subscription; atomic */

static void note_time(uint64_t *when) { __atomic_store_n(when, now_ns(), __ATOMIC_SEQ_CST); }

void graphs_entered(void)
{
    __atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST);
    note_time(&last_ns);
}

static int begins_capture(uint32_t cbid)
{
    return cbid == CBID_cuStreamBeginCapture || cbid == CBID_cuStreamBeginCapture_ptsz || cbid == CBID_cuStreamBeginCapture_v2 ||
           cbid == CBID_cuStreamBeginCapture_v2_ptsz || cbid == CBID_cuStreamBeginCaptureToGraph || cbid == CBID_cuStreamBeginCaptureToGraph_ptsz;
}

static int ends_capture(uint32_t cbid) { return cbid == CBID_cuStreamEndCapture || cbid == CBID_cuStreamEndCapture_ptsz; }

int graphs_is_of_capture(uint32_t cbid) { return begins_capture(cbid) || ends_capture(cbid); }

static int replace_capture(uintptr_t from, uintptr_t to)
{
    for (int i = 0; i < CAPTURES; i++) {
        uintptr_t there = from;
        if (__atomic_compare_exchange_n(&captures[i], &there, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return 1;
    }
    return 0;
}

static int is_captured(uintptr_t stream)
{
    for (int i = 0; i < CAPTURES; i++)
        if (__atomic_load_n(&captures[i], __ATOMIC_SEQ_CST) == stream)
            return 1;
    return 0;
}

void graphs_left(uint32_t cbid, int counted, int failed, const void *stream)
{
    uintptr_t which = (uintptr_t)stream + 1;
    int begins = begins_capture(cbid) && !failed, ends = ends_capture(cbid);
    if (begins && !is_captured(which)) /* captured still: an end that was not seen */
        replace_capture(0, which); /* beyond so many at once they are known by their calls alone */
    if (ends)
        replace_capture(which, 0);
    if (begins || ends)
        note_time(&captured_ns);
    note_time(&last_ns);
    if (counted)
        __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
}

void graphs_forget(void)
{
    __atomic_store_n(&inside, 0, __ATOMIC_SEQ_CST);
    for (int i = 0; i < CAPTURES; i++)
        __atomic_store_n(&captures[i], 0, __ATOMIC_SEQ_CST);
}

static uint64_t since(uint64_t *when, uint64_t now)
{
    uint64_t then = __atomic_load_n(when, __ATOMIC_SEQ_CST);
    return then == 0 ? UINT64_MAX : now > then ? now - then : 0;
}

int graphs_are_settled(uint64_t quiet_ns)
{
    uint64_t now = now_ns(), quiet = since(&last_ns, now);
    if (__atomic_load_n(&inside, __ATOMIC_SEQ_CST) != 0 && quiet < CALL_NS)
        return 0;
    for (int i = 0; i < CAPTURES; i++)
        if (__atomic_load_n(&captures[i], __ATOMIC_SEQ_CST) != 0 && since(&captured_ns, now) < CAPTURE_NS)
            return 0;
    return quiet >= quiet_ns;
}
