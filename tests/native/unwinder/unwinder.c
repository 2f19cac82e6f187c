// The BPF unwinder as an ordinary library: one walk from given registers over recorded or living memory, with the
// tables that the caller has filled. The parts follow each other as their programs do in the kernel.
#include "shim.h"

#include "layout.bpf.h"
#include "maps.bpf.h"
#undef BOUND  // its assembly is that of BPF
#define BOUND(variable, mask) ((variable) &= (mask))
#include "record.bpf.h"
#include "native_walk.bpf.h"
#include "scan.bpf.h"
#include "python_walk.bpf.h"
#include "walk_parts.bpf.h"

#define EXPORT __attribute__((visibility("default")))

struct tables {
    struct unwind_mapping *mappings;
    struct unwind_page *pages;
    struct unwind_rows *rows;
    struct unwind_rule *rules;
    struct python_layout *layouts;
    u64 mapping_count, page_count, row_blocks, rule_count, layout_count;
};

struct start {
    u64 pc, sp, bp, r10, r13, fsbase;
    u32 pid, tid;
};

static u64 counter_values[64];

// Bytes of an element of each table, in the order of `struct tables`.
EXPORT void unwinder_element_bytes(u64 *out) {
    out[0] = sizeof(struct unwind_mapping);
    out[1] = sizeof(struct unwind_page);
    out[2] = sizeof(struct unwind_rows);
    out[3] = sizeof(struct unwind_rule);
    out[4] = sizeof(struct python_layout);
}

EXPORT void unwinder_set_tables(const struct tables *t) {
    unwind_mappings_elements = t->mappings;
    unwind_pages_elements = t->pages;
    unwind_rows_elements = t->rows;
    unwind_rules_elements = t->rules;
    python_layouts_elements = t->layouts;
    unwind_mappings_count = t->mapping_count;
    unwind_pages_count = t->page_count;
    unwind_rows_count = t->row_blocks;
    unwind_rules_count = t->rule_count;
    python_layouts_count = t->layout_count;
    counters_elements = counter_values;
    counters_count = sizeof counter_values / sizeof *counter_values;
    memset(counter_values, 0, sizeof counter_values);
    memset(rule_cache_elements, 0, sizeof rule_cache_elements);
    memset(thread_states_entries, 0, sizeof thread_states_entries);
    memset(message_times_entries, 0, sizeof message_times_entries);
    memset(processes_entries, 0, sizeof processes_entries);
}

// As the sampler packs it.
EXPORT void unwinder_set_packed_process(u32 pid, const struct process_tables *tables) {
    struct process_tables copy = *tables;
    processes.update(&pid, &copy);
}

EXPORT void unwinder_set_process(u32 pid, u32 first, u32 count, u32 python, u64 python_bias) {
    struct process_tables tables = {.first = first, .count = count, .python = python, .serial = 1};
    tables.python_bias = python_bias;
    processes.update(&pid, &tables);
}

EXPORT void unwinder_use_recorded(const struct region *regions, u64 count) {
    memory = regions;
    memory_count = count;
    living = 0;
}

EXPORT void unwinder_use_living(s32 pid) { living = pid; }

EXPORT u64 unwinder_counter(u32 which) { return counter_values[which % 64]; }

EXPORT u32 unwinder_reads(struct logged_read *out) {
    memcpy(out, reads, read_count * sizeof *reads);
    return read_count;
}

// Bytes of the record that the walk sends, copied to `out` (RING_BYTES of room); 0: it sent none, -1: a part went on
// for longer than the kernel's limit of tail calls.
EXPORT s64 unwinder_walk(const struct start *s, u64 *out) {
    int zero = 0;
    struct walk *w = cpu_walks.lookup(&zero);
    current_pid = s->pid;
    current_tid = s->tid;
    current_task = (struct fake_task){s->fsbase, (u64)&current_task, 1};
    read_count = 0;
    samples_size = 0;
    if (!walk_begin(w, FAMILY_CPU, WALK_STALE_NS))
        return 0;
    take_registers(w, s->pc, s->sp, s->bp, s->r10, s->r13);
    int part = first_part(w);
    for (int calls = 0; part != PROGRAM_END; calls++) {
        if (calls > 33) {
            walk_end(w);
            return -1;
        }
        part = part == PROGRAM_NATIVE    ? native_part(w)
               : part == PROGRAM_SCAN    ? scan_part(w)
               : part == PROGRAM_MAPPING ? mapping_part(w)  // there is no kernel to ask: finds nothing
                                         : python_part(w);
    }
    submit(w);
    memcpy(out, samples_last, samples_size);
    return (s64)samples_size;
}
