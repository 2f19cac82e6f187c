// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Stacks of waits: of a thread that is switched out, and of a waker. The walk's parts are programs of this family, and a
// stack is sent where it was not seen for a few seconds; the wait gets its hash.

#define IDLE_KERNEL_FRAMES 10   // of an idle CPU: enough to tell what interrupted it
#define NO_USER_REGISTERS (-2)  // in place of a system call's number; -1: user mode was left without one

// The user registers of the current task; STEP_NEXT or why there are none.
static __always_inline int wait_registers(struct walk *w) {
    w->syscall = NO_USER_REGISTERS;
    return w->record.header.pid ? registers_of_task(w) : STOP_KERNEL_THREAD;
}

// The number of the system call that the current task is in, alone: a switch-out whose stack is not taken needs no more.
static __always_inline s32 syscall_of_task(void) {
    struct {
        u64 orig_ax, ip, cs;
    } r = {};
    void *saved = saved_registers();
    if (!saved || bpf_probe_read_kernel(&r, sizeof(r), saved + __builtin_offsetof(struct user_registers, orig_ax)))
        return NO_USER_REGISTERS;
    return (r.cs & 3) == 3 ? (s32)r.orig_ax : NO_USER_REGISTERS;
}

// The kernel frames of the current task, whose user registers are there for `reason`; the walk goes on in the program
// that is returned.
static __always_inline int wait_walk_part(void *ctx, struct walk *w, int reason) {
    long bytes = 0;
    if (w->record.header.pid)
        bytes = bpf_get_stack(ctx, w->record.words, MAX_KERNEL_FRAMES * 8, 0);
    else
        bytes = bpf_get_stack(ctx, w->record.words, IDLE_KERNEL_FRAMES * 8, 0);
    if (bytes > 0) {
        w->n_words = bytes >> 3;
        w->record.header.n_kernel = bytes >> 3;
    }
    if (reason == STEP_NEXT) {
        if (!w->waiter || w->syscall >= 0)
            return first_part(w);
        reason = STOP_KERNEL_THREAD;  // most likely an interrupt: what it hit has nothing to do with the wake
    }
    w->record.header.stop = reason;
    return PROGRAM_END;
}

int wait_native(struct bpf_raw_tracepoint_args *ctx) {
    int zero = 0;
    struct walk *w = wait_walks.lookup(&zero);
    if (!w)
        return 0;
    wait_programs.call(ctx, native_part(w));
    walk_end(w);
    return 0;
}

int wait_scan(struct bpf_raw_tracepoint_args *ctx) {
    int zero = 0;
    struct walk *w = wait_walks.lookup(&zero);
    if (!w)
        return 0;
    wait_programs.call(ctx, scan_part(w));
    walk_end(w);
    return 0;
}

int wait_python(struct bpf_raw_tracepoint_args *ctx) {
    int zero = 0;
    struct walk *w = wait_walks.lookup(&zero);
    if (!w)
        return 0;
    wait_programs.call(ctx, python_part(w));
    walk_end(w);
    return 0;
}

int wait_mapping(struct bpf_raw_tracepoint_args *ctx) {
    int zero = 0;
    struct walk *w = wait_walks.lookup(&zero);
    if (!w)
        return 0;
    wait_programs.call(ctx, mapping_part(w));
    walk_end(w);
    return 0;
}

int wait_end(struct bpf_raw_tracepoint_args *ctx) {
    int zero = 0;
    struct walk *w = wait_walks.lookup(&zero);
    if (!w)
        return 0;
    struct record_header *h = &w->record.header;
    struct seen_key key = {};
    key.hash = hash_of_words(w) ^ h->n_kernel;
    key.pid = h->pid;
    u64 now = bpf_ktime_get_ns();
    struct seen_stack *seen = seen_waits.lookup(&key);
    if (!seen || seen->start_ns != h->start_ns || now - seen->sent_ns >= RESEND_NS) {
        u32 size = w->n_words;
        BOUND(size, 1023);
        h->extra = key.hash;
#ifdef MM_TREE_ROOT
        if (may_be_gone_soon(w))
            tell_codes(w);
#endif
        if (wait_records.ringbuf_output(&w->record, sizeof(struct record_header) + size * 8, RINGBUF_NO_WAKEUP)) {
            count(COUNTER_WAIT_RING_FULL);
        } else {
            struct seen_stack sent = {h->start_ns, now};
            seen_waits.update(&key, &sent);
        }
    }
    u64 task = w->waiter ? w->waiter : bpf_get_current_task();
    struct wait *wait = waits.lookup(&task);
    if (wait) {
        if (w->waiter)
            wait->waker_stack = key.hash;
        else
            wait->stack = key.hash;
    }
    walk_end(w);
    return 0;
}
