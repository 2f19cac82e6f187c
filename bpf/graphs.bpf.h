// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Calls that make or destroy CUDA graphs: uprobes on functions of libcuda, for as long as a process is watched before it is
// attached to. Of each process only when the last one came, how many there were, and how many captures go on.

static __always_inline void graph_called(s64 captures) {
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    struct graph_calls *calls = graph_calls.lookup(&pid);
    if (!calls) {
        struct graph_calls none = {};
        graph_calls.update(&pid, &none);
        calls = graph_calls.lookup(&pid);
    }
    if (!calls)
        return;
    calls->last_ns = bpf_ktime_get_ns();
    __sync_fetch_and_add(&calls->count, 1);
    if (!captures)
        return;
    calls->captured_ns = calls->last_ns;
    __sync_fetch_and_add(&calls->captures, captures);
    if (calls->captures < 0)  // the end of one that was begun before there were probes
        calls->captures = 0;
}

int graph_call(struct pt_regs *ctx) {
    graph_called(0);
    return 0;
}

int graph_capture_begins(struct pt_regs *ctx) {
    graph_called(1);
    return 0;
}

int graph_capture_ends(struct pt_regs *ctx) {
    graph_called(-1);
    return 0;
}
