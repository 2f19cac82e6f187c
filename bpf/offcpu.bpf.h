// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Waits: why a thread of a tracked process was not on a CPU, and who made it ready again. At the switch-out, where the
// thread is still current, its stack is taken; at the wake, the waker's; at the switch-in the wait is sent, or not.
//
// A wait of at least `threshold_ns` is always sent, a shorter one with probability duration / threshold
// (wait_choice.bpf.h), and user space gives it the reciprocal as weight.
// Frames go out when a stack was not seen for a few seconds; waits carry hashes of stacks.
//
// Where threads are switched out very often for long, only one switch-out in `weight` has its stack taken. How long its
// wait will be is not known then, so those whose stack is not taken are followed, too, and sent if they turn out to be
// long (UNWALKED_NS). Time that long waits took is never a matter of chance; only what the thread did there can be.
//
// On some virtual machines no BPF program runs while a thread of the system's own supervision is current: an interrupt
// that wakes a thread may hit such a one, and a switch may come from it. A wake that was not seen is told by the time
// limit of the system call, where there is one; a switch-in that was not seen at the next switch-out, by the CPU time
// that the thread used since.
//
// All this runs with interrupts off and a lock of the scheduler held: user memory that is not there is not waited for,
// and the two entries never meet on one CPU, so that they share their scratch.
//
// Here are the two entries. Whose waits: tracked.bpf.h; which stacks: switch_rate.bpf.h, and how: wait_walk.bpf.h; the
// state of a wait, and what is sent of it: wait_state.bpf.h.

#define TASK_IS_DEAD 0x80         // in prev_state: this is a thread's last switch-out
#define KERNEL_STACK_BYTES 16384  // THREAD_SIZE of x86-64

// sched_switch(bool preempt, struct task_struct *prev, struct task_struct *next[, unsigned int prev_state])
int wait_switch(struct bpf_raw_tracepoint_args *ctx) {
    int zero = 0;
    u64 previous = ctx->args[1], next = ctx->args[2];
    u64 now = 0;
    struct wait *ended = find_wait(next);
    if (ended && ended->header.extra) {
        now = bpf_ktime_get_ns();
        wait_ends(ended, now);
    }
    u64 id = bpf_get_current_pid_tgid();
    u32 state = 0;
#ifdef SWITCH_HAS_STATE
    state = ctx->args[3];
#else
    bpf_probe_read_kernel(&state, 4, (void *)(previous + TASK_STATE));
#endif
    if (state & TASK_IS_DEAD) {
        struct wait *last = find_wait(previous);
        if (last) {
            if (last->header.extra)  // its switch-in was not seen, and this is its last switch-out
                wait_has_ended(last, previous);
            waits.delete(&previous);
        }
    }
    struct wait_settings *settings = wait_settings.lookup(&zero);
    if (!(id >> 32) || state & TASK_IS_DEAD || !settings || !is_tracked(settings, id >> 32))
        return 0;
    struct wait *wait = wait_of_task(previous);
    struct walk *w = wait_walks.lookup(&zero);
    if (!wait || !w)
        return 0;
    if (wait->header.extra)
        wait_has_ended(wait, previous);
    if (!now)
        now = bpf_ktime_get_ns();
    u32 weight = one_in(&wait->rate, now, WALKS_PER_THREAD, BURST_OF_THREAD);
    int seldom = wait->rate.now <= 1 && wait->rate.before <= 1;
    struct switch_rate *rate = wait_rates.lookup(&seldom);
    if (!rate)
        return 0;
    u32 of_cpu = one_in(rate, now, seldom ? WALKS_OF_SELDOM : WALKS_PER_CPU, BURST_OF_CPU);
    if (of_cpu > weight)
        weight = of_cpu;
    int unwalked = weight > 1 && ((u64)bpf_get_prandom_u32() * weight) >> 32;
    struct record_header *h = &wait->header;
    wait->woken_ns = 0;
    wait->stack = 0;
    wait->waker_stack = 0;
    wait->waker = 0;
    wait->waker_flags = 0;
    __builtin_memset(wait->waker_comm, 0, sizeof(wait->waker_comm));
    wait->state = ctx->args[0] & 1 ? 0 : state;
    wait->weight = unwalked ? WEIGHT_UNWALKED : weight;
    if (wait->epoch != settings->epoch) {
        u32 pid = id >> 32;
        wait->epoch = settings->epoch;  // before what it is of: a change meanwhile is seen the next time
        asm volatile("" ::: "memory");
        u64 *threshold_ns = wait_thresholds.lookup(&pid);
        wait->threshold_ns = threshold_ns ? *threshold_ns : settings->threshold_ns;
    }
    wait->bar_ns = bar_of_choice(wait);
    if (unwalked && wait->bar_ns < UNWALKED_NS)
        wait->bar_ns = UNWALKED_NS;
    wait->due_ns = 0;
    wait->run_ns = 0;
    bpf_probe_read_kernel(&wait->run_ns, 8, (void *)(previous + TASK_RUN_NS));
    h->tid = (u32)id;  // an exec by another thread than the first changes it
    h->cpu = bpf_get_smp_processor_id();
    if (!unwalked || !h->comm[0]) {
        h->uid = (u32)bpf_get_current_uid_gid();
        name_of_thread(h->comm);
    }
    // From here on the wait can be ended and its wake, which may come at once on another CPU, be noted.
    asm volatile("" ::: "memory");
    h->extra = now;
    wait->out_ns_again = now;
    if (unwalked) {
        w->syscall = syscall_of_task();
        wait->syscall = w->syscall;
        // A long sleep is walked nevertheless: a thread cannot have many of them.
        if (is_sleep(w))
            registers_of_task(w);
        if (!is_sleep(w) || due_of_syscall(w, now) < now + UNWALKED_NS) {
            count(COUNTER_WAIT_NOT_CHOSEN);
            return 0;
        }
    }
    if (!walk_begin(w, FAMILY_WAIT_STACK, WALK_STALE_NS)) {
        count(COUNTER_WAIT_CONFLICT);
        return 0;
    }
    h->start_ns = w->record.header.start_ns;  // of an earlier wait it is known to the tick only
    w->waiter = 0;
    int reason = wait_registers(w);
    wait->syscall = w->syscall;
    if (wait->state)
        wait->due_ns = due_of_syscall(w, now);
    int next_program = wait_walk_part(ctx, w, reason);
    wait_programs.call(ctx, next_program);
    count(COUNTER_TAIL_CALL_FAILED);
    walk_end(w);
    return 0;
}

// sched_waking(struct task_struct *task), in the context of the waker, before the task can run
int wait_waking(struct bpf_raw_tracepoint_args *ctx) {
    int zero = 0;
    u64 task = ctx->args[0];
    struct wait *wait = find_wait(task);
    if (!wait || !wait->header.extra || wait->woken_ns)
        return 0;
    u64 now = bpf_ktime_get_ns();
    wait->woken_ns = now;
    if (now - wait->header.extra < wait->bar_ns)
        return 0;
    struct walk *w = wait_walks.lookup(&zero);
    if (!w || !walk_begin(w, FAMILY_WAIT_STACK, WALK_STALE_NS)) {
        count(COUNTER_WAIT_CONFLICT);
        return 0;
    }
    u64 id = bpf_get_current_pid_tgid();
    u64 stack = 0;
    wait->waker = id;
    name_of_thread(wait->waker_comm);
    wait->waker_start_ns = w->record.header.start_ns;
    // The arguments lie on the stack that the kernel runs on: an interrupt has one of its own.
    w->scan_sp = (u64)ctx;
    bpf_probe_read_kernel(&stack, 8, (void *)(bpf_get_current_task() + TASK_STACK));
    wait->waker_flags = w->scan_sp - stack < KERNEL_STACK_BYTES ? 0 : WAKER_ON_INTERRUPT_STACK;
    w->waiter = task;
    int next_program = wait_walk_part(ctx, w, wait_registers(w));
    if (w->syscall == -1)
        wait->waker_flags |= WAKER_NOT_IN_SYSCALL;
    wait_programs.call(ctx, next_program);
    count(COUNTER_TAIL_CALL_FAILED);
    walk_end(w);
    return 0;
}
