// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Launches of GPU work: a uprobe on gpuprof_launch of the injection library, which calls it at the end of each launch
// with the correlation id, CLOCK_MONOTONIC at the call's enter, the attach epoch and a weight. The same walk as for
// a CPU sample; a stack whose frames went out a moment ago goes as its hash only.

#define LAUNCH_STALE_NS 10000000000ull  // longer than a thread is preempted
#define RESEND_NS 5000000000ull         // frames go again after this time, so that what was lost or changed heals
#define MAX_ENTER_AGE_NS 600000000000ull

// The walk that this thread has begun on this CPU. A program and those that it tail-calls stay on it.
static __always_inline struct walk *launch_walk(void) {
    u32 tid = (u32)bpf_get_current_pid_tgid();
#pragma unroll
    for (int i = 0; i < LAUNCH_WALKS; i++) {
        int key = i;
        struct walk *w = launch_walks.lookup(&key);
        if (w && w->owner_ns && w->record.header.tid == tid)
            return w;
    }
    count(COUNTER_LAUNCH_CONFLICT);
    return 0;
}

static __always_inline struct walk *launch_begin(void) {
#pragma unroll
    for (int i = 0; i < LAUNCH_WALKS; i++) {
        int key = i;
        struct walk *w = launch_walks.lookup(&key);
        if (w && walk_begin(w, FAMILY_LAUNCH, LAUNCH_STALE_NS))
            return w;
    }
    count(COUNTER_LAUNCH_CONFLICT);
    return 0;
}

static __always_inline u64 hash_of_words(struct walk *w) {
    struct record_header *h = &w->record.header;
    u64 hash = HASH_SEED ^ h->stop ^ ((u64)h->flags << 8) ^ ((u64)h->n_user << 16) ^ ((u64)h->n_python << 32);
#pragma clang loop unroll(disable)
    for (u32 i = 0; i < MAX_WORDS; i++) {
        if (i >= w->n_words)
            break;
        u32 n = i;
        BOUND(n, 1023);
        hash = (hash ^ w->record.words[n]) * 0xff51afd7ed558ccdull;
        hash ^= hash >> 32;
    }
    return hash;
}

int launch_probe(struct pt_regs *ctx) {
    struct walk *w = launch_begin();
    if (!w)
        return 0;
    struct user_registers *r = (struct user_registers *)ctx;
    struct record_header *h = &w->record.header;
    u64 enter_ns = r->si;
    if (enter_ns <= h->time_ns && h->time_ns - enter_ns < MAX_ENTER_AGE_NS)
        h->time_ns = enter_ns;
    h->extra = (u32)r->di | (r->dx << 32);
    w->weight = r->cx;
    int next = PROGRAM_END;
    if (r->cs == USER_CODE_64) {
        take_registers(w, r->ip, r->sp, r->bp, r->r10, r->r13);
        next = first_part(w);
    } else {
        h->stop = STOP_NOT_64_BIT;
    }
    launch_programs.call(ctx, next);
    count(COUNTER_TAIL_CALL_FAILED);
    walk_end(w);
    return 0;
}

int launch_native(struct pt_regs *ctx) {
    struct walk *w = launch_walk();
    if (!w)
        return 0;
    launch_programs.call(ctx, native_part(w));
    walk_end(w);
    return 0;
}

int launch_scan(struct pt_regs *ctx) {
    struct walk *w = launch_walk();
    if (!w)
        return 0;
    launch_programs.call(ctx, scan_part(w));
    walk_end(w);
    return 0;
}

int launch_python(struct pt_regs *ctx) {
    struct walk *w = launch_walk();
    if (!w)
        return 0;
    launch_programs.call(ctx, python_part(w));
    walk_end(w);
    return 0;
}

int launch_mapping(struct pt_regs *ctx) {
    struct walk *w = launch_walk();
    if (!w)
        return 0;
    launch_programs.call(ctx, mapping_part(w));
    walk_end(w);
    return 0;
}

int launch_end(struct pt_regs *ctx) {
    struct walk *w = launch_walk();
    if (!w)
        return 0;
    struct record_header *h = &w->record.header;
    struct seen_key key = {};
    key.hash = hash_of_words(w);
    key.pid = h->pid;
    u64 now = bpf_ktime_get_ns();
    struct seen_stack *seen = seen_stacks.lookup(&key);
    int repeated = seen && seen->start_ns == h->start_ns && now - seen->sent_ns < RESEND_NS;
    if (repeated) {
        count(COUNTER_LAUNCH_REPEATED);
        w->n_words = 0;
        h->n_user = 0;
        h->n_python = 0;
    }
    add_word(w, key.hash);
    add_word(w, w->weight);
    u32 size = w->n_words;
    BOUND(size, 1023);
    if (launches.ringbuf_output(&w->record, sizeof(struct record_header) + size * 8, RINGBUF_NO_WAKEUP)) {
        count(COUNTER_LAUNCH_RING_FULL);
    } else if (!repeated) {
        struct seen_stack sent = {h->start_ns, now};
        seen_stacks.update(&key, &sent);
    }
    walk_end(w);
    return 0;
}
