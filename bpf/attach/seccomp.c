/* Whether the system call filters of a thread would end it for what we and the library do (attach.h): its filters are read by ptrace and
 * run here, on the calls in question. A filter that answers with an error is no obstacle, since C library and library cope with that. */
#define _GNU_SOURCE
#include "attach.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#define MAX_FILTERS 64
#define MAX_INSTRUCTIONS 4096 /* BPF_MAXINSNS */
#define GET_FILTER 0x420c     /* PTRACE_SECCOMP_GET_FILTER */

static const struct {
    const char *name;
    int number;
    uint64_t arguments[4];
} calls[] = {
    {"mmap", SYS_mmap, {0, PAGE, 5, 0x22}},
    {"munmap", SYS_munmap, {0, PAGE, 0, 0}},
    {"mprotect", SYS_mprotect, {0, PAGE, 3, 0}},
    {"madvise", SYS_madvise, {0, PAGE, 10, 0}},
    {"clone", SYS_clone, {0x3d0f00, 0, 0, 0}},
    {"clone3", SYS_clone3, {0}},
    {"rt_sigprocmask", SYS_rt_sigprocmask, {2, 0, 0, 8}},
    {"set_robust_list", SYS_set_robust_list, {0}},
    {"rseq", SYS_rseq, {0}},
    {"getpid", SYS_getpid, {0}},
    {"nanosleep", SYS_nanosleep, {0}},
    {"futex", SYS_futex, {0, 128, 0, 0}},
    {"openat", SYS_openat, {0}},
    {"read", SYS_read, {3, 0, 832, 0}},
    {"close", SYS_close, {3, 0, 0, 0}},
    {"newfstatat", SYS_newfstatat, {0}},
    {"fstat", SYS_fstat, {0}},
    {"memfd_create", SYS_memfd_create, {0}},
    {"ftruncate", SYS_ftruncate, {0}},
    {"fcntl", SYS_fcntl, {0}},
    {"prctl", SYS_prctl, {15, 0, 0, 0}},
    {"exit", SYS_exit, {0}},
};

static uint32_t load(const struct seccomp_data *data, uint32_t offset)
{
    uint32_t word = 0;
    if (offset <= sizeof *data - 4)
        memcpy(&word, (const char *)data + offset, 4);
    return word;
}

static uint32_t plain_load(const struct sock_filter *f, const uint32_t memory[BPF_MEMWORDS])
{
    switch (BPF_MODE(f->code)) {
    case BPF_MEM: return memory[f->k % BPF_MEMWORDS];
    case BPF_LEN: return (uint32_t)sizeof(struct seccomp_data);
    default: return f->k;
    }
}

/* The classic BPF machine, as far as the kernel lets seccomp use it. */
static uint32_t run(const struct sock_filter *code, size_t count, const struct seccomp_data *data)
{
    uint32_t a = 0, x = 0, memory[BPF_MEMWORDS] = {0};
    for (size_t at = 0, steps = 0; at < count && steps < MAX_INSTRUCTIONS; at++, steps++) {
        const struct sock_filter *f = &code[at];
        uint32_t operand = BPF_SRC(f->code) == BPF_X ? x : f->k, slot = f->k % BPF_MEMWORDS;
        switch (BPF_CLASS(f->code)) {
        case BPF_RET: return BPF_RVAL(f->code) == BPF_A ? a : f->k;
        case BPF_LD: a = BPF_MODE(f->code) == BPF_ABS ? load(data, f->k) : plain_load(f, memory); break;
        case BPF_LDX: x = plain_load(f, memory); break;
        case BPF_ST: memory[slot] = a; break;
        case BPF_STX: memory[slot] = x; break;
        case BPF_MISC:
            if (BPF_MISCOP(f->code) == BPF_TAX)
                x = a;
            else
                a = x;
            break;
        case BPF_ALU:
            switch (BPF_OP(f->code)) {
            case BPF_ADD: a += operand; break;
            case BPF_SUB: a -= operand; break;
            case BPF_MUL: a *= operand; break;
            case BPF_DIV: a = operand ? a / operand : 0; break;
            case BPF_AND: a &= operand; break;
            case BPF_OR: a |= operand; break;
            case BPF_XOR: a ^= operand; break;
            case BPF_LSH: a = operand < 32 ? a << operand : 0; break;
            case BPF_RSH: a = operand < 32 ? a >> operand : 0; break;
            case BPF_NEG: a = (uint32_t)-(int32_t)a; break;
            default: return SECCOMP_RET_KILL_PROCESS;
            }
            break;
        case BPF_JMP: {
            int yes = 1;
            switch (BPF_OP(f->code)) {
            case BPF_JA: at += f->k; continue;
            case BPF_JEQ: yes = a == operand; break;
            case BPF_JGT: yes = a > operand; break;
            case BPF_JGE: yes = a >= operand; break;
            case BPF_JSET: yes = (a & operand) != 0; break;
            default: return SECCOMP_RET_KILL_PROCESS;
            }
            at += yes ? f->jt : f->jf;
            break;
        }
        default: return SECCOMP_RET_KILL_PROCESS;
        }
    }
    return SECCOMP_RET_KILL_PROCESS;
}

static const char *forbidden_by(const struct sock_filter *code, size_t count)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct seccomp_data data = {.nr = calls[i].number, .arch = AUDIT_ARCH_X86_64};
        for (size_t k = 0; k < 4; k++)
            data.args[k] = calls[i].arguments[k];
        uint32_t action = run(code, count, &data) & SECCOMP_RET_ACTION_FULL;
        if (action == SECCOMP_RET_KILL_PROCESS || action == SECCOMP_RET_KILL_THREAD || action == SECCOMP_RET_TRAP)
            return calls[i].name;
    }
    return NULL;
}

const char *seccomp_forbids(pid_t tid, int *unknown)
{
    static struct sock_filter code[MAX_INSTRUCTIONS];
    *unknown = 0;
    for (long index = 0; index < MAX_FILTERS; index++) {
        errno = 0;
        long count = ptrace(GET_FILTER, tid, index, NULL);
        if (count < 0 && errno == ENOENT)
            return NULL;
        if (count <= 0 || count > MAX_INSTRUCTIONS || ptrace(GET_FILTER, tid, index, code) != count)
            break;
        const char *name = forbidden_by(code, (size_t)count);
        if (name)
            return name;
    }
    *unknown = 1;
    return NULL;
}
