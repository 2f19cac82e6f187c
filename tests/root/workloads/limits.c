// Waits with and without a time limit, each in a thread of its name, begun when a byte comes from the input; and a
// sleep before a time of CPU use.
//   limits    0.3 s long: those whose name begins with "due_" end by their limit, those with "let_" by the thread
//             "helper", long before their limit
//   burner    waits for one more byte, uses a CPU until the next has come, sleeps for 0.2 s; prints when the first wait
//             began and ended, and then how much longer than its CPU time the use of the CPU took, in ns
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHORT_NS 300000000L
#define LONG_MS 20000

static uint32_t words[4];
static int poll_pipe[2], epoll_pipe[2], read_pipe[2];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition;

static long now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static struct timespec spec_of(long ns) {
    struct timespec t = {ns / 1000000000L, ns % 1000000000L};
    return t;
}

static void due_nanosleep(void) {
    struct timespec length = spec_of(SHORT_NS);
    syscall(SYS_nanosleep, &length, NULL);
}

static void due_until(void) {
    struct timespec moment = spec_of(now_ns(CLOCK_MONOTONIC) + SHORT_NS);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL);
}

static void due_poll(void) {
    struct pollfd one = {poll_pipe[0], 0, 0};
    poll(&one, 1, SHORT_NS / 1000000);
}

static void due_epoll(void) {
    struct epoll_event event;
    epoll_wait(epoll_create1(0), &event, 1, SHORT_NS / 1000000);
}

static void due_futex(void) {
    struct timespec length = spec_of(SHORT_NS);
    syscall(SYS_futex, &words[0], FUTEX_WAIT_PRIVATE, 0, &length, NULL, 0);
}

static void due_condition(void) {
    struct timespec moment = spec_of(now_ns(CLOCK_MONOTONIC) + SHORT_NS);
    pthread_mutex_lock(&mutex);
    pthread_cond_timedwait(&condition, &mutex, &moment);
    pthread_mutex_unlock(&mutex);
}

static void let_poll(void) {
    struct pollfd one = {poll_pipe[0], POLLIN, 0};
    poll(&one, 1, LONG_MS);
}

static void let_epoll(void) {
    struct epoll_event event = {EPOLLIN, {0}};
    int fd = epoll_create1(0);
    epoll_ctl(fd, EPOLL_CTL_ADD, epoll_pipe[0], &event);
    epoll_wait(fd, &event, 1, LONG_MS);
}

static void let_futex(void) {
    struct timespec length = spec_of(LONG_MS * 1000000L);
    syscall(SYS_futex, &words[1], FUTEX_WAIT_PRIVATE, 0, &length, NULL, 0);
}

static void let_forever(void) { syscall(SYS_futex, &words[2], FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0); }

static void let_read(void) {
    char byte;
    if (read(read_pipe[0], &byte, 1) < 0)
        perror("read");
}

static void helper(void) {
    struct timespec length = spec_of(SHORT_NS);
    nanosleep(&length, NULL);
    int done = write(poll_pipe[1], "x", 1) + write(epoll_pipe[1], "x", 1) + write(read_pipe[1], "x", 1);
    for (int i = 1; i <= 2; i++) {
        words[i] = (uint32_t)done;
        syscall(SYS_futex, &words[i], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"due_nanosleep", due_nanosleep}, {"due_until", due_until}, {"due_poll", due_poll}, {"due_epoll", due_epoll},
    {"due_futex", due_futex}, {"due_condition", due_condition}, {"let_poll", let_poll}, {"let_epoll", let_epoll},
    {"let_futex", let_futex}, {"let_forever", let_forever}, {"let_read", let_read}, {"helper", helper},
};
#define PARTS (sizeof(parts) / sizeof(parts[0]))

static void *begin(void *number) {
    prctl(PR_SET_NAME, parts[(intptr_t)number].name);
    parts[(intptr_t)number].run();
    return NULL;
}

static void burner(void) {
    struct timespec end = spec_of(200000000L);
    struct pollfd input = {0, POLLIN, 0};
    char byte;
    long began = now_ns(CLOCK_MONOTONIC);
    if (read(0, &byte, 1) != 1)
        return;
    long woke = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_THREAD_CPUTIME_ID);
    printf("%ld %ld\n", began, woke);
    fflush(stdout);
    while (poll(&input, 1, 0) == 0) {
    }
    long more = now_ns(CLOCK_MONOTONIC) - woke - (now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu);
    printf("%ld\n", more);
    fflush(stdout);
    nanosleep(&end, NULL);
}

int main(int argc, char **argv) {
    char byte;
    pthread_t threads[PARTS];
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&condition, &monotonic);
    if (pipe(poll_pipe) || pipe(epoll_pipe) || pipe(read_pipe))
        return 1;
    puts("ready");
    fflush(stdout);
    if (read(0, &byte, 1) != 1)
        return 1;
    if (argc > 1 && !strcmp(argv[1], "burner")) {
        burner();
        return 0;
    }
    for (size_t i = 0; i < PARTS; i++)
        pthread_create(&threads[i], NULL, begin, (void *)(intptr_t)i);
    for (size_t i = 0; i < PARTS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
