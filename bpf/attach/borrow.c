/* ptrace: a waiting thread is stopped, made to call pthread_create, and put back as if nothing had been (attach.h).
 *
 * It is stopped by PTRACE_INTERRUPT, so that no signal is involved. The kernel then shows it at the return from its system call, with a
 * result that means "begin anew" (ERESTART*); when the same registers are there again at the end, and the thread is let go from a stop of the
 * same kind, the kernel does begin anew, with what is left of a timeout. Meanwhile all signals are held back but the one that setuid() of
 * another thread waits for; a signal that came is delivered then, as if it had interrupted the call.
 */
#define _GNU_SOURCE
#include "attach.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define STOP_US 500000u /* a waiting thread stops at once */
#define CALL_US 2000000u /* pthread_create waits for the allocator's locks only */
#define FOREVER UINT64_MAX
#define SIGNAL_SETXID 33
#define ERESTARTNOHAND 514
#define MEMFD_CLOEXEC 1u
#define MEMFD_EXEC 0x10u
#define MAX_LIBRARY (64u << 20)

struct hold { /* a stopped thread, and how it was */
    const struct process *process;
    pid_t tid;
    struct range stack;
    struct user_regs_struct before;
    uint64_t mask;
    _Alignas(64) unsigned char xstate[XSAVE_BYTES];
    size_t xstate_size;
    uint64_t syscall; /* a syscall instruction: the one that it waits in */
    uint64_t since_us;
};

/* ---- stops -------------------------------------------------------------------------------------------------------------------------- */

enum stop { STOP_EVENT, STOP_SYSCALL, STOP_SIGNAL, STOP_GROUP, STOP_ENDED, STOP_LATE };

static enum stop wait_stop(pid_t tid, uint64_t until_us, int *signal)
{
    const struct timespec moment = {.tv_nsec = 5000000};
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (;;) {
        int status;
        pid_t found = waitpid(tid, &status, __WALL | WNOHANG);
        if (found < 0 && errno != EINTR)
            return STOP_ENDED;
        if (found == tid) {
            if (!WIFSTOPPED(status))
                return STOP_ENDED;
            *signal = WSTOPSIG(status);
            if (status >> 16 == PTRACE_EVENT_STOP)
                return *signal == SIGTRAP ? STOP_EVENT : STOP_GROUP;
            if (*signal == (SIGTRAP | 0x80))
                return STOP_SYSCALL;
            if (status >> 16 == 0)
                return STOP_SIGNAL;
            *signal = 0;
            return STOP_SIGNAL;
        }
        if (now_us() > until_us)
            return STOP_LATE;
        sigtimedwait(&child, NULL, &moment); /* blocked by main.c; each stop sends it */
    }
}

/* Lets the thread run until a stop of the wanted kind; signals that are not held back are passed on. */
static enum stop go_on(pid_t tid, int request, enum stop wanted, uint64_t until_us)
{
    int signal = 0;
    for (;;) {
        if (ptrace(request, tid, NULL, (void *)(intptr_t)signal) < 0)
            return STOP_ENDED;
        enum stop stop = wait_stop(tid, until_us, &signal);
        if (stop == wanted || stop == STOP_ENDED || stop == STOP_LATE)
            return stop;
        if (stop != STOP_SIGNAL)
            signal = 0;
        if (wanted == STOP_EVENT) /* any other stop has used the interruption up */
            ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
    }
}

static void let_go(pid_t tid) { ptrace(PTRACE_DETACH, tid, NULL, NULL); }

/* ---- registers ------------------------------------------------------------------------------------------------------------------------- */

/* Some waiting calls return EINTR after any stop; as the program must not see ours, they are begun anew unless a handler is to run. */
static int begins_anew(struct user_regs_struct *regs)
{
    long number = (long)regs->orig_rax, result = (long)regs->rax;
    if (number < 0 || !place_call_is_known(number))
        return 0;
    if (result == -EINTR)
        regs->rax = (unsigned long long)-ERESTARTNOHAND;
    result = (long)regs->rax;
    return result == -512 || result == -513 || result == -514 || result == -516;
}

static int save(struct hold *hold)
{
    struct iovec piece = {hold->xstate, sizeof hold->xstate};
    if (ptrace(PTRACE_GETREGSET, hold->tid, (void *)NT_X86_XSTATE, &piece) < 0)
        return -1;
    hold->xstate_size = piece.iov_len;
    if (piece.iov_len >= sizeof hold->xstate) /* cut: wider than this knows */
        return -1;
    return (int)ptrace(PTRACE_GETSIGMASK, hold->tid, (void *)sizeof hold->mask, &hold->mask);
}

static void put_back(struct hold *hold)
{
    struct iovec piece = {hold->xstate, hold->xstate_size};
    ptrace(PTRACE_SETREGSET, hold->tid, (void *)NT_X86_XSTATE, &piece);
    ptrace(PTRACE_SETSIGMASK, hold->tid, (void *)sizeof hold->mask, &hold->mask);
    ptrace(PTRACE_SETREGS, hold->tid, NULL, &hold->before);
}

static struct user_regs_struct fresh(const struct hold *hold)
{
    struct user_regs_struct regs = hold->before;
    regs.orig_rax = (unsigned long long)-1; /* no system call is to be begun anew */
    return regs;
}

/* One system call of the thread. Returns its result, or -EIO where the thread is gone. Before and after it is in a stop from which it can be
 * put back; there is no way back from in between, so that this waits for as long as it takes. */
static long remote_call(struct hold *hold, long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
    struct user_regs_struct regs = fresh(hold);
    regs.rip = hold->syscall;
    regs.rax = (unsigned long long)number;
    regs.rdi = a, regs.rsi = b, regs.rdx = c, regs.r10 = d, regs.r8 = e, regs.r9 = f;
    if (ptrace(PTRACE_SETREGS, hold->tid, NULL, &regs) < 0 || go_on(hold->tid, PTRACE_SYSCALL, STOP_SYSCALL, FOREVER) != STOP_SYSCALL)
        return -EIO;
    ptrace(PTRACE_INTERRUPT, hold->tid, NULL, NULL); /* in time for the return from the call; any stop before that would use it up */
    if (go_on(hold->tid, PTRACE_CONT, STOP_EVENT, FOREVER) != STOP_EVENT || ptrace(PTRACE_GETREGS, hold->tid, NULL, &regs) < 0)
        return -EIO;
    return (long)regs.rax;
}

/* ---- the region ---------------------------------------------------------------------------------------------------------------------- */

static int failed(long result) { return result < 0 && result > -4096; }

static long map_region(struct hold *hold)
{
    long region = remote_call(hold, SYS_mmap, 0, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, (uint64_t)-1, 0);
    if (failed(region))
        return region;
    /* Executable from the beginning, never writable as well: some kernels and security modules insist. */
    long code = remote_call(hold, SYS_mmap, (uint64_t)region, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                            (uint64_t)-1, 0);
    if (failed(code)) {
        remote_call(hold, SYS_munmap, (uint64_t)region, REGION_BYTES, 0, 0, 0, 0);
        return code;
    }
    return region;
}

static void fill_mail(struct hold *hold, struct mail *mail, uint64_t region)
{
    const struct user_regs_struct *r = &hold->before;
    mail->state = MAIL_WAITING;
    mail->ack = 0;
    mail->created = mail->started = -1;
    mail->region = region;
    mail->region_bytes = REGION_BYTES;
    mail->pause[0] = 0;
    mail->pause[1] = 1000000;
    mail->back.r15 = r->r15, mail->back.r14 = r->r14, mail->back.r13 = r->r13, mail->back.r12 = r->r12;
    mail->back.rbp = r->rbp, mail->back.rbx = r->rbx, mail->back.r11 = r->r11, mail->back.r10 = r->r10;
    mail->back.r9 = r->r9, mail->back.r8 = r->r8, mail->back.rcx = r->rcx, mail->back.rdx = r->rdx;
    mail->back.rsi = r->rsi, mail->back.rdi = r->rdi, mail->back.eflags = r->eflags, mail->back.rsp = r->rsp;
    mail->back.rip = hold->syscall;
    mail->back.rax = (long)r->rax == -516 ? (uint64_t)SYS_restart_syscall : r->orig_rax;
    mail->signal_mask = hold->mask;
    memcpy(mail->xsave, hold->xstate, hold->xstate_size);
    memcpy(&mail->xsave_mask, hold->xstate + 464, 8); /* the kernel leaves XCR0 there */
}

/* Copies the library into a memfd of the process, whose own name for it goes into the mail. 0, or -errno. */
static long copy_library(struct hold *hold, struct mail *mail, uint64_t region, int library)
{
    uint64_t name = region + PAGE + offsetof(struct mail, path);
    long fd = remote_call(hold, SYS_memfd_create, name, MEMFD_CLOEXEC | MEMFD_EXEC, 0, 0, 0, 0);
    if (fd == -EINVAL) /* a kernel that does not know MFD_EXEC */
        fd = remote_call(hold, SYS_memfd_create, name, MEMFD_CLOEXEC, 0, 0, 0, 0);
    if (failed(fd))
        return fd;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%ld", (int)hold->process->pid, fd);
    int copy = open(path, O_WRONLY | O_CLOEXEC);
    struct stat info;
    long problem = copy < 0 || fstat(library, &info) < 0 || info.st_size > MAX_LIBRARY ? -EACCES : 0;
    unsigned char *content = problem ? MAP_FAILED : mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, library, 0);
    for (size_t at = 0; !problem && at < (size_t)info.st_size;) {
        ssize_t wrote = content == MAP_FAILED ? -1 : write(copy, content + at, (size_t)info.st_size - at);
        if (wrote <= 0)
            problem = -EIO;
        else
            at += (size_t)wrote;
    }
    if (content != MAP_FAILED)
        munmap(content, (size_t)info.st_size);
    if (copy >= 0)
        close(copy);
    if (problem)
        remote_call(hold, SYS_close, (uint64_t)fd, 0, 0, 0, 0, 0);
    snprintf(mail->path, sizeof mail->path, "/proc/self/fd/%ld", fd);
    mail->fd = (int32_t)fd;
    return problem;
}

/* ---- borrowing ------------------------------------------------------------------------------------------------------------------------- */

/* Runs the payload until it has called pthread_create. 0; -1: it is still at it when its time is up, or gone, and has been let go. */
static int run_payload(struct hold *hold, uint64_t region)
{
    struct user_regs_struct regs = fresh(hold);
    uint64_t marker = region + (uint64_t)(payload_marker - payload), until = now_us() + CALL_US;
    regs.rip = region;
    regs.rsp = (region + REGION_BYTES - 256) & ~15ull;
    regs.eflags &= ~0x400ull; /* the direction flag is clear where functions are called */
    ptrace(PTRACE_SETREGS, hold->tid, NULL, &regs);
    for (;;) {
        enum stop stop = go_on(hold->tid, PTRACE_SYSCALL, STOP_SYSCALL, until);
        if (stop == STOP_LATE) {
            int signal;
            ptrace(PTRACE_INTERRUPT, hold->tid, NULL, NULL);
            wait_stop(hold->tid, FOREVER, &signal);
            let_go(hold->tid); /* it puts itself back (payload.c) */
            return -1;
        }
        if (stop != STOP_SYSCALL || ptrace(PTRACE_GETREGS, hold->tid, NULL, &regs) < 0)
            return -1;
        if (regs.rip == marker && (long)regs.orig_rax == SYS_getpid)
            break;
    }
    ptrace(PTRACE_INTERRUPT, hold->tid, NULL, NULL);
    return go_on(hold->tid, PTRACE_CONT, STOP_EVENT, FOREVER) == STOP_EVENT ? 0 : -1;
}

static enum borrow_result with_thread(struct hold *hold, struct mail *mail, int library, struct borrowed *borrowed)
{
    long region = map_region(hold);
    if (failed(region)) {
        snprintf(borrowed->problem, sizeof borrowed->problem, "no memory was to be had in the process: %s", strerror((int)-region));
        return region == -EIO ? BORROW_GONE : BORROW_FAILED;
    }
    uint64_t base = (uint64_t)region, at = base + PAGE;
    borrowed->region = base;
    mail->fd = -1;
    fill_mail(hold, mail, base);
    int wrote = write_memory(hold->process->mem, at, mail, sizeof *mail) == 0 &&
                write_memory(hold->process->mem, base, payload, (size_t)(payload_end - payload)) == 0;
    long copied = wrote && library >= 0 ? copy_library(hold, mail, base, library) : 0;
    if (wrote && !copied && library >= 0)
        wrote = write_memory(hold->process->mem, at, mail, sizeof *mail) == 0;
    if (!wrote || copied) {
        snprintf(borrowed->problem, sizeof borrowed->problem, "the library could not be put into the process: %s",
                 copied ? strerror((int)-copied) : "its memory cannot be written");
        remote_call(hold, SYS_munmap, base, REGION_BYTES, 0, 0, 0, 0);
        return BORROW_FAILED;
    }
    if (run_payload(hold, base) < 0) {
        borrowed->abandoned = 1;
        return BORROW_GONE;
    }
    if (read_memory(hold->process->mem, at + offsetof(struct mail, created), &mail->created, 4) < 0 || mail->created != 0) {
        snprintf(borrowed->problem, sizeof borrowed->problem, "no thread could be made in the process: %s", strerror(mail->created));
        if (mail->fd >= 0)
            remote_call(hold, SYS_close, (uint64_t)mail->fd, 0, 0, 0, 0, 0);
        remote_call(hold, SYS_munmap, base, REGION_BYTES, 0, 0, 0, 0);
        return BORROW_FAILED;
    }
    return BORROW_STARTED;
}

static int is_safe(struct hold *hold, const struct place *place)
{
    unsigned char instruction[2];
    if (ptrace(PTRACE_GETREGS, hold->tid, NULL, &hold->before) < 0)
        return 0;
    int anew = begins_anew(&hold->before);
    hold->syscall = hold->before.rip - 2;
    if (!anew || hold->before.cs != 0x33 || read_memory(hold->process->mem, hold->syscall, instruction, 2) < 0 || instruction[0] != 0x0f ||
        instruction[1] != 0x05 || hold->before.rsp < hold->stack.start ||
        place_of_stack(place, hold->process, hold->before.rsp, hold->stack.end) != PLACE_SAFE) {
        if (anew)
            ptrace(PTRACE_SETREGS, hold->tid, NULL, &hold->before);
        return 0;
    }
    return 1;
}

static void refuse_by_seccomp(const struct hold *hold)
{
    int unknown = 0;
    const char *name = hold->process->seccomp == 2 ? seccomp_forbids(hold->tid, &unknown) : NULL;
    if (name || unknown)
        let_go(hold->tid);
    if (name)
        refuse("seccomp", "start it with: gpuprof-tui run -- CMD", "its seccomp filter ends it for %s, which loading a library takes", name);
    if (unknown)
        refuse("seccomp", "sudo", "it has a seccomp filter, which only root can look at");
}

enum borrow_result borrow(const struct process *process, const struct place *place, pid_t tid, struct range stack, struct mail *mail,
                          int library, struct borrowed *borrowed)
{
    static struct hold hold;
    memset(&hold, 0, sizeof hold);
    hold.process = process;
    hold.tid = tid;
    hold.stack = stack;
    if (ptrace(PTRACE_SEIZE, tid, NULL, (void *)PTRACE_O_TRACESYSGOOD) < 0) {
        if (errno == ESRCH)
            return BORROW_GONE;
        process_refuse_ptrace(process->pid, errno);
    }
    int signal;
    hold.since_us = now_us();
    ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
    enum stop stop = wait_stop(tid, hold.since_us + STOP_US, &signal);
    if (stop == STOP_LATE) /* the end of this program lets it go, whether it stops by then or not */
        refuse("busy", "try again", "thread %d does not stop (is the process frozen?)", (int)tid);
    if (stop != STOP_EVENT) {
        if (stop == STOP_SIGNAL)
            ptrace(PTRACE_DETACH, tid, NULL, (void *)(intptr_t)signal);
        else
            let_go(tid);
        return stop == STOP_ENDED ? BORROW_GONE : BORROW_UNSAFE;
    }
    if (!is_safe(&hold, place) || save(&hold) < 0) {
        let_go(tid);
        return BORROW_UNSAFE;
    }
    refuse_by_seccomp(&hold);
    uint64_t held_back = ~(1ull << (SIGNAL_SETXID - 1));
    ptrace(PTRACE_SETSIGMASK, tid, (void *)sizeof held_back, &held_back);
    enum borrow_result result = with_thread(&hold, mail, library, borrowed);
    put_back(&hold);
    let_go(tid);
    borrowed->stopped_us = now_us() - hold.since_us;
    return result;
}
