// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Processes come and go: raw tracepoints that keep `processes` true without waiting for user space.
// A fork inherits its parent's tables, an exec and an exit drop them. Messages go out only for processes that were
// seen.

static __always_inline void forget_process(u32 pid, u32 reason) {
    u64 asked = ((u64)MESSAGE_NEW_PROCESS << 32) | pid;
    int had_tables = processes.delete(&pid) == 0;
    int was_asked_for = message_times.delete(&asked) == 0;
    if (had_tables || was_asked_for)
        send_message(pid, reason, bpf_ktime_get_ns());
}

// The process that a fork makes; 0 where that is a thread, or cannot be told.
static __always_inline u32 forked_process(u64 child) {
    u32 pid = 0, tid = 0;
    if (bpf_probe_read_kernel(&pid, 4, (void *)(child + TASK_TGID)))
        return 0;
    if (bpf_probe_read_kernel(&tid, 4, (void *)(child + TASK_PID)) || tid != pid)
        return 0;
    return pid;
}

// Whether a thread that exits is the last of its process.
static __always_inline int is_last_thread(u64 task) {
    u64 signal = 0;
    int live = 0;
    if (bpf_probe_read_kernel(&signal, 8, (void *)(task + TASK_SIGNAL)))
        return 0;
    return !bpf_probe_read_kernel(&live, 4, (void *)(signal + SIGNAL_LIVE)) && live == 0;
}

// sched_process_fork(struct task_struct *parent, struct task_struct *child)
int on_fork(struct bpf_raw_tracepoint_args *ctx) {
    u32 pid = forked_process(ctx->args[1]);
    if (!pid)
        return 0;
    u32 parent = bpf_get_current_pid_tgid() >> 32;
    struct process_tables *tables = processes.lookup(&parent);
    if (!tables)
        return 0;
    struct process_tables copy = *tables;
    processes.update(&pid, &copy);
    send_message(pid, MESSAGE_FORK, parent);
    return 0;
}

// sched_process_exec(struct task_struct *task, pid_t old_pid, struct linux_binprm *binary)
int on_exec(struct bpf_raw_tracepoint_args *ctx) {
    struct told_key who = {};
    who.pid = bpf_get_current_pid_tgid() >> 32;
    told.delete(&who);
    forget_process(who.pid, MESSAGE_EXEC);
#ifdef MM_TREE_ROOT
    // A program that was never seen is asked for now, so that its tables may be there at its first sample.
    struct binary_key key = {};
    u64 file = kernel_word(kernel_word(bpf_get_current_task() + TASK_MM) + MM_EXE_FILE);
    if (file) {
        identify_file(file, &key);
        if (!unwind_binaries.lookup(&key))
            send_message(who.pid, MESSAGE_NEW_BINARY, 0);
    }
#endif
    return 0;
}

// sched_process_exit(struct task_struct *task): once per thread, after signal->live was counted down
int on_exit(struct bpf_raw_tracepoint_args *ctx) {
    if (!is_last_thread(ctx->args[0]))
        return 0;
    forget_process(bpf_get_current_pid_tgid() >> 32, MESSAGE_EXIT);
    return 0;
}
