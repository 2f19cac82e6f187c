// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Whose waits are told: processes that user space names, and their descendants from their first instruction on.

#define IS_KERNEL_THREAD 0x00200000  // PF_KTHREAD

#define TRACK_SELF 1
#define TRACK_CHILDREN 2

static __always_inline int place_of_pid(u32 pid) { return pid & ((1 << MAY_HAVE_BITS) - 1); }

static __always_inline u32 *how_tracked(u32 pid) {
    int place = place_of_pid(pid);
    u64 *may_be = may_be_tracked.lookup(&place);
    return may_be && *may_be ? tracked.lookup(&pid) : 0;
}

static __always_inline int is_tracked(struct wait_settings *settings, u32 pid) {
    u32 *how = how_tracked(pid);
    if (how)
        return *how & TRACK_SELF;
    if (!settings->track_all || pid == settings->own_pid)
        return 0;
    u32 flags = IS_KERNEL_THREAD;
    bpf_probe_read_kernel(&flags, 4, (void *)(bpf_get_current_task() + TASK_FLAGS));
    return !(flags & IS_KERNEL_THREAD);
}

// A child is tracked as its parent is, from its first instruction on. Arguments as of on_fork.
int wait_fork(struct bpf_raw_tracepoint_args *ctx) {
    u32 parent = bpf_get_current_pid_tgid() >> 32;
    u32 *how = how_tracked(parent);
    if (!how || !(*how & TRACK_CHILDREN))
        return 0;
    u32 pid = forked_process(ctx->args[1]);
    if (!pid)
        return 0;
    u32 both = TRACK_SELF | TRACK_CHILDREN;
    int place = place_of_pid(pid);
    u64 one = 1;
    may_be_tracked.update(&place, &one);
    if (tracked.update(&pid, &both))
        count(COUNTER_TRACKED_FULL);
    return 0;
}

// Arguments as of on_exit.
int wait_exit(struct bpf_raw_tracepoint_args *ctx) {
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    if (!how_tracked(pid) || !is_last_thread(ctx->args[0]))
        return 0;
    tracked.delete(&pid);
    return 0;
}
