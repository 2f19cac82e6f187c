// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Stacks of CPU samples, of launches of GPU work and of waits: kernel frames, native frames by .eh_frame rules, Python
// frames, one record each. The includes are pasted in by the loader, since bcc rewrites map operations in the main file only.
#include "helpers.bpf.h"
#include "layout.bpf.h"
#include "maps.bpf.h"
#include "record.bpf.h"
#ifdef MM_TREE_ROOT
#include "kernel_mapping.bpf.h"
#endif
#include "native_walk.bpf.h"
#include "scan.bpf.h"
#include "python_walk.bpf.h"
#include "lifecycle.bpf.h"
#include "walk_parts.bpf.h"
#ifdef MM_TREE_ROOT
#include "python_names.bpf.h"
#endif
// Compiled in two parts, so that CPU stacks need not wait for the other families.
#ifndef ONLY_REQUIRED
#include "launch.bpf.h"
#include "graphs.bpf.h"
#include "time_limits.bpf.h"
#include "wait_choice.bpf.h"
#include "tracked.bpf.h"
#include "switch_rate.bpf.h"
#include "wait_state.bpf.h"
#include "wait_walk.bpf.h"
#include "offcpu.bpf.h"
#endif

#ifndef ONLY_OPTIONAL
int cpu_clock(struct bpf_perf_event_data *ctx) {
    int zero = 0;
    if (!(bpf_get_current_pid_tgid() >> 32))
        return 0;  // idle
    struct walk *w = cpu_walks.lookup(&zero);
    if (!w)
        return 0;
    if (!walk_begin(w, FAMILY_CPU, WALK_STALE_NS)) {
        count(COUNTER_CONFLICT);
        return 0;
    }
    struct user_registers *r = (struct user_registers *)ctx;
    u64 mode = r->cs & 3;
    int reason = STEP_NEXT;
    if (mode == 3) {
        if (r->cs == USER_CODE_64)
            take_registers(w, r->ip, r->sp, r->bp, r->r10, r->r13);
        else
            reason = STOP_NOT_64_BIT;
    } else {
        long bytes = bpf_get_stack(ctx, w->record.words, MAX_KERNEL_FRAMES * 8, 0);
        if (bytes > 0) {
            w->n_words = bytes >> 3;
            w->record.header.n_kernel = bytes >> 3;
        }
        reason = registers_of_task(w);
    }
    if (reason == STEP_NEXT) {
        if (first_part(w) == PROGRAM_NATIVE) {
            cpu_programs.call(ctx, PROGRAM_NATIVE);
            count(COUNTER_TAIL_CALL_FAILED);
        }
    } else {
        w->record.header.stop = reason;
    }
    submit(w);
    return 0;
}

int cpu_native(struct bpf_perf_event_data *ctx) {
    int zero = 0;
    struct walk *w = cpu_walks.lookup(&zero);
    if (!w)
        return 0;
    int next = native_part(w);
    if (next != PROGRAM_END)
        cpu_programs.call(ctx, next);
    submit(w);
    return 0;
}

int cpu_scan(struct bpf_perf_event_data *ctx) {
    int zero = 0;
    struct walk *w = cpu_walks.lookup(&zero);
    if (!w)
        return 0;
    int next = scan_part(w);
    if (next != PROGRAM_END)
        cpu_programs.call(ctx, next);
    submit(w);
    return 0;
}

int cpu_mapping(struct bpf_perf_event_data *ctx) {
    int zero = 0;
    struct walk *w = cpu_walks.lookup(&zero);
    if (!w)
        return 0;
    cpu_programs.call(ctx, mapping_part(w));
    submit(w);
    return 0;
}

int cpu_python(struct bpf_perf_event_data *ctx) {
    int zero = 0;
    struct walk *w = cpu_walks.lookup(&zero);
    if (!w)
        return 0;
    int next = python_part(w);
    if (next != PROGRAM_END || may_be_gone_soon(w))
        cpu_programs.call(ctx, next);
    submit(w);
    return 0;
}

// The end of a walk in a process that may be gone soon.
int cpu_end(struct bpf_perf_event_data *ctx) {
    int zero = 0;
    struct walk *w = cpu_walks.lookup(&zero);
    if (!w)
        return 0;
#ifdef MM_TREE_ROOT
    tell_codes(w);
#endif
    submit(w);
    return 0;
}
#endif
