// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Stack samples of the CPU clock: kernel frames, native frames by .eh_frame rules, Python frames, one record each.
//
// The work is cut into programs that tail-call each other, so that each stays well within the verifier's limit:
//     cpu_clock -> native (32 frames, again and again) -> scan when no rule is known -> native ... -> python ->
// record The includes are pasted in by the loader, since bcc rewrites map operations in the main file only.
#include "layout.bpf.h"
#include "maps.bpf.h"
#include "record.bpf.h"
#include "native_walk.bpf.h"
#include "scan.bpf.h"
#include "python_walk.bpf.h"
#include "lifecycle.bpf.h"

#define PROGRAM_NATIVE 0
#define PROGRAM_SCAN 1
#define PROGRAM_PYTHON 2
#define MAX_TAIL_CALLS 32      // the kernel allows 33

#define CALLS_AT_THE_END 3     // python twice, and one to spare

// Is it worth looking for a caller by scanning the stack? Not when the walk is complete, or the stack not readable at
// all.
static __always_inline int may_scan(struct walk *w, int reason) {
    if (reason != STOP_NO_RULE && reason != STOP_NO_MAPPING && reason != STOP_UNREADABLE)
        return 0;
    return w->scans < MAX_SCANS && w->calls < MAX_TAIL_CALLS - CALLS_AT_THE_END - 2;
}

// Did the walk that followed from a guess end too soon to be right? Only an outermost frame that says so ends it
// well.
static __always_inline int guess_was_wrong(struct walk *w, int reason) {
    return w->scans && reason != STOP_ROOT && reason != STOP_TOO_DEEP &&
           w->record.header.n_user < w->guess_user + SHORT_WALK;
}

int cpu_clock(struct bpf_perf_event_data *ctx) {
    int zero = 0;
    if (!(bpf_get_current_pid_tgid() >> 32))
        return 0;  // idle
    struct walk *w = cpu_walks.lookup(&zero);
    if (!w || !walk_begin(w, FAMILY_CPU))
        return 0;
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
        if (find_tables(w)) {
            w->mapping = w->tables.first;
            w->calls++;
            cpu_programs.call(ctx, PROGRAM_NATIVE);
            count(COUNTER_TAIL_CALL_FAILED);
        } else {
            reason = STOP_NO_TABLES;
            add_user_frame(w);
            send_message_sometimes(w->record.header.pid, MESSAGE_NEW_PROCESS, 0);
        }
    }
    w->record.header.stop = reason == STEP_NEXT ? STOP_INTERNAL : reason;
    submit(w);
    return 0;
}

int cpu_native(struct bpf_perf_event_data *ctx) {
    int zero = 0;
    struct walk *w = cpu_walks.lookup(&zero);
    if (!w)
        return 0;
    int reason = walk_native(w);
    w->calls++;
    if (reason == STEP_NEXT) {
        if (w->calls < MAX_TAIL_CALLS - CALLS_AT_THE_END)
            cpu_programs.call(ctx, PROGRAM_NATIVE);
        reason = STOP_TOO_DEEP;
    }
    if (reason == STOP_NO_MAPPING)
        send_message_sometimes(w->record.header.pid, MESSAGE_UNKNOWN_MAPPING, w->pc);
    if (guess_was_wrong(w, reason)) {
        take_back_guess(w);
        reason = w->guess_reason;
        if (w->calls < MAX_TAIL_CALLS - CALLS_AT_THE_END - 2)
            cpu_programs.call(ctx, PROGRAM_SCAN);
    } else if (may_scan(w, reason)) {
        scan_begin(w, reason);
        cpu_programs.call(ctx, PROGRAM_SCAN);
    }
    w->record.header.stop = reason == STOP_NULL_RETURN ? STOP_ROOT : reason;
    if (w->tables.python)
        cpu_programs.call(ctx, PROGRAM_PYTHON);
    submit(w);
    return 0;
}

int cpu_scan(struct bpf_perf_event_data *ctx) {
    int zero = 0;
    struct walk *w = cpu_walks.lookup(&zero);
    if (!w)
        return 0;
    int found = scan_stack(w);
    w->calls++;
    if (w->calls < MAX_TAIL_CALLS - CALLS_AT_THE_END) {
        if (found == SCAN_FOUND) {
            w->record.header.flags |= FLAG_SCANNED;
            count(COUNTER_SCANNED);
            cpu_programs.call(ctx, PROGRAM_NATIVE);
        } else if (found == SCAN_MORE) {
            cpu_programs.call(ctx, PROGRAM_SCAN);
        }
    }
    count(COUNTER_SCAN_FAILED);
    w->record.header.stop = w->guess_reason;
    if (w->tables.python)
        cpu_programs.call(ctx, PROGRAM_PYTHON);
    submit(w);
    return 0;
}

int cpu_python(struct bpf_perf_event_data *ctx) {
    int zero = 0;
    struct walk *w = cpu_walks.lookup(&zero);
    if (!w)
        return 0;
    int index = w->tables.python;
    struct python_layout *layout = python_layouts.lookup(&index);
    if (layout) {
        if (!w->record.header.n_python)
            python_begin(w, layout);
        if (walk_python(w, layout))
            cpu_programs.call(ctx, PROGRAM_PYTHON);
    }
    submit(w);
    return 0;
}
