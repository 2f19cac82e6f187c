// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// What names the Python frames of a process that may be gone before anybody reads its memory: of each code object that
// a sample met, once, the beginning of the object itself, of its name, of its file's name and of its line table.

#define MAX_TOLD_CODES 32  // of a sample
#define CODE_BYTES 224

BPF_PERCPU_ARRAY(code_scratch, struct code_message, 1);

// Copies what is at *from + offset points to, and notes where it was.
static __always_inline void copy_part(struct code_message *message, int part, u64 pointer, void *to, u32 size) {
    message->address[part] = pointer;
    if (bpf_probe_read_user(to, size, (void *)pointer))
        message->address[part] = 0;
}

static __always_inline void tell_code(struct walk *w, struct python_layout *layout, struct code_message *message,
                                      u64 code) {
    u32 at_name = layout->co_qualname, at_file = layout->co_filename, at_lines = layout->co_linetable;
    BOUND(at_name, 255);
    BOUND(at_file, 255);
    BOUND(at_lines, 255);
    if (at_name > CODE_BYTES - 8 || at_file > CODE_BYTES - 8 || at_lines > CODE_BYTES - 8)
        return;
    message->pid = w->record.header.pid;
    message->reason = MESSAGE_CODE;
    message->start_ns = w->record.header.start_ns;
    copy_part(message, 0, code, message->code, sizeof(message->code));
    if (!message->address[0])
        return;
    copy_part(message, 1, *(u64 *)(message->code + at_name), message->name, sizeof(message->name));
    copy_part(message, 2, *(u64 *)(message->code + at_file), message->file, sizeof(message->file));
    copy_part(message, 3, *(u64 *)(message->code + at_lines), message->lines, sizeof(message->lines));
    codes.ringbuf_output(message, sizeof(*message), RINGBUF_NO_WAKEUP);  // full: the process may still be there
}

// Of the Python frames of a finished walk.
static __always_inline void tell_codes(struct walk *w) {
    int zero = 0, index = w->tables.python;
    struct python_layout *layout = python_layouts.lookup(&index);
    struct code_message *message = code_scratch.lookup(&zero);
    if (!layout || !message)
        return;
    u64 mm = kernel_word(bpf_get_current_task() + TASK_MM);
    w->found = w->n_words - 2 * (u32)w->record.header.n_python;
#pragma clang loop unroll(disable)
    for (int i = 0; i < MAX_TOLD_CODES; i++) {
        u32 at = w->found;
        if (at + 1 >= w->n_words)
            break;
        w->found = at + 2;
        BOUND(at, 1023);
        u64 word = w->record.words[at], detail = w->record.words[at + 1];
        if (layout->version >= 312 && word >> 56 == SHIM_OWNER)
            continue;
        u64 code = word & 0xffffffffffffull;
        // Told once: start addresses of mappings are even.
        if (tell_once(code | 1, w->record.header.pid, mm ^ w->record.header.start_ns ^ (detail >> 32)))
            tell_code(w, layout, message, code);
    }
}
