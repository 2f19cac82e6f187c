/* gpuprof_attach [--any] [--check] PID LIBRARY FUNCTION: has process PID load LIBRARY and call FUNCTION, an int (*)(void) whose result is 0
 * where all is well (attach.h).
 *
 * Writes one line, of words between tabs: "loaded", the thread that was borrowed, for how many microseconds, "path" or "memory"; or
 * "refused", a code, the reason, the next step. Exit code 0 or 1 accordingly; 2 for wrong usage. --any: also where CUDA is not in use, or the library
 * is there already.
 * --check: only say whether something speaks against it ("possible").
 */
#define _GNU_SOURCE
#include "attach.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define SEARCH_US 3000000u /* for a thread that may be borrowed */
#define LOAD_US 10000000u  /* from then on */
#define ROUND_US 20000u
#define MAX_THREADS 4096
#define TRIES_A_ROUND 16

uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

void sleep_us(unsigned us)
{
    struct timespec t = {.tv_sec = us / 1000000u, .tv_nsec = (long)(us % 1000000u) * 1000};
    nanosleep(&t, NULL);
}

void refuse(const char *code, const char *hint, const char *format, ...)
{
    char reason[512];
    va_list list;
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    for (char *c = reason; *c; c++)
        if (!isprint((unsigned char)*c))
            *c = '?';
    printf("refused\t%s\t%s\t%s\n", code, reason, hint);
    exit(1);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------------------------------- */

struct candidate {
    pid_t tid;
    int rank;
    uint64_t stack_pointer;
};

static int by_rank(const void *a, const void *b)
{
    const struct candidate *first = a, *second = b;
    return first->rank != second->rank ? first->rank - second->rank : second->tid - first->tid; /* the first thread is the last choice */
}

static int find_candidates(const struct process *process, struct candidate *candidates, int counts[PLACE_VERDICTS])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)process->pid);
    DIR *tasks = opendir(path);
    if (!tasks)
        refuse("gone", "", "process %d has ended meanwhile", (int)process->pid);
    int count = 0, seen = 0;
    memset(counts, 0, PLACE_VERDICTS * sizeof *counts);
    for (struct dirent *entry; (entry = readdir(tasks)) && seen < MAX_THREADS;) {
        struct candidate candidate = {.tid = (pid_t)strtol(entry->d_name, NULL, 10)};
        if (candidate.tid <= 0)
            continue;
        enum verdict verdict = place_of_call(process, candidate.tid, &candidate.rank, &candidate.stack_pointer);
        seen++;
        if (verdict == PLACE_SAFE)
            candidates[count++] = candidate;
        else
            counts[verdict]++;
    }
    closedir(tasks);
    qsort(candidates, (size_t)count, sizeof *candidates, by_rank);
    return count;
}

__attribute__((noreturn)) static void refuse_busy(const int counts[PLACE_VERDICTS])
{
    refuse("busy", "try again",
           "in %u s no thread was at a place where it may be borrowed (%d running, %d in other system calls, %d in the allocator or the "
           "loader, %d not to be read)",
           SEARCH_US / 1000000u, counts[PLACE_RUNNING], counts[PLACE_OTHER_CALL], counts[PLACE_LOCKED], counts[PLACE_UNREADABLE]);
}

static pid_t start_load(const struct process *process, const struct place *place, struct mail *mail, int library, struct borrowed *borrowed)
{
    static struct candidate candidates[MAX_THREADS];
    static struct mappings mappings;
    int counts[PLACE_VERDICTS];
    uint64_t until = now_us() + SEARCH_US;
    do {
        int count = find_candidates(process, candidates, counts);
        if (count && image_mappings(&mappings, process->pid) < 0)
            refuse("gone", "", "process %d has ended meanwhile", (int)process->pid);
        for (int i = 0, tries = 0; i < count && tries < TRIES_A_ROUND; i++) {
            const struct candidate *candidate = &candidates[i];
            struct range stack = image_mapping(&mappings, candidate->stack_pointer);
            enum verdict verdict = place_of_stack(place, process, candidate->stack_pointer, stack.end);
            counts[verdict] += verdict != PLACE_SAFE;
            if (verdict != PLACE_SAFE)
                continue;
            tries++;
            enum borrow_result result = borrow(process, place, candidate->tid, stack, mail, library, borrowed);
            if (result == BORROW_STARTED || (result == BORROW_GONE && borrowed->region)) /* perhaps started: the mail will tell */
                return candidate->tid;
            if (result == BORROW_FAILED)
                refuse("failed", "", "%s", borrowed->problem);
        }
        sleep_us(ROUND_US);
    } while (now_us() < until);
    refuse_busy(counts);
}

/* ---- waiting ------------------------------------------------------------------------------------------------------------------------------ */

static void wait_for_load(const struct process *process, struct mail *mail, const struct borrowed *borrowed)
{
    uint64_t at = borrowed->region + PAGE, until = now_us() + LOAD_US;
    static const uint32_t read_it = 1;
    do {
        if (read_memory(process->mem, at, mail, offsetof(struct mail, xsave)) < 0)
            refuse("gone", "", "the process ended meanwhile");
        if (mail->state >= MAIL_LOADED)
            break;
        sleep_us(1000);
    } while (now_us() < until);
    if (mail->state < MAIL_LOADED)
        refuse("slow", "look again in a moment: it goes on by itself when it can",
               "the library is not loaded yet after %u s: another thread keeps the loader busy", LOAD_US / 1000000u);
    if (!borrowed->abandoned)
        write_memory(process->mem, at + offsetof(struct mail, ack), &read_it, sizeof read_it);
    mail->error[sizeof mail->error - 1] = 0;
    if (mail->state == MAIL_NOT_LOADED)
        refuse("not-loaded", "", "its loader refuses the library: %s", mail->error[0] ? mail->error : "it gives no reason");
    if (mail->state == MAIL_NO_SYMBOL)
        refuse("not-loaded", "", "the library has no function %s", mail->symbol);
    if (mail->started != 0)
        refuse("not-started", "", "the library could not start: %s", strerror(mail->started < 0 ? -mail->started : mail->started));
}

/* ---- the order of things -------------------------------------------------------------------------------------------------------------- */

static void lock(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC); /* stays open */
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        refuse("busy", "try again", "it is being attached to already");
}

/* A borrowed thread shall be put back, whatever happens to who started this, and to the pipe that the answer goes to. */
static void stay_until_done(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
}

int main(int count, char **arguments)
{
    int any = 0, check = 0;
    for (; count > 1 && strncmp(arguments[1], "--", 2) == 0; arguments++, count--) {
        any |= strcmp(arguments[1], "--any") == 0;
        check |= strcmp(arguments[1], "--check") == 0;
    }
    char *end = NULL;
    long pid = count == 4 ? strtol(arguments[1], &end, 10) : 0;
    if (pid <= 0 || pid > INT32_MAX || *end || arguments[2][0] != '/' || strlen(arguments[2]) >= PAGE || strlen(arguments[3]) >= 64) {
        fprintf(stderr, "usage: gpuprof_attach [--any] [--check] PID /PATH/TO/LIBRARY FUNCTION\n");
        return 2;
    }
    static struct process process;
    static struct place place;
    static struct mail mail;
    struct borrowed borrowed = {.problem = ""};
    if ((pid_t)pid == getpid())
        refuse("self", "", "process %ld is this program", pid);
    process_open(&process, (pid_t)pid, arguments[2], any);
    place_open(&place, &process);
    if (check) {
        printf("possible\n");
        return 0;
    }
    lock(process.pid);
    int seen = process_sees(&process, arguments[2]);
    int library = open(arguments[2], O_RDONLY | O_CLOEXEC);
    if (library < 0)
        refuse("library", "", "%s cannot be opened: %s", arguments[2], strerror(errno));
    const char *slash = strrchr(arguments[2], '/');
    snprintf(mail.path, sizeof mail.path, "%s", seen ? arguments[2] : slash + 1);
    snprintf(mail.symbol, sizeof mail.symbol, "%s", arguments[3]);
    mail.dlopen = process.call.dlopen, mail.dlsym = process.call.dlsym, mail.dlerror = process.call.dlerror;
    mail.pthread_create = process.call.pthread_create, mail.pthread_detach = process.call.pthread_detach, mail.munmap = process.call.munmap;
    mail.dlopen_flags = process.call.dlopen_flags;

    stay_until_done();
    pid_t thread = start_load(&process, &place, &mail, seen ? -1 : library, &borrowed);
    wait_for_load(&process, &mail, &borrowed);
    printf("loaded\t%d\t%llu\t%s\n", (int)thread, (unsigned long long)borrowed.stopped_us, seen ? "path" : "memory");
    return 0;
}
