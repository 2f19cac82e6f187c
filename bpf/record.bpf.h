// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The record of one walk: begin, registers, words, submit; and the messages to user space.
// The loader defines the offsets in task_struct (TASK_*), read from the kernel's BTF.

#define MESSAGE_PAUSE_NS 100000000ull  // one message of a kind per process in this time
#define WALK_STALE_NS 1000000000ull    // a walk that is older was abandoned
#define RINGBUF_NO_WAKEUP 1
#define USER_CODE_64 0x33
#ifndef KERNEL_STACK_BYTES
#define KERNEL_STACK_BYTES 16384
#endif

// struct pt_regs of x86-64; the UAPI header and the kernel's own name its fields differently.
struct user_registers {
    u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

static __always_inline void send_message(u32 pid, u32 reason, u64 address) {
    struct control_message message = {};
    message.pid = pid;
    message.reason = reason;
    message.address = address;
    if (messages.ringbuf_output(&message, sizeof(message), 0))
        count(COUNTER_MESSAGES_LOST);
}

// The same, at most once in MESSAGE_PAUSE_NS.
static __always_inline void send_message_sometimes(u32 pid, u32 reason, u64 address) {
    u64 key = ((u64)reason << 32) | pid;
    u64 now = bpf_ktime_get_ns();
    u64 *last = message_times.lookup(&key);
    if (last && now - *last < MESSAGE_PAUSE_NS)
        return;
    message_times.update(&key, &now);
    send_message(pid, reason, address);
}

// The name of the current thread. From Linux 6.1 on some kernels leave what stood behind its end.
static __always_inline void name_of_thread(char *name) {
    __builtin_memset(name, 0, NAME_BYTES);
    bpf_get_current_comm(name, NAME_BYTES);
}

// Takes the scratch; 0 when another walk on this CPU holds it.
static __always_inline int walk_begin(struct walk *w, u32 family, u64 stale_ns) {
    u64 now = bpf_ktime_get_ns();
    if (w->owner_ns && now - w->owner_ns < stale_ns)
        return 0;
    w->owner_ns = now;
    struct record_header *h = &w->record.header;
    u64 id = bpf_get_current_pid_tgid();
    h->time_ns = now;
    h->pid = id >> 32;
    h->tid = (u32)id;
    h->cpu = bpf_get_smp_processor_id();
    h->n_kernel = 0;
    h->n_user = 0;
    h->n_python = 0;
    h->stop = STOP_INTERNAL;
    h->flags = 0;
    h->family = family;
    h->header_words = sizeof(struct record_header) / 8;
    h->uid = (u32)bpf_get_current_uid_gid();
    name_of_thread(h->comm);
    h->sp0 = 0;
    h->start_ns = 0;
    u64 leader = 0;
    if (!bpf_probe_read_kernel(&leader, 8, (void *)(bpf_get_current_task() + TASK_GROUP_LEADER)))
        bpf_probe_read_kernel(&h->start_ns, 8, (void *)(leader + TASK_START_BOOTTIME));
    w->n_words = 0;
    w->scans = 0;
    w->calls = 0;
    w->n_local = 0;
    w->resume = 0;
    w->guessed = 0;
    w->unmapped = ~0ull;
    w->current.start = 0;
    w->current.end = 0;
    w->python_frame = 0;
    w->python_interpreter = 0;
    w->python_state = 0;
    w->python_far = 0;
    w->leaf = 1;
    return 1;
}

static __always_inline void walk_end(struct walk *w) { w->owner_ns = 0; }

static __always_inline void add_word(struct walk *w, u64 word) {
    u32 n = w->n_words;
    BOUND(n, 1023);
    w->record.words[n] = word;
    w->n_words = n + 1;
}

#define GUESSED_FRAME (1ull << 47)  // user addresses have this bit clear

// The frame at w->pc and w->sp: program counter, and how far its stack pointer is above the previous frame's, in
// words.
static __always_inline void add_user_frame(struct walk *w) {
    u64 delta = (w->sp - w->previous_sp) >> 3;
    if (delta > 0xffff)
        delta = 0xffff;
    w->previous_sp = w->sp;
    u64 pc = w->pc & (GUESSED_FRAME - 1);
    if (w->guessed)
        pc |= GUESSED_FRAME;
    w->guessed = 0;
    add_word(w, pc | (delta << 48));
    w->record.header.n_user++;
}

static __always_inline void submit(struct walk *w) {
    u32 size = w->n_words;
    BOUND(size, 1023);
    w->record.header.extra = bpf_ktime_get_ns() - w->owner_ns;
    if (samples.ringbuf_output(&w->record, sizeof(struct record_header) + size * 8, RINGBUF_NO_WAKEUP))
        count(COUNTER_RING_FULL);
    walk_end(w);
}

static __always_inline void take_registers(struct walk *w, u64 ip, u64 sp, u64 bp, u64 r10, u64 r13) {
    w->pc = ip;
    w->sp = sp;
    w->bp = bp;
    w->r10 = r10;
    w->r13 = r13;
    w->previous_sp = sp;
    w->record.header.sp0 = sp;
}

// Where the current task's user registers were saved when it entered the kernel; 0: it is not known.
static __always_inline void *saved_registers(void) {
#if HAVE_TASK_PT_REGS
    struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
    return (void *)bpf_task_pt_regs(task);
#else  // before 5.15; they are the last thing on the task's kernel stack
    u64 stack = 0;
    bpf_probe_read_kernel(&stack, 8, (void *)(bpf_get_current_task() + TASK_STACK));
    return stack ? (void *)(stack + KERNEL_STACK_BYTES - sizeof(struct user_registers)) : 0;
#endif
}

// The user registers that the current task had when it entered the kernel. Returns STEP_NEXT or a reason to stop.
static __always_inline int registers_of_task(struct walk *w) {
    void *saved = saved_registers();
    struct user_registers r = {};
    if (!saved || bpf_probe_read_kernel(&r, sizeof(r), saved))
        return STOP_KERNEL_THREAD;
    if ((r.cs & 3) != 3)
        return STOP_KERNEL_THREAD;
    w->syscall = r.orig_ax;
    __builtin_memset(w->arguments, 0, sizeof(w->arguments));
    if (r.cs != USER_CODE_64)
        return STOP_NOT_64_BIT;
    w->arguments[0] = r.di;
    w->arguments[1] = r.si;
    w->arguments[2] = r.dx;
    w->arguments[3] = r.r10;
    take_registers(w, r.ip, r.sp, r.bp, r.r10, r.r13);
    return STEP_NEXT;
}

// Finds the process's tables; 0 when there are none, or they were withdrawn.
static __always_inline int find_tables(struct walk *w) {
    u32 pid = w->record.header.pid;
    struct process_tables *tables = processes.lookup(&pid);
    struct process_tables none = {};
    w->tables = none;
    if (!tables)
        return 0;
    w->tables = *tables;
    int first = w->tables.first;
    struct unwind_mapping *head = unwind_mappings.lookup(&first);
    if (head && head->start == w->tables.serial)
        return 1;
    w->tables = none;
    return 0;
}
