// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// What is known of the wait of each thread (struct wait): where it is found, how it begins, and its end, at which it is
// sent or not.

#define STARTED_BEFORE_NS 100000  // a timer starts a moment before its thread is switched out

static __always_inline int place_of_task(u64 task) {
    return (u32)(task >> 6) * 2654435761u >> (32 - MAY_HAVE_BITS);  // they are aligned to 64 bytes
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
