// Stands in for bcc's map syntax and the kernel's helpers, so that the BPF unwinder compiles as an ordinary program.
// Memory of "the process" is either what was recorded of one, or that of a living one (process_vm_readv).
#pragma once
#define _GNU_SOURCE
#include <stdbool.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))

// ------------------------------------------------------------------------------------------------------------- helpers

struct region {
    u64 start;
    u64 size;
    const u8 *bytes;
};
static const struct region *memory;  // sorted by start, not touching each other
static u64 memory_count;
static pid_t living;  // nonzero: memory of this process instead

#define MAX_READS 65536
struct logged_read {
    u64 address;
    u64 size;
};
static struct logged_read reads[MAX_READS];
static u32 read_count;

static int read_recorded(void *to, u64 size, u64 address) {
    u64 low = 0, high = memory_count;
    while (low < high) {
        u64 middle = (low + high) / 2;
        if (memory[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low || address - memory[low - 1].start >= memory[low - 1].size)
        return -1;
    const struct region *found = &memory[low - 1];
    if (size > found->size - (address - found->start))
        return -1;
    memcpy(to, found->bytes + (address - found->start), size);
    return 0;
}

// As the kernel's: what cannot be read whole is zeroes and an error.
static long bpf_probe_read_user(void *to, u32 size, const void *from) {
    u64 address = (u64)from;
    if (living) {
        struct iovec ours = {to, size}, theirs = {(void *)from, size};
        if (address < 1ull << 47 && process_vm_readv(living, &ours, 1, &theirs, 1, 0) == (ssize_t)size) {
            if (read_count < MAX_READS)
                reads[read_count++] = (struct logged_read){address, size};
            return 0;
        }
    } else if (!read_recorded(to, size, address)) {
        return 0;
    }
    memset(to, 0, size);
    return -14;
}

struct fake_task {
    u64 fsbase, group_leader, start_boottime;
};
static struct fake_task current_task;
#define TASK_FSBASE 0
#define TASK_GROUP_LEADER 8
#define TASK_START_BOOTTIME 16
#define HAVE_TASK_PT_REGS 1

static long bpf_probe_read_kernel(void *to, u32 size, const void *from) {
    memcpy(to, from, size);
    return 0;
}

static u64 now_ns = 1000000000;
static u32 current_pid, current_tid;
static u64 bpf_ktime_get_ns(void) { return now_ns += 1000; }
static u64 bpf_ktime_get_boot_ns(void) { return now_ns; }
static u64 bpf_get_current_pid_tgid(void) { return (u64)current_pid << 32 | current_tid; }
static u64 bpf_get_current_uid_gid(void) { return 0; }
static u32 bpf_get_smp_processor_id(void) { return 0; }
static long bpf_get_current_comm(void *to, u32 size) {
    memset(to, 0, size);
    return 0;
}
static u64 bpf_get_current_task(void) { return (u64)&current_task; }
static u64 bpf_get_current_task_btf(void) { return (u64)&current_task; }
static void *bpf_task_pt_regs(void *task) {
    (void)task;
    return NULL;  // registers are always given
}

// ---------------------------------------------------------------------------------------------------------------- maps
// bcc writes map.lookup(&key): here a map is a struct of functions of that name.

// Arrays that user space fills: their memory is given by the caller.
#define BPF_F_TABLE(type, K, V, name, n, flags)                                                                        \
    static V *name##_elements;                                                                                         \
    static u64 name##_count;                                                                                           \
    static V *name##_lookup(K *key) {                                                                                  \
        return (u64)*key < name##_count ? &name##_elements[*key] : NULL;                                               \
    }                                                                                                                  \
    static const struct { V *(*lookup)(K *); } name __attribute__((unused)) = {name##_lookup}

#define BPF_PERCPU_ARRAY(name, V, n)                                                                                   \
    static V name##_elements[n];                                                                                       \
    static V *name##_lookup(int *key) { return (u64)*key < (u64)(n) ? &name##_elements[*key] : NULL; }                 \
    static const struct { V *(*lookup)(int *); } name __attribute__((unused)) = {name##_lookup}

#define BPF_ARRAY(name, V, n) BPF_PERCPU_ARRAY(name, V, n)

// Hashes: a few entries, the oldest is overwritten.
#define HASH_ENTRIES 64
#define BPF_HASH(name, K, V, n)                                                                                        \
    static struct { K key; V value; bool used; } name##_entries[HASH_ENTRIES];                                         \
    static u32 name##_next;                                                                                            \
    static V *name##_lookup(K *key) {                                                                                  \
        for (u32 i = 0; i < HASH_ENTRIES; i++)                                                                         \
            if (name##_entries[i].used && !memcmp(&name##_entries[i].key, key, sizeof *key))                           \
                return &name##_entries[i].value;                                                                       \
        return NULL;                                                                                                   \
    }                                                                                                                  \
    static int name##_update(K *key, V *value) {                                                                       \
        V *known = name##_lookup(key);                                                                                 \
        if (!known) {                                                                                                  \
            u32 slot = name##_next++ % HASH_ENTRIES;                                                                   \
            name##_entries[slot].key = *key;                                                                           \
            name##_entries[slot].used = true;                                                                          \
            known = &name##_entries[slot].value;                                                                       \
        }                                                                                                              \
        *known = *value;                                                                                               \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static int name##_delete(K *key) {                                                                                 \
        for (u32 i = 0; i < HASH_ENTRIES; i++)                                                                         \
            if (name##_entries[i].used && !memcmp(&name##_entries[i].key, key, sizeof *key)) {                         \
                name##_entries[i].used = false;                                                                        \
                return 0;                                                                                              \
            }                                                                                                          \
        return -2;                                                                                                     \
    }                                                                                                                  \
    static const struct { V *(*lookup)(K *); int (*update)(K *, V *); int (*delete)(K *); }                            \
        name __attribute__((unused)) = {name##_lookup, name##_update, name##_delete}
#define BPF_TABLE(type, K, V, name, n) BPF_HASH(name, K, V, n)

// Rings: what was put in last.
#define RING_BYTES (1 << 16)
#define BPF_RINGBUF_OUTPUT(name, pages)                                                                                \
    static u64 name##_last[RING_BYTES / 8];                                                                            \
    static u64 name##_size;                                                                                            \
    static int name##_output(void *data, u64 size, u64 flags) {                                                        \
        (void)flags;                                                                                                   \
        if (size > RING_BYTES)                                                                                         \
            return -7;                                                                                                 \
        memcpy(name##_last, data, size);                                                                               \
        name##_size = size;                                                                                            \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static const struct { int (*ringbuf_output)(void *, u64, u64); } name __attribute__((unused)) = {name##_output}

#define BPF_PROG_ARRAY(name, n) struct name##_has_no_use_here

// Sizes that the loader gives.
#define FRAMES_PER_PROGRAM 32
#define PYTHON_FRAMES_PER_PROGRAM 128
