// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Structures shared with user space: records.py (record, control message) and sampler/unwind_tables.py (tables)
// mirror them.

#define MAX_KERNEL_FRAMES 64
#define MAX_USER_FRAMES 128
#define MAX_PYTHON_FRAMES 256
#define MAX_WORDS 1024  // power of two above 64 + 128 + 2 * 256

// Why a user stack ends where it ends. STEP_NEXT is internal: the walk goes on.
#define STEP_NEXT (-1)
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

#define MESSAGE_NEW_PROCESS 1
#define MESSAGE_UNKNOWN_MAPPING 2
#define MESSAGE_NO_RULE 3
#define MESSAGE_EXIT 4
#define MESSAGE_EXEC 5
#define MESSAGE_FORK 6
#define MESSAGE_NO_PYTHON_THREAD 7

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

#define FAMILY_CPU 0     // one sample of the CPU clock
#define FAMILY_LAUNCH 1  // one launch of GPU work; two more words follow the Python words, see records.py

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
    char comm[16];
    u64 sp0;       // stack pointer of the innermost user frame
    u64 start_ns;  // when the process started, CLOCK_BOOTTIME
    u64 extra;     // CPU samples: nanoseconds that the walk took; launches: correlation id | attach epoch << 32
};

struct control_message {
    u32 pid;
    u32 reason;
    u64 address;  // FORK: pid of the parent; UNKNOWN_MAPPING and NO_RULE: the program counter
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

// Where CPython keeps what the walk reads. `heads`: of each interpreter, the address of the field that points to its
// newest thread state.
#define MAX_INTERPRETERS 8
struct python_layout {
    u64 heads[MAX_INTERPRETERS];
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
    u16 interpreters;
    u16 pad[3];
};
