// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// BPF maps and the scratch of one walk. The loader defines their sizes: MAPPINGS, PAGES, ROW_BLOCKS, RULES,
// PYTHON_LAYOUTS, SAMPLE_RING_PAGES, LAUNCH_RING_PAGES, WAIT_RING_PAGES.

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
    u64 python_interpreter;  // where to look for the next thread state
    u64 python_state;  // the last one that was found
    u64 found_word;
    u64 epoch;     // see epoch_of_code
    u64 unmapped;  // an address that no mapping holds
    u32 leaf;  // pc is exact, not a return address
    u32 low;
    u32 high;
    u32 n_words;
    u32 scans;
    u32 guess_user;   // frames of the record before the guess that the scan made
    u32 guess_words;
    u32 guess_reason; // why the scan was needed
    u32 take_second;  // no better candidate was found
    u32 found;  // where the scan found a return address
    u32 calls;
    u32 weight;  // launches: how many this one stands for
    u64 waiter;  // stacks of waits: task that the current one wakes; 0: the current one waits
    s32 syscall; // of the registers that were taken last; -1: not in one
    u64 arguments[4];  // of that system call; 0 in 32-bit code
    u32 n_local;
    u32 resume;  // the frame in hand is in the record already
    u32 guessed;  // the frame in hand was found by scanning
    u32 python_far;  // the lists of thread states are too long: the others come from `thread_states`
    struct process_tables tables;
    struct unwind_mapping current;   // holds the last pc
    struct unwind_mapping looked_up; // holds another address
    struct unwind_mapping local[8];  // as found in the kernel
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
BPF_F_TABLE("array", int, u64, counters, 32, BPF_F_MMAPABLE_FLAG);
BPF_HASH(processes, u32, struct process_tables, 16384);
BPF_PERCPU_ARRAY(rule_cache, struct cached_rule, RULE_CACHE);

struct thread_key {
    u64 thread_pointer;
    u32 pid;
    u32 pad;
};
// Thread states of a thread, that of the newest interpreter first, then 0. The walk notes the one that it found; those
// that it cannot reach are read by user space.
#define STATES_OF_THREAD 4
struct known_states {
    u64 state[STATES_OF_THREAD];
};
BPF_TABLE("lru_hash", struct thread_key, struct known_states, thread_states, 32768);
BPF_TABLE("lru_hash", u64, u64, message_times, 4096);
BPF_HASH(unwind_binaries, struct binary_key, struct unwind_binary, 8192);

struct told_key {
    u64 start;  // of the mapping, or of a code object, plus 1; 0: who the process is; 2: epoch of its code
    u32 pid;
    u32 pad;
};
BPF_TABLE("lru_hash", struct told_key, u64, told, 16384);

BPF_RINGBUF_OUTPUT(samples, SAMPLE_RING_PAGES);
BPF_RINGBUF_OUTPUT(messages, 64);
BPF_RINGBUF_OUTPUT(codes, 128);  // struct code_message: of its own, so that many of them cost no other message

// The CPU clock's family: its own scratch and its own programs, so that a walk of another family cannot meet it.
BPF_PERCPU_ARRAY(cpu_walks, struct walk, 1);
BPF_PROG_ARRAY(cpu_programs, 8);

// The family of launches, likewise. Its walks run in the thread that launches, which may be preempted, so there is room
// for two at once on a CPU.
#define LAUNCH_WALKS 2
BPF_PERCPU_ARRAY(launch_walks, struct walk, LAUNCH_WALKS);
BPF_PROG_ARRAY(launch_programs, 8);
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

struct graph_calls {
    u64 last_ns;
    u64 captured_ns;  // the last that begins or ends a capture
    u64 count;
    s64 captures;
};
BPF_TABLE("lru_hash", u32, struct graph_calls, graph_calls, 1024);  // by process

// The family of waits. Its programs run with interrupts off, so that one scratch is enough.
BPF_PERCPU_ARRAY(wait_walks, struct walk, 1);
BPF_PROG_ARRAY(wait_programs, 8);
BPF_RINGBUF_OUTPUT(wait_records, WAIT_RING_PAGES);
BPF_HASH(tracked, u32, u32, 16384);  // process: TRACK_*
BPF_HASH(waits, u64, struct wait, 16384);  // by address of the task, which need not be read
BPF_HASH(earlier_waits, u32, struct wait, 4096);  // by tid: had begun when their process was tracked
BPF_ARRAY(new_wait, struct wait, 1);
BPF_ARRAY(wait_settings, struct wait_settings, 1);
BPF_HASH(wait_thresholds, u32, u64, 1024);  // process: its threshold, where that is not the one of the settings
BPF_PERCPU_ARRAY(wait_rates, struct switch_rate, 2);  // [1]: of threads that wait seldom
BPF_TABLE("lru_hash", struct seen_key, struct seen_stack, seen_waits, 16384);
// Whether `tracked`, and `waits`, may have something with such a key (MAY_HAVE_*). Asked first: most switches are of
// threads that neither has, and a look into a hash map costs many times as much. What was set once stays.
#define MAY_HAVE_BITS 13
BPF_ARRAY(may_be_tracked, u64, 1 << MAY_HAVE_BITS);
BPF_ARRAY(may_wait, u64, 1 << MAY_HAVE_BITS);

static __always_inline void count(int which) {
    int key = which;
    u64 *value = counters.lookup(&key);
    if (value)
        __sync_fetch_and_add(value, 1);
}
