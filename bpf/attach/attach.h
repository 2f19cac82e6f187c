/* gpuprof_attach: loads a library into a process that is already running, without stopping anything but one waiting thread, for less than
 * a millisecond. What its parts share.
 *
 *   process.c   what the process is, and everything that speaks against attaching
 *   image.c     maps, and functions of the libraries that it has loaded, read from its memory
 *   place.c     whether a thread is at a place where it may be borrowed
 *   seccomp.c   whether a system call filter would mind
 *   payload.c   the instructions that run in the process
 *   borrow.c    ptrace: stop, call, put back
 *   main.c      the order of things
 *
 * Nothing that the process says is trusted: reads are bounded, and what does not fit is a refusal.
 */
#ifndef GPUPROF_ATTACH_H
#define GPUPROF_ATTACH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Says why not (a code for programs, a sentence, the next step), and ends with exit code 1. Nothing may be borrowed at this time. */
__attribute__((noreturn, format(printf, 3, 4))) void refuse(const char *code, const char *hint, const char *format, ...);

uint64_t now_us(void); /* CLOCK_MONOTONIC */
void sleep_us(unsigned us);

/* ---- image.c ---- */

struct range {
    uint64_t start, end;
};

#define MODULE_NAME 64
#define MAX_MODULES 4096
#define MAX_TEXTS 8

struct module { /* one mapped file */
    uint64_t base; /* of its ELF header; 0: that is not mapped */
    char name[MODULE_NAME]; /* the last part of its path, cut */
    struct range text[MAX_TEXTS];
    int texts;
};

struct image {
    struct module *modules;
    int count;
};

struct mappings { /* all of them, by address */
    struct range *ranges;
    int count;
};

/* Reads /proc/PID/maps; 0, or -errno. */
int image_read(struct image *image, pid_t pid);

/* The same as mere ranges, anew at each call; and the one that an address is in, or {0, 0}. */
int image_mappings(struct mappings *mappings, pid_t pid);
struct range image_mapping(const struct mappings *mappings, uint64_t address);
const struct module *image_find(const struct image *image, const char *beginning);

/* A defined function of a module: its addresses; 0 where it has none of that name. */
struct range image_symbol(int mem, const struct module *module, const char *name);

/* The part of libc that the allocator's functions lie in, from the last foreign function before to the first one after. */
struct range image_allocator(int mem, const struct module *libc);

int read_memory(int mem, uint64_t address, void *to, size_t size);
int write_memory(int mem, uint64_t address, const void *from, size_t size);

/* ---- process.c ---- */

struct process {
    pid_t pid;
    int mem; /* /proc/PID/mem */
    int seccomp; /* as in /proc/PID/status: 0 none, 1 strict, 2 filters */
    uid_t uid;
    struct image image;
    struct {
        uint64_t dlopen, dlsym, dlerror, pthread_create, pthread_detach, munmap;
        int dlopen_flags;
    } call;
};

/* Opens the process and its memory, or refuses. `any` leaves out the demands that it uses CUDA and has not got the library. */
void process_open(struct process *process, pid_t pid, const char *library, int any);

/* Why ptrace is refused, as a refusal. */
__attribute__((noreturn)) void process_refuse_ptrace(pid_t pid, int error);

/* Whether the process finds the same file under this path, and may read it. */
int process_sees(const struct process *process, const char *path);

/* ---- place.c ---- */

struct place { /* where it must not be: between a lock and its unlock that pthread_create may want */
    struct range *unsafe;
    int count;
};

enum verdict { PLACE_SAFE, PLACE_RUNNING, PLACE_OTHER_CALL, PLACE_LOCKED, PLACE_UNREADABLE, PLACE_VERDICTS };

void place_open(struct place *place, const struct process *process);

/* Which call a thread waits in, without disturbing it; its stack is looked at separately. `rank`: the lower the better. */
enum verdict place_of_call(const struct process *process, pid_t tid, int *rank, uint64_t *stack_pointer);
int place_call_is_known(long number);

/* What its stack says, which ends at `end`. */
enum verdict place_of_stack(const struct place *place, const struct process *process, uint64_t stack_pointer, uint64_t end);

/* ---- seccomp.c ---- */

/* The name of a system call that the filters of a stopped, traced thread would not let through; NULL: none, -1 in `unknown` set where the
 * filters cannot be read. */
const char *seccomp_forbids(pid_t tid, int *unknown);

/* ---- payload.c ---- */

#define PAGE 4096u
#define MAIL_BYTES (4 * PAGE)
#define STACK_BYTES (16 * PAGE)
#define REGION_BYTES (PAGE + MAIL_BYTES + STACK_BYTES) /* code, mail, stack */
#define XSAVE_BYTES 11200

enum mail_state { MAIL_WAITING, MAIL_RUNNING, MAIL_LOADED, MAIL_NOT_LOADED, MAIL_NO_SYMBOL };

struct mail { /* between the tracer and what runs in the process; payload.c knows the offsets */
    uint32_t state;
    uint32_t ack; /* the tracer has read the answer and the borrowed thread is back: the region may go */
    int32_t created; /* pthread_create's result */
    int32_t started; /* the library's start function's result */
    uint64_t dlopen, dlsym, dlerror, pthread_create, pthread_detach, munmap;
    uint64_t region, region_bytes;
    int32_t fd; /* to close when done; -1: none */
    int32_t dlopen_flags;
    uint64_t thread;
    struct { /* to go back without the tracer */
        uint64_t r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, rip, eflags, rsp;
    } back;
    uint64_t signal_mask;
    uint64_t xsave_mask; /* 0: `xsave` is not filled */
    char symbol[64];
    char path[PAGE];
    char error[256];
    uint64_t pause[2]; /* struct timespec */
    _Alignas(64) unsigned char xsave[XSAVE_BYTES];
};

extern const unsigned char payload[], payload_marker[], payload_thread[], payload_end[];

/* ---- borrow.c ---- */

struct borrowed {
    uint64_t region; /* in the process */
    uint64_t stopped_us; /* for how long the thread was away */
    int abandoned;       /* it may still be on its way back: the region must stay */
    char problem[256]; /* why not */
};

enum borrow_result { BORROW_STARTED, BORROW_UNSAFE, BORROW_GONE, BORROW_FAILED };

/* Has a thread of `tid`'s process load the library: stops `tid`, which must be at a safe place of its stack, lets it call pthread_create, and
 * puts it back. `library`: a descriptor whose content is put into a memfd of the process, or -1 where the process sees mail->path itself. */
enum borrow_result borrow(const struct process *process, const struct place *place, pid_t tid, struct range stack, struct mail *mail,
                          int library, struct borrowed *borrowed);

#endif
