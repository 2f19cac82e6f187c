// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A walk is cut into programs that tail-call each other, so that each stays well within the verifier's limit:
//     native (32 frames, again and again) -> scan when no rule is known -> native ... -> python -> end
//     native -> mapping, where the published tables do not know an address -> native
// Each part returns the number of the program that goes on. Every family has these programs, by these numbers.

#define PROGRAM_NATIVE 0
#define PROGRAM_SCAN 1
#define PROGRAM_PYTHON 2
#define PROGRAM_MAPPING 3
#define PROGRAM_END 4
#define MAX_TAIL_CALLS 32      // the kernel allows 33
#define CALLS_AT_THE_END 3     // python at least twice, and the end

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

// The first program of a walk whose registers are taken. Where the kernel cannot be asked for mappings, a process
// without tables gives its innermost frame only.
static __always_inline int first_part(struct walk *w) {
    int known = find_tables(w);
#ifdef MM_TREE_ROOT
    u64 mm = kernel_word(bpf_get_current_task() + TASK_MM);
    if (!mm || !kernel_word(mm + MM_ARG_END)) {
        // In the middle of an exec or an exit: the user stack that the registers speak of is no more.
        w->record.header.stop = STOP_ROOT;
        return PROGRAM_END;
    }
    if (known && w->tables.executable_pages) {
        if (kernel_word(mm + MM_EXECUTABLE_PAGES) != w->tables.executable_pages) {
            // Code was mapped or unmapped since: what was published is not trusted until it is published again.
            u32 pid = w->record.header.pid;
            struct process_tables *tables = processes.lookup(&pid);
            if (tables)
                tables->executable_pages = ~0ull;
            w->tables.count = 0;
            w->tables.serial = 0;
            send_message_sometimes(w->record.header.pid, MESSAGE_UNKNOWN_MAPPING, 0);
        }
    }
    if (!known) {
        tell_who(w);
        send_message_sometimes(w->record.header.pid, MESSAGE_NEW_PROCESS, 0);
    }
    if (!w->tables.serial)
        w->epoch = epoch_of_code(w->record.header.pid, mm);
#else
    if (!known) {
        w->record.header.stop = STOP_NO_TABLES;
        add_user_frame(w);
        send_message_sometimes(w->record.header.pid, MESSAGE_NEW_PROCESS, 0);
        return PROGRAM_END;
    }
#endif
    w->calls++;
    return PROGRAM_NATIVE;
}

// Finds the mapping of the frame in hand; the native part goes on with that frame, found or not.
static __always_inline int mapping_part(struct walk *w) {
    u64 pc = w->pc - (w->leaf ? 0 : 1);
    w->calls++;
    w->resume = 1;
#ifdef MM_TREE_ROOT
    if (ask_kernel(w, pc))
        return PROGRAM_NATIVE;
#endif
    w->unmapped = pc;
    return PROGRAM_NATIVE;
}

#define YOUNG_NS 2000000000ull

// Is it too early to rely on reading the process's memory when its stacks are named?
static __always_inline int may_be_gone_soon(struct walk *w) {
    struct record_header *h = &w->record.header;
    return h->n_python && (h->flags & FLAG_KERNEL_MAPPING || bpf_ktime_get_boot_ns() - h->start_ns < YOUNG_NS);
}

// Is this the frame of the code that the kernel starts a program with? The dynamic loader's has no rule that says so.
// It begins at the top of the stack, below the arguments, and pushes little.
#define ENTRY_FRAME_BYTES 128
static __always_inline int is_entry_frame(struct walk *w) {
#ifdef MM_TREE_ROOT
    u64 top = kernel_word(kernel_word(bpf_get_current_task() + TASK_MM) + MM_START_STACK);
    return w->sp <= top && top - w->sp <= ENTRY_FRAME_BYTES;
#else
    return 0;
#endif
}

static __always_inline int native_part(struct walk *w) {
    int reason = walk_native(w);
    w->calls++;
    if (reason == STEP_NEXT) {
        if (w->calls < MAX_TAIL_CALLS - CALLS_AT_THE_END)
            return PROGRAM_NATIVE;
        reason = STOP_TOO_DEEP;
    }
    if (reason == STEP_ASK_KERNEL) {
        if (w->calls < MAX_TAIL_CALLS - CALLS_AT_THE_END - 2)
            return PROGRAM_MAPPING;
        reason = STOP_NO_MAPPING;
    }
    if (reason == STOP_NO_RULE && is_entry_frame(w))
        reason = STOP_ROOT;
    if (reason == STOP_NO_MAPPING || reason == STOP_NO_PROGRESS)
        send_message_sometimes(w->record.header.pid, MESSAGE_UNKNOWN_MAPPING, w->pc);
    if (guess_was_wrong(w, reason)) {
        take_back_guess(w);
        w->record.header.stop = w->guess_reason;
        return w->calls < MAX_TAIL_CALLS - CALLS_AT_THE_END - 2 ? PROGRAM_SCAN : after_native(w);
    }
    w->record.header.stop = reason == STOP_NULL_RETURN ? STOP_ROOT : reason;
    if (may_scan(w, reason)) {
        if (w->tables.serial)  // perhaps another file was mapped here since
            send_message_sometimes(w->record.header.pid, MESSAGE_UNKNOWN_MAPPING, w->pc);
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
    w->calls++;
    if (!layout)
        return PROGRAM_END;
    if (!w->python_frame)
        python_begin(w, layout);
    int more = walk_python(w, layout) || w->python_interpreter || w->python_far;
    return more && w->calls < MAX_TAIL_CALLS ? PROGRAM_PYTHON : PROGRAM_END;
}
