// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// When the time limit of a system call will have passed: what ended a wait whose wake was not seen.

// System calls of x86-64 with a time limit that can be read where they begin.
#define SYSCALL_POLL 7
#define SYSCALL_NANOSLEEP 35
#define SYSCALL_FUTEX 202
#define SYSCALL_CLOCK_NANOSLEEP 230
#define SYSCALL_EPOLL_WAIT 232
#define SYSCALL_EPOLL_PWAIT 281
#define FUTEX_OPERATION 127
#define FUTEX_WAIT_FOR 0      // a length of time
#define FUTEX_WAIT_UNTIL 9    // FUTEX_WAIT_BITSET: a moment
#define FUTEX_WALL_CLOCK 256  // FUTEX_CLOCK_REALTIME
#define MONOTONIC_CLOCK 1
#define MAX_LIMIT_S (1ull << 32)

struct limit {
    u64 seconds;
    u64 nanoseconds;
};

static __always_inline int is_sleep(struct walk *w) {
    return w->syscall == SYSCALL_NANOSLEEP || w->syscall == SYSCALL_CLOCK_NANOSLEEP;
}

// When the time limit of the system call that the current thread begins to wait in will have passed; 0: it has none, or
// it cannot be told.
static __always_inline u64 due_of_syscall(struct walk *w, u64 now) {
    u64 *arguments = w->arguments;
    u64 address = 0;
    s32 milliseconds = 0;
    int until = 0;
    if (w->syscall == SYSCALL_NANOSLEEP) {
        address = arguments[0];
    } else if (w->syscall == SYSCALL_CLOCK_NANOSLEEP) {
        until = arguments[1] & 1;  // TIMER_ABSTIME
        if (until && arguments[0] != MONOTONIC_CLOCK)
            return 0;
        address = arguments[2];
    } else if (w->syscall == SYSCALL_FUTEX) {
        u32 operation = arguments[1] & FUTEX_OPERATION;
        until = operation == FUTEX_WAIT_UNTIL;
        if ((operation != FUTEX_WAIT_FOR && !until) || arguments[1] & FUTEX_WALL_CLOCK)
            return 0;
        address = arguments[3];
    } else if (w->syscall == SYSCALL_POLL) {
        milliseconds = arguments[2];
    } else if (w->syscall == SYSCALL_EPOLL_WAIT || w->syscall == SYSCALL_EPOLL_PWAIT) {
        milliseconds = arguments[3];
    }
    if (milliseconds > 0)
        return now + milliseconds * 1000000ull;
    struct limit limit = {};
    if (!address || bpf_probe_read_user(&limit, sizeof(limit), (void *)address))
        return 0;
    if (limit.seconds >= MAX_LIMIT_S || limit.nanoseconds >= 1000000000)
        return 0;
    u64 ns = limit.seconds * 1000000000ull + limit.nanoseconds;
    if (!until)
        return now + ns;
    return ns > now ? ns : 0;  // in a time namespace the clock may be another
}
