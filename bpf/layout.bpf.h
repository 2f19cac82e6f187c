// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Structures shared with user space: records.py (record, control message) and sampler/unwind_tables.py (tables)
// mirror them.

#define MAX_KERNEL_FRAMES 64
#define MAX_USER_FRAMES 128
#define MAX_PYTHON_FRAMES 256
#define NAME_BYTES 16  // TASK_COMM_LEN
#define MAX_WORDS 1024  // power of two above 64 + 128 + 2 * 256

// Why a user stack ends where it ends. STEP_NEXT and STEP_ASK_KERNEL are internal: the walk goes on.
#define STEP_NEXT (-1)
#define STEP_ASK_KERNEL (-2)  // no mapping that is known here holds the address
#define STOP_ROOT 0
#define STOP_NO_MAPPING 1
#define STOP_NO_RULE 2
#define STOP_UNREADABLE 3
#define STOP_NO_PROGRESS 4
#define STOP_TOO_DEEP 5
#define STOP_NO_TABLES 6
#define STOP_KERNEL_THREAD 7
#define STOP_NOT_64_BIT 8
#define STOP_INTERNAL 9
#define STOP_NULL_RETURN 10  // internal: a return address of 0; a root too, unless frames were guessed

#define FLAG_SCANNED 1           // a return address was found by scanning the stack
#define FLAG_PYTHON_TRUNCATED 2  // the Python chain did not reach its outermost frame
#define FLAG_NO_THREAD_STATE 4   // the process runs Python, but this thread has no thread state
#define FLAG_FRAME_POINTER 8     // a frame without unwind rule was passed by its frame pointer
#define FLAG_KERNEL_MAPPING 16   // mappings were found in the kernel, not in published tables
#define FLAG_PYTHON_NOT_FOUND 32 // the thread states of the thread, or what they point to, could not be reached

#define MESSAGE_NEW_PROCESS 1
#define MESSAGE_UNKNOWN_MAPPING 2
#define MESSAGE_NO_RULE 3
#define MESSAGE_EXIT 4
#define MESSAGE_EXEC 5
#define MESSAGE_FORK 6
#define MESSAGE_NEW_BINARY 7  // a process executes a file whose tables are not there
#define MESSAGE_MAPPING 8     // struct mapping_message
#define MESSAGE_WHO 9         // struct who_message
#define MESSAGE_CODE 10       // struct code_message
#define MESSAGE_THREAD_STATES 11  // a thread's states lie too far back in the lists of its process

#define COUNTER_RING_FULL 0
#define COUNTER_CONFLICT 1
#define COUNTER_TAIL_CALL_FAILED 2
#define COUNTER_MESSAGES_LOST 3
#define COUNTER_SCANNED 4
#define COUNTER_SCAN_FAILED 5
#define COUNTER_PYTHON_WALKED_THREADS 6
#define COUNTER_FRAME_POINTER 7
#define COUNTER_LAUNCH_RING_FULL 8
#define COUNTER_LAUNCH_CONFLICT 9
#define COUNTER_LAUNCH_REPEATED 10
#define COUNTER_WAIT_RING_FULL 11
#define COUNTER_WAIT_CONFLICT 12
#define COUNTER_WAIT_NOT_CHOSEN 13
#define COUNTER_WAIT_THREADS_FULL 14
#define COUNTER_TRACKED_FULL 15
#define COUNTER_WAIT_WAKES_MISSED 16
#define COUNTER_WAIT_ENDS_MISSED 17

#define FAMILY_CPU 0     // one sample of the CPU clock
#define FAMILY_LAUNCH 1  // one launch of GPU work; two more words follow the Python words, see records.py
#define FAMILY_WAIT_STACK 2  // frames of a wait's stack or of a waker's
#define FAMILY_WAIT 3        // one wait, see struct wait

struct record_header {  // 72 bytes, then n_kernel + n_user + 2 * n_python words
    u64 time_ns;  // CLOCK_MONOTONIC; launches: when the API call was entered
    u32 pid;
    u32 tid;
    u16 cpu;
    u16 n_kernel;
    u16 n_user;
    u16 n_python;
    u8 stop;
    u8 flags;
    u8 family;
    u8 header_words;
    u32 uid;
    char comm[NAME_BYTES];
    u64 sp0;       // stack pointer of the innermost user frame
    u64 start_ns;  // when the process started, CLOCK_BOOTTIME
    u64 extra;     // CPU samples: nanoseconds that the walk took; launches: correlation id | attach epoch << 32;
                   // stacks of waits: their hash; waits: when the thread was switched out
};

// How often a thread, or the threads of a CPU, were switched out lately.
struct switch_rate {
    u64 since_ns;
    u32 now;
    u32 before;
    u32 spent;  // of what may be taken in a burst
    u32 pad;
};

// The wait of a thread of a tracked process; it stays until the thread ends. Up to `rate` it is also the record of a
// wait, whose header's `extra` is when the thread was switched out (0: it runs, or the wait is not followed) and
// whose `time_ns` when it was switched in.
#define WAKER_ON_INTERRUPT_STACK 1
#define WAKER_NOT_IN_SYSCALL 2
#define WAIT_COUNTS_TWICE 8  // the wait stands for twice as many as its length and its weight say
#define WAKER_TIME_WAS_UP 4  // no wake was seen, and the time limit of the system call had passed
#define WAIT_RECORD_BYTES 160
#define UNWALKED_NS 100000000ull  // a wait so long is sent though its stack was not taken, and then stands for itself
#define WEIGHT_UNWALKED 0         // in place of a weight
struct wait {
    struct record_header header;
    u64 woken_ns;  // 0: not woken; it was ready all the time, if it runs again
    u64 bar_ns;    // the wait is sent when it is at least this long, see wait_choice.bpf.h
    u64 threshold_ns;
    u64 stack;  // hash of the stack at the switch-out; 0: not known
    u64 waker_stack;
    u64 waker_start_ns;
    u64 waker;  // pid << 32 | tid; 0: not known, or an idle CPU
    char waker_comm[NAME_BYTES];
    u32 state;  // of the task at the switch-out; 0: it was ready to run
    u32 weight;  // it stands for so many that are shorter than UNWALKED_NS; or WEIGHT_UNWALKED
    s32 syscall;  // number of the system call; -1: none
    u32 waker_flags;
    struct switch_rate rate;
    u64 task;          // the key
    u64 out_ns_again;  // as header.extra: a reader that sees both alike has not read a mixture
    u64 run_ns;        // CPU time of the thread at the switch-out
    u64 due_ns;        // when the time limit of its system call has passed; 0: it has none, or it is not known
    u32 epoch;         // of the settings, for which threshold_ns holds; 0: of none
    u32 laid;          // these three: see wait_choice.bpf.h
    u32 point;
    u32 next_point;
};

struct wait_settings {
    u64 threshold_ns;
    u32 track_all;  // all processes but own_pid, and no kernel threads
    u32 own_pid;
    u32 earlier;  // whether there may be something in earlier_waits
    u32 epoch;    // of the thresholds: another one after each change, never 0
};

struct control_message {
    u32 pid;
    u32 reason;
    u64 address;  // FORK: pid of the parent; EXEC: when, CLOCK_MONOTONIC; UNKNOWN_MAPPING: the program counter
};

// A mapped file as the kernel knows it. `stamp`: modification time in ns ^ size, since inode numbers are used again.
struct binary_key {
    u64 inode;
    u64 stamp;
    u32 device;  // major << 20 | minor; 0: anonymous memory; 0xffffffff: the vdso
    u32 pad;
};

struct mapping_message {  // a mapping that was found in the kernel
    u32 pid;
    u32 reason;
    u64 start;
    u64 end;
    u64 offset;  // in the file
    struct binary_key key;
    u32 known;  // whether the binary has an entry in unwind_binaries
    u32 pad;
    u64 time_ns;  // of the sample
    u64 start_ns;  // of the process
};

struct who_message {  // a process that has no tables
    u32 pid;
    u32 reason;
    u64 start_ns;
    u32 uid;
    u32 parent;
    u32 own_pid;  // in its own pid namespace
    u32 command_bytes;
    char name[NAME_BYTES];
    char command[192];  // arguments, each with a NUL behind it
};

struct code_message {  // memory of a process that makes up a code object of CPython
    u32 pid;
    u32 reason;
    u64 start_ns;
    u64 address[4];  // of each part; 0: could not be read
    u8 code[224];
    u8 name[192];
    u8 file[256];
    u8 lines[512];
};

// Where a binary's tables are, for processes that were not published. `code`: its executable segments.
struct code_segment {
    u64 begin;  // file offsets, from the page that holds the first byte
    u64 end;
    u64 delta;  // linked address minus file offset
};
struct unwind_binary {
    u32 first_page;
    u32 pages;  // 0: no unwind rules
    u32 page_base;
    u32 python;  // index into python_layouts; 0: not an interpreter, as far as is known
    struct code_segment code[2];
};

// One executable mapping. A process has a run of them, sorted by address, after a head entry whose `start` is the
// run's serial number.
#define MAPPING_TABLE 0
#define MAPPING_FRAME_POINTER 1  // generated code (anonymous memory): rbp chain
#define MAPPING_NO_TABLE 2       // a file without unwind rules
struct unwind_mapping {
    u64 start;
    u64 end;
    u64 bias;        // runtime minus linked address
    u32 first_page;  // linked address >> 16 of the binary's first page
    u32 pages;
    u32 page_base;  // index of that page in unwind_pages
    u32 kind;
};

// A run of mappings as found by pid. `serial` differs between any two runs.
struct process_tables {
    u32 first;  // index of the head entry
    u32 count;  // mappings after the head
    u32 python;  // index into python_layouts; 0: no Python
    u32 serial;
    u64 python_bias;       // of the binary that holds the interpreter
    u64 executable_pages;  // mm->exec_vm when the run was made: it changes when code is mapped or unmapped
};

struct unwind_page {  // rows of 64 KiB of text: [first, last)
    u32 first;
    u32 last;
};

struct unwind_rows {  // one cache line; a row is rule index << 16 | low half of the linked address
    u32 row[16];
};

#define CFA_NONE 0
#define CFA_RSP 1        // rsp + offset
#define CFA_RBP 2        // rbp + offset
#define CFA_PLT 3        // rsp + 8 + ((rip & 15) >= offset ? 8 : 0)
#define CFA_DEREF_RBP 4  // *(rbp + (offset >> 8)) + (offset & 255) * 8
#define CFA_DEREF_RSP 5  // the same with rsp
#define CFA_STOP 6       // the return address is undefined: outermost frame
#define CFA_SIGNAL 7     // signal frame: all registers are on the stack
#define CFA_REGISTER 8   // register (offset & 255) + (offset >> 8)
#define RBP_SAME 0
#define RBP_CFA 1        // saved at CFA + rbp_offset
#define RBP_UNDEFINED 2
#define RBP_RELATIVE 3   // saved at rbp + rbp_offset
struct unwind_rule {
    u8 cfa;
    u8 rbp;
    s16 rbp_offset;
    s32 cfa_offset;
};

// Where a build of CPython keeps what the walk reads.
struct python_layout {
    u64 interpreters;  // linked address of the pointer to the newest interpreter
    u32 interp_next;
    u32 threads_head;
    u16 version;  // 311 for 3.11
    u16 has_cframe;
    u16 ts_frame;
    u16 ts_tid;
    u16 ts_next;
    u16 cf_cur;
    u16 f_code;
    u16 f_prev;
    u16 f_instr;
    u16 f_owner;  // 0: none
    u16 co_bytecode;
    u16 co_firstlineno;
    u16 co_qualname;  // co_name up to 3.10
    u16 co_filename;
    u16 co_linetable;
    u16 pad;
};
