/* Whether a thread is at a place where it may be borrowed (attach.h): it waits in a system call that the kernel begins anew without the
 * program noticing, and nothing on its stack is in the middle of what pthread_create itself needs: the allocator, the loader, fork.
 *
 * Every function that a thread is in has a return address on its stack, so looking at all words misses none; a word that is left over from
 * before, or a number that looks like an address, only makes us choose another thread.
 */
#define _GNU_SOURCE
#include "attach.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_UNSAFE 256
#define MAX_STACK (1u << 20)
#define STACK_PIECE 65536u

static void add(struct place *place, struct range range)
{
    if (range.start < range.end && place->count < MAX_UNSAFE)
        place->unsafe[place->count++] = range;
}

static void add_text(struct place *place, const struct module *module)
{
    for (int i = 0; i < module->texts; i++)
        add(place, module->text[i]);
}

void place_open(struct place *place, const struct process *process)
{
    static const char *const functions[] = {"fork",        "_Fork",           "vfork",          "pthread_create", "pthread_exit", "posix_spawn",
                                            "posix_spawnp", "dl_iterate_phdr", "pthread_atfork", "dlopen",         "dlclose",      "system",
                                            "popen",  "setuid",          "setgid",         "setreuid",       "setregid",     "setresuid",
                                            "setresgid", "seteuid",        "setegid",        "setgroups",      "initgroups"};
    static const char *const allocators[] = {"libjemalloc", "libtcmalloc", "libmimalloc", "libtbbmalloc", "libsnmalloc", "libhoard"};
    const struct image *image = &process->image;
    place->unsafe = calloc(MAX_UNSAFE, sizeof *place->unsafe);
    place->count = 0;
    int libc_found = 0;
    for (int i = 0; i < image->count && place->unsafe; i++) {
        const struct module *module = &image->modules[i];
        int is_libc = strncmp(module->name, "libc.so.6", 9) == 0 || strncmp(module->name, "libc-2.", 7) == 0;
        int is_threads = strncmp(module->name, "libpthread", 10) == 0;
        int whole = strncmp(module->name, "ld-", 3) == 0;
        for (size_t k = 0; k < sizeof allocators / sizeof *allocators; k++)
            whole |= strncmp(module->name, allocators[k], strlen(allocators[k])) == 0;
        if (!is_libc && !whole && module->texts) /* whoever else defines malloc is the program's allocator */
            whole = image_symbol(process->mem, module, "malloc").start != 0;
        if (whole)
            add_text(place, module);
        for (size_t k = 0; k < sizeof functions / sizeof *functions && (is_libc || is_threads); k++)
            add(place, image_symbol(process->mem, module, functions[k]));
        if (is_libc) {
            struct range allocator = image_allocator(process->mem, module);
            add(place, allocator);
            libc_found |= allocator.start != 0;
        }
    }
    if (!libc_found || place->count == MAX_UNSAFE || image->count == MAX_MODULES)
        refuse("libc", "", "the allocator of its C library is not to be found, so that no thread can be told to be outside of it");
}

/* ---- system calls ------------------------------------------------------------------------------------------------------------------- */

/* Waiting calls that are begun anew after a stop, the least noticeable first; those from EPOLL on would be told to return EINTR, which
 * borrow.c turns into a new beginning. */
static const struct {
    long number;
    int rank;
} calls[] = {
    {SYS_futex, 0},          {SYS_poll, 1},         {SYS_ppoll, 1},        {SYS_select, 2},   {SYS_pselect6, 2},
    {SYS_clock_nanosleep, 3}, {SYS_nanosleep, 3}, {SYS_restart_syscall, 3},    {SYS_wait4, 4},        {SYS_waitid, 4},   {SYS_pause, 4},
    {SYS_rt_sigsuspend, 5},  {SYS_read, 6},         {SYS_recvfrom, 6},     {SYS_recvmsg, 6},  {SYS_accept, 6},
    {SYS_accept4, 6},        {SYS_epoll_wait, 7},   {SYS_epoll_pwait, 7},  {SYS_epoll_pwait2, 7}, {SYS_rt_sigtimedwait, 8},
};

static int rank_of(long number)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (calls[i].number == number)
            return calls[i].rank;
    return -1;
}

int place_call_is_known(long number) { return rank_of(number) >= 0; }

/* A pipe, socket, terminal or event counter: other files, such as those of a driver or of FUSE, may take a stop for a reason to fail. */
static int reads_quietly(pid_t pid, uint64_t fd)
{
    static const char *const kinds[] = {"pipe:", "socket:", "anon_inode:[event", "anon_inode:[timerfd]", "/dev/pts/", "/dev/tty", "/dev/console"};
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, (int)fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length <= 0)
        return 0;
    target[length] = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strncmp(target, kinds[i], strlen(kinds[i])) == 0)
            return 1;
    return 0;
}

enum verdict place_of_call(const struct process *process, pid_t tid, int *rank, uint64_t *stack_pointer)
{
    char path[80], text[256];
    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", (int)process->pid, (int)tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return PLACE_UNREADABLE;
    text[length] = 0;
    long number;
    uint64_t argument[6], at;
    int found = sscanf(text, "%ld %lx %lx %lx %lx %lx %lx %lx %lx", &number, &argument[0], &argument[1], &argument[2], &argument[3],
                       &argument[4], &argument[5], stack_pointer, &at);
    if (found < 1)
        return PLACE_RUNNING;
    *rank = rank_of(number);
    if (found != 9 || *rank < 0)
        return PLACE_OTHER_CALL;
    int operation = (int)argument[1] & ~(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME);
    if (number == SYS_futex && operation != FUTEX_WAIT && operation != FUTEX_WAIT_BITSET)
        return PLACE_OTHER_CALL;
    if ((number == SYS_read || number == SYS_recvfrom || number == SYS_recvmsg) && !reads_quietly(process->pid, argument[0]))
        return PLACE_OTHER_CALL;
    return PLACE_SAFE;
}

/* ---- the stack ------------------------------------------------------------------------------------------------------------------------ */

/* Whether the instruction before an address is a call, so that it can be where a function returns to. */
static int follows_a_call(int mem, uint64_t address)
{
    unsigned char before[7];
    if (read_memory(mem, address - sizeof before, before, sizeof before) < 0)
        return 1;
    const unsigned char *end = before + sizeof before;
    if (end[-5] == 0xe8)
        return 1;
    for (int length = 2; length <= 7; length++) /* ff /2, with whatever addressing */
        if (end[-length] == 0xff && (end[-length + 1] >> 3 & 7) == 2)
            return 1;
    return 0;
}

static int is_unsafe(const struct place *place, int mem, uint64_t word)
{
    for (int i = 0; i < place->count; i++)
        if (place->unsafe[i].start < word && word <= place->unsafe[i].end)
            return follows_a_call(mem, word);
    return 0;
}

enum verdict place_of_stack(const struct place *place, const struct process *process, uint64_t stack_pointer, uint64_t end)
{
    uint64_t words[STACK_PIECE / 8];
    if (stack_pointer % 8 || stack_pointer >= end || end - stack_pointer > MAX_STACK)
        return PLACE_UNREADABLE;
    for (uint64_t at = stack_pointer; at < end; at += STACK_PIECE) {
        size_t size = end - at < STACK_PIECE ? end - at : STACK_PIECE;
        if (read_memory(process->mem, at, words, size) < 0)
            return PLACE_UNREADABLE;
        for (size_t i = 0; i < size / 8; i++)
            if (is_unsafe(place, process->mem, words[i]))
                return PLACE_LOCKED;
    }
    return PLACE_SAFE;
}
