// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// BPF maps and the scratch of one walk. The loader defines their sizes: MAPPINGS, PAGES, ROW_BLOCKS, RULES,
// PYTHON_LAYOUTS, SAMPLE_RING_PAGES, LAUNCH_RING_PAGES.

#define BPF_F_MMAPABLE_FLAG 1024
#define RULE_CACHE 2048

// Bounds a value for the verifier; plain `&` is dropped by LLVM when it believes to know better.
#define BOUND(variable, mask) asm volatile("%0 &= " #mask : "+r"(variable))

struct record {
    struct record_header header;
    u64 words[MAX_WORDS + 2];
};

// One walk in progress. Registers and search bounds live here, not in BPF registers, so that the verifier's states of
// different loop turns converge.
struct walk {
    u64 owner_ns;  // when the walk began; 0: free
    u64 pc;
    u64 sp;
    u64 bp;
    u64 r10;  // leaf only, as r13: bases of the CFA in a few functions that realign their stack
    u64 r13;
    u64 previous_sp;
    u64 scan_sp;      // where the scan began
    u64 scan_bp;      // the frame pointer there
    u64 scan_offset;  // bytes above scan_sp that were looked at
    u64 scan_second;  // scan_offset of the first second-best candidate; SCAN_WINDOW: none
    u64 scan_pc;      // the address whose caller is looked for
    u64 python_frame;
    u32 leaf;  // pc is exact, not a return address
    u32 low;
    u32 high;
    u32 mapping;  // where the last pc was found
    u32 n_words;
    u32 scans;
    u32 guess_user;   // frames of the record before the guess that the scan made
    u32 guess_words;
    u32 guess_reason; // why the scan was needed
    u32 take_second;  // no better candidate was found
    u32 found;  // where the scan found a return address
    u32 calls;
    u32 weight;  // launches: how many this one stands for
    struct process_tables tables;
    u64 scan[64];
    u64 python[16];
    struct record record;
};

// `check` is tag ^ rule: an entry that was being written when this walk interrupted another does not match.
struct cached_rule {
    u64 check;
    u64 rule;
};

BPF_F_TABLE("array", int, struct unwind_mapping, unwind_mappings, MAPPINGS, BPF_F_MMAPABLE_FLAG);
BPF_F_TABLE("array", int, struct unwind_page, unwind_pages, PAGES, BPF_F_MMAPABLE_FLAG);
BPF_F_TABLE("array", int, struct unwind_rows, unwind_rows, ROW_BLOCKS, BPF_F_MMAPABLE_FLAG);
BPF_F_TABLE("array", int, struct unwind_rule, unwind_rules, RULES, BPF_F_MMAPABLE_FLAG);
BPF_F_TABLE("array", int, struct python_layout, python_layouts, PYTHON_LAYOUTS, BPF_F_MMAPABLE_FLAG);
BPF_F_TABLE("array", int, u64, counters, 16, BPF_F_MMAPABLE_FLAG);
BPF_HASH(processes, u32, struct process_tables, 16384);
BPF_PERCPU_ARRAY(rule_cache, struct cached_rule, RULE_CACHE);

struct thread_key {
    u64 thread_pointer;
    u32 pid;
    u32 pad;
};
BPF_TABLE("lru_hash", struct thread_key, u64, thread_states, 16384);
BPF_TABLE("lru_hash", u64, u64, message_times, 4096);

BPF_RINGBUF_OUTPUT(samples, SAMPLE_RING_PAGES);
BPF_RINGBUF_OUTPUT(messages, 16);

// The CPU clock's family: its own scratch and its own programs, so that a walk of another family cannot meet it.
BPF_PERCPU_ARRAY(cpu_walks, struct walk, 1);
BPF_PROG_ARRAY(cpu_programs, 4);

// The family of launches, likewise. Its walks run in the thread that launches, which may be preempted, so there is room
// for two at once on a CPU.
#define LAUNCH_WALKS 2
BPF_PERCPU_ARRAY(launch_walks, struct walk, LAUNCH_WALKS);
BPF_PROG_ARRAY(launch_programs, 4);
BPF_RINGBUF_OUTPUT(launches, LAUNCH_RING_PAGES);  // of its own: a burst of launches must not cost CPU samples

struct seen_key {
    u64 hash;
    u32 pid;
    u32 pad;
};
struct seen_stack {
    u64 start_ns;  // of the process
    u64 sent_ns;   // when a record with its frames went out
};
BPF_TABLE("lru_hash", struct seen_key, struct seen_stack, seen_stacks, 16384);

static __always_inline void count(int which) {
    int key = which;
    u64 *value = counters.lookup(&key);
    if (value)
        __sync_fetch_and_add(value, 1);
}
