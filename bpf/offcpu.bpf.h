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

#define TASK_IS_DEAD 0x80  // in prev_state: this is a thread's last switch-out
#define IS_KERNEL_THREAD 0x00200000  // PF_KTHREAD
#define KERNEL_STACK_BYTES 16384     // THREAD_SIZE of x86-64
#define IDLE_KERNEL_FRAMES 10        // of an idle CPU: enough to tell what interrupted it

#define NO_USER_REGISTERS (-2)       // in place of a system call's number; -1: user mode was left without one

#define TRACK_SELF 1
#define TRACK_CHILDREN 2

#define STARTED_BEFORE_NS 100000  // a timer starts a moment before its thread is switched out

#define RATE_WINDOW_NS 10000000ull
#define WALKS_PER_THREAD 50  // per window; a thread that waits more often for long is sampled
#define WALKS_PER_CPU 100
#define WALKS_OF_SELDOM 50  // per CPU, too, for threads that wait at most once in a window, and for no others
#define BURST_OF_THREAD 1000  // walks above that, until they are made up for: a program starts its threads in bursts,
#define BURST_OF_CPU 2000     // and what it waits for after that is what it waits for from then on
#define LONG_AGO_WINDOWS 1000

// Which of many events to take, one in k; k depends on past events only, so that a weight of k makes sums right.
static __always_inline u32 one_in(struct switch_rate *rate, u64 now, u32 limit, u32 burst) {
    u64 age = now - rate->since_ns;
    if (age >= RATE_WINDOW_NS) {
        u64 windows = age / RATE_WINDOW_NS;
        if (windows > LONG_AGO_WINDOWS)
            windows = LONG_AGO_WINDOWS;
        u32 spent = rate->spent + rate->now, regained = windows * limit;
        spent = spent > regained ? spent - regained : 0;
        rate->spent = spent < burst ? spent : burst;
        rate->before = windows < 2 ? rate->now : 0;
        rate->now = 0;
        rate->since_ns = now;
    }
    rate->now++;
    if (rate->spent < burst && rate->now <= limit + burst - rate->spent)
        return 1;
    u32 most = rate->before > rate->now ? rate->before : rate->now;
    return most <= limit ? 1 : 1 + most / limit;
}

static __always_inline int place_of_pid(u32 pid) { return pid & ((1 << MAY_HAVE_BITS) - 1); }

static __always_inline int place_of_task(u64 task) {
    return (u32)(task >> 6) * 2654435761u >> (32 - MAY_HAVE_BITS);  // they are aligned to 64 bytes
}

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

// From now on the task may be looked for in `waits`.
static __always_inline void note_task(u64 task) {
    int place = place_of_task(task);
    u64 one = 1;
    may_wait.update(&place, &one);
}

// A wait that had begun before its process was tracked: user space has found it, by the number of the thread, and here
// it becomes one like the others. Its stack was not taken.
static __always_inline struct wait *earlier_wait(u64 task) {
    int zero = 0;
    u32 tid = 0;
    struct wait_settings *settings = wait_settings.lookup(&zero);
    if (!settings || !settings->earlier)
        return 0;
    if (bpf_probe_read_kernel(&tid, 4, (void *)(task + TASK_PID)))
        return 0;
    struct wait *found = earlier_waits.lookup(&tid);
    if (!found)
        return 0;
    found->task = task;
    begin_choice(found);  // user space left it zero, which would send the first short waits for certain
    note_task(task);
    waits.update(&task, found);
    earlier_waits.delete(&tid);
    return waits.lookup(&task);
}

static __always_inline struct wait *find_wait(u64 task) {
    int place = place_of_task(task);
    u64 *may = may_wait.lookup(&place);
    struct wait *wait = may && *may ? waits.lookup(&task) : 0;
    return wait ? wait : earlier_wait(task);
}

// The state of the current thread, made when there is none.
static __always_inline struct wait *wait_of_task(u64 task) {
    struct wait *wait = find_wait(task);
    if (wait)
        return wait;
    int zero = 0;
    struct wait *empty = new_wait.lookup(&zero);
    if (!empty)
        return 0;
    note_task(task);
    waits.update(&task, empty);
    wait = waits.lookup(&task);
    if (!wait) {
        count(COUNTER_WAIT_THREADS_FULL);
        return 0;
    }
    struct record_header *h = &wait->header;
    u64 leader = 0;
    wait->task = task;
    begin_choice(wait);
    h->pid = bpf_get_current_pid_tgid() >> 32;
    h->family = FAMILY_WAIT;
    h->header_words = sizeof(struct record_header) / 8;
    if (!bpf_probe_read_kernel(&leader, 8, (void *)(bpf_get_current_task() + TASK_GROUP_LEADER)))
        bpf_probe_read_kernel(&h->start_ns, 8, (void *)(leader + TASK_START_BOOTTIME));
    return wait;
}

static __always_inline void wait_ends(struct wait *wait, u64 now) {
    u64 out_ns = wait->header.extra;
    if (!out_ns)
        return;
    wait->header.time_ns = now;
    u64 duration_ns = now - out_ns;
    u32 times = 1;
    if (wait->weight == WEIGHT_UNWALKED && duration_ns < UNWALKED_NS)
        times = 0;
    else if (duration_ns < wait->threshold_ns)
        times = points_in(wait, duration_ns);
    if (times) {
        if (times > 1)
            wait->waker_flags |= WAIT_COUNTS_TWICE;
        if (wait->state && !wait->woken_ns) {
            count(COUNTER_WAIT_WAKES_MISSED);
            if (wait->due_ns && now + STARTED_BEFORE_NS >= wait->due_ns)
                wait->waker_flags |= WAKER_TIME_WAS_UP;
        }
        if (wait_records.ringbuf_output(wait, WAIT_RECORD_BYTES, RINGBUF_NO_WAKEUP))
            count(COUNTER_WAIT_RING_FULL);
    }
    wait->header.extra = 0;
    wait->out_ns_again = 0;
}

// The current thread runs, though its wait has not ended: its switch-in was not seen.
static __always_inline void wait_has_ended(struct wait *wait, u64 task) {
    u64 now = bpf_ktime_get_ns(), run_ns = 0;
    u64 end = wait->woken_ns > wait->header.extra ? wait->woken_ns : wait->header.extra;
    count(COUNTER_WAIT_ENDS_MISSED);
    if (!wait->run_ns || bpf_probe_read_kernel(&run_ns, 8, (void *)(task + TASK_RUN_NS)))
        run_ns = wait->run_ns;
    u64 ran = run_ns - wait->run_ns;
    if (end + ran < now)
        end = now - ran;
    wait_ends(wait, end);
}

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

// A child is tracked as its parent is, from its first instruction on. Arguments as of on_fork.
int wait_fork(struct bpf_raw_tracepoint_args *ctx) {
    u32 parent = bpf_get_current_pid_tgid() >> 32;
    u32 *how = how_tracked(parent);
    if (!how || !(*how & TRACK_CHILDREN))
        return 0;
    u64 child = ctx->args[1];
    u32 pid = 0, tid = 0;
    if (bpf_probe_read_kernel(&pid, 4, (void *)(child + TASK_TGID)))
        return 0;
    if (bpf_probe_read_kernel(&tid, 4, (void *)(child + TASK_PID)) || tid != pid)
        return 0;  // a thread
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
    if (!how_tracked(pid))
        return 0;
    u64 signal = 0;
    int live = 0;
    if (bpf_probe_read_kernel(&signal, 8, (void *)(ctx->args[0] + TASK_SIGNAL)))
        return 0;
    if (bpf_probe_read_kernel(&live, 4, (void *)(signal + SIGNAL_LIVE)) || live != 0)
        return 0;
    tracked.delete(&pid);
    return 0;
}
