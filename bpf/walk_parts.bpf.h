// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A walk is cut into programs that tail-call each other, so that each stays well within the verifier's limit:
//     native (32 frames, again and again) -> scan when no rule is known -> native ... -> python -> end
// Each part returns the number of the program that goes on. Every family has these programs, by these numbers.

#define PROGRAM_NATIVE 0
#define PROGRAM_SCAN 1
#define PROGRAM_PYTHON 2
#define PROGRAM_END 3
#define MAX_TAIL_CALLS 32      // the kernel allows 33
#define CALLS_AT_THE_END 3     // python twice, and the end

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

static __always_inline int after_native(struct walk *w) { return w->tables.python ? PROGRAM_PYTHON : PROGRAM_END; }

// The first program of a walk whose registers are taken; a process without tables gives its innermost frame only.
static __always_inline int first_part(struct walk *w) {
    if (find_tables(w)) {
        w->mapping = w->tables.first;
        w->calls++;
        return PROGRAM_NATIVE;
    }
    w->record.header.stop = STOP_NO_TABLES;
    add_user_frame(w);
    send_message_sometimes(w->record.header.pid, MESSAGE_NEW_PROCESS, 0);
    return PROGRAM_END;
}

static __always_inline int native_part(struct walk *w) {
    int reason = walk_native(w);
    w->calls++;
    if (reason == STEP_NEXT) {
        if (w->calls < MAX_TAIL_CALLS - CALLS_AT_THE_END)
            return PROGRAM_NATIVE;
        reason = STOP_TOO_DEEP;
    }
    if (reason == STOP_NO_MAPPING)
        send_message_sometimes(w->record.header.pid, MESSAGE_UNKNOWN_MAPPING, w->pc);
    if (guess_was_wrong(w, reason)) {
        take_back_guess(w);
        w->record.header.stop = w->guess_reason;
        return w->calls < MAX_TAIL_CALLS - CALLS_AT_THE_END - 2 ? PROGRAM_SCAN : after_native(w);
    }
    w->record.header.stop = reason == STOP_NULL_RETURN ? STOP_ROOT : reason;
    if (may_scan(w, reason)) {
        scan_begin(w, reason);
        return PROGRAM_SCAN;
    }
    return after_native(w);
}

static __always_inline int scan_part(struct walk *w) {
    int found = scan_stack(w);
    w->calls++;
    if (w->calls < MAX_TAIL_CALLS - CALLS_AT_THE_END) {
        if (found == SCAN_FOUND) {
            w->record.header.flags |= FLAG_SCANNED;
            count(COUNTER_SCANNED);
            return PROGRAM_NATIVE;
        }
        if (found == SCAN_MORE)
            return PROGRAM_SCAN;
    }
    count(COUNTER_SCAN_FAILED);
    w->record.header.stop = w->guess_reason;
    return after_native(w);
}

static __always_inline int python_part(struct walk *w) {
    int index = w->tables.python;
    struct python_layout *layout = python_layouts.lookup(&index);
    if (!layout)
        return PROGRAM_END;
    if (!w->record.header.n_python)
        python_begin(w, layout);
    return walk_python(w, layout) ? PROGRAM_PYTHON : PROGRAM_END;
}
