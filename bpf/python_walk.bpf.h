// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The chain of CPython frames of the current thread. User space supplies the offsets of its version (python_layout).

#define FRAME_BYTES 112  // of a frame object, what all versions need
#define MAX_THREAD_STATES 64  // with their interpreters: what one walk looks at, whatever there is
#define SHIM_OWNER 3  // 3.12+: a frame that the C eval loop keeps on its own stack to mark an entry
#define CFRAME_WITHIN 4096u  // 3.11, 3.12: the C frame of a thread that runs no Python is a part of its state, others
                             // lie on its stack, and name no frame in the first instructions of the eval loop
#define TAG_BITS 7ull  // 3.14+: low bits of a _PyStackRef

// Is this still a thread state of the thread? One that was freed is not linked any more: the state before it, or its
// interpreter, points elsewhere. `prev`, `next` and `interp` follow each other in all versions.
static __always_inline int is_current_state(struct python_layout *layout, u64 state, u64 thread_pointer) {
    u64 id = 0, linked = 0, links[3] = {};
    if (bpf_probe_read_user(&id, 8, (void *)(state + layout->ts_tid)) || id != thread_pointer)
        return 0;
    if (bpf_probe_read_user(links, sizeof(links), (void *)(state + layout->ts_next - 8)))
        return 0;
    u64 from = links[0] ? links[0] + layout->ts_next : links[2] + layout->threads_head;
    return !bpf_probe_read_user(&linked, 8, (void *)from) && linked == state;
}

// PyThreadState.thread_id is pthread_self(), which on x86-64 is the thread pointer. New states are pushed at the head of
// their interpreter's list, new interpreters at the head of theirs. Looks from w->python_interpreter on, and leaves
// there the interpreter behind the one in which it found the state. Sets w->python_far where it gives up.
static __always_inline u64 find_thread_state(struct walk *w, struct python_layout *layout, u64 thread_pointer) {
    u64 state = 0, id = 0, next = 0;
    count(COUNTER_PYTHON_WALKED_THREADS);
#pragma clang loop unroll(disable)
    for (int i = 0; i < MAX_THREAD_STATES; i++) {
        if (!next) {
            u64 interpreter = w->python_interpreter;
            if (!interpreter)
                return 0;
            w->python_interpreter = 0;
            if (bpf_probe_read_user(&next, 8, (void *)(interpreter + layout->threads_head)) ||
                bpf_probe_read_user(&w->python_interpreter, 8, (void *)(interpreter + layout->interp_next)))
                break;
            continue;
        }
        state = next;
        id = 0;
        if (bpf_probe_read_user(&id, 8, (void *)(state + layout->ts_tid)))
            break;
        if (id == thread_pointer)
            return state;
        if (bpf_probe_read_user(&next, 8, (void *)(state + layout->ts_next)))
            break;
    }
    w->python_interpreter = 0;
    w->python_far = 1;
    return 0;
}

// The thread's next state of those that are known; 0 when there is none. What is behind it may still come.
static __always_inline u64 next_known_state(struct walk *w, struct python_layout *layout, struct known_states *known,
                                            u64 thread_pointer) {
    u64 before = w->python_state;
    u32 from = 0;
#pragma unroll
    for (u32 n = 0; n < STATES_OF_THREAD; n++) {
        if (before && known->state[n] == before)
            from = n + 1;
    }
    int stale = !from;  // not known to be all there are
#pragma clang loop unroll(disable)
    for (u32 n = 0; n < STATES_OF_THREAD; n++) {
        if (n < from)
            continue;
        u64 state = known->state[n];
        if (!state)
            break;
        if (is_current_state(layout, state, thread_pointer))
            return state;
        stale = 1;
    }
    w->python_far = 0;
    if (stale)
        w->record.header.flags |= FLAG_PYTHON_NOT_FOUND;
    return 0;
}

// Finds the thread's newest frame, in the newest interpreter in which it has a state; when that chain has ended, called
// again, in the next one: a subinterpreter's code runs inside a call of the interpreter that made it. 0 is left in
// w->python_frame when there is none.
static __always_inline void python_begin(struct walk *w, struct python_layout *layout) {
    struct thread_key key = {};
    u64 state = 0, older = 0;
    key.pid = w->record.header.pid;
    if (bpf_probe_read_kernel(&key.thread_pointer, 8, (void *)(bpf_get_current_task() + TASK_FSBASE)))
        return;
    int first = !w->python_interpreter && !w->python_far;
    struct known_states *known = thread_states.lookup(&key);
    if (first) {
        if (bpf_probe_read_user(&w->python_interpreter, 8, (void *)(layout->interpreters + w->tables.python_bias))) {
            w->record.header.flags |= FLAG_PYTHON_NOT_FOUND;
            return;
        }
        if (w->python_interpreter)
            bpf_probe_read_user(&older, 8, (void *)(w->python_interpreter + layout->interp_next));
        if (known && !older && is_current_state(layout, known->state[0], key.thread_pointer)) {
            state = known->state[0];
            w->python_interpreter = 0;
        }
    }
    if (!state && w->python_interpreter) {
        state = find_thread_state(w, layout, key.thread_pointer);
        if (state && first && !older) {
            struct known_states found = {};
            found.state[0] = state;
            thread_states.update(&key, &found);
        }
    }
    if (!state && w->python_far) {
        send_message_sometimes(key.pid, MESSAGE_THREAD_STATES, 0);
        if (known) {
            state = next_known_state(w, layout, known, key.thread_pointer);
        } else {
            w->python_far = 0;
            w->record.header.flags |= FLAG_PYTHON_NOT_FOUND;
        }
    }
    if (!state) {
        if (!w->record.header.n_python && !(w->record.header.flags & FLAG_PYTHON_NOT_FOUND))
            w->record.header.flags |= FLAG_NO_THREAD_STATE;
        return;
    }
    w->python_state = state;
    u64 frame = 0;
    if (bpf_probe_read_user(&frame, 8, (void *)(state + layout->ts_frame))) {
        w->record.header.flags |= FLAG_PYTHON_TRUNCATED | FLAG_PYTHON_NOT_FOUND;
        return;
    }
    if (layout->has_cframe) {
        u64 outermost = frame - state < CFRAME_WITHIN;
        if (bpf_probe_read_user(&frame, 8, (void *)(frame + layout->cf_cur)) || (!frame && !outermost)) {
            w->record.header.flags |= FLAG_PYTHON_TRUNCATED | FLAG_PYTHON_NOT_FOUND;
            return;
        }
    }
    w->python_frame = frame;
}

// The frame at w->python_frame: two words, and on to the previous one. 0 when it cannot be read.
static __always_inline int add_python_frame(struct walk *w, struct python_layout *layout) {
    u64 frame = w->python_frame;
    u8 *bytes = (u8 *)w->python;
    if (bpf_probe_read_user(bytes, FRAME_BYTES, (void *)frame))
        return 0;
    u32 at_code = layout->f_code, at_previous = layout->f_prev, at_instruction = layout->f_instr;
    u32 at_owner = layout->f_owner;
    BOUND(at_code, 127);
    BOUND(at_previous, 127);
    BOUND(at_instruction, 127);
    BOUND(at_owner, 127);
    u64 code = *(u64 *)(bytes + at_code) & ~TAG_BITS;
    u64 instruction = *(u64 *)(bytes + at_instruction);
    u64 owner = at_owner ? bytes[at_owner] : 0;
    u32 first_line = 0;
    bpf_probe_read_user(&first_line, 4, (void *)(code + layout->co_firstlineno));
    u32 offset = (u32)instruction;  // up to 3.10 f_lasti itself
    if (layout->version >= 311)
        offset = (u32)((s64)(instruction - code - layout->co_bytecode) >> 1);
    if (layout->version >= 312 && owner == SHIM_OWNER)
        code = frame;  // its place on the C stack tells which native frame it belongs to
    add_word(w, (code & 0xffffffffffffull) | (owner << 56));
    add_word(w, offset | ((u64)(first_line & 0xffffff) << 32));
    w->record.header.n_python++;
    w->python_frame = *(u64 *)(bytes + at_previous);
    // From 3.12 on the outermost frame is a shim; a generator that is being left is unlinked an instruction too early.
    if (layout->version >= 312 && owner != SHIM_OWNER && !w->python_frame)
        w->record.header.flags |= FLAG_PYTHON_TRUNCATED;
    return 1;
}

// Up to PYTHON_FRAMES_PER_PROGRAM frames; nonzero when there are more.
static __always_inline int walk_python(struct walk *w, struct python_layout *layout) {
#pragma clang loop unroll(disable)
    for (int i = 0; i < PYTHON_FRAMES_PER_PROGRAM; i++) {
        if (!w->python_frame)
            return 0;
        if (w->record.header.n_python >= MAX_PYTHON_FRAMES || !add_python_frame(w, layout)) {
            w->record.header.flags |= FLAG_PYTHON_TRUNCATED;
            return 0;
        }
    }
    return w->python_frame != 0;
}
