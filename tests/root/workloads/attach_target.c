/* A process to be attached to over and over: each thread does one kind of thing, and counts what did not go as it would undisturbed. On a
 * line of standard input it answers "OPERATIONS ERRORS FIRST-ERROR", for each kind, and goes on; on the end of it, it exits.
 *
 * attach_target [KIND ...]: only these kinds of threads.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

struct kind {
    const char *name;
    void (*once)(struct kind *);
    unsigned long done, errors;
    char first[128];
};

static void wrong(struct kind *kind, const char *what, long value)
{
    if (!kind->errors++)
        snprintf(kind->first, sizeof kind->first, "%s:%ld:%s", what, value, strerrorname_np(errno));
}

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void allocate(struct kind *kind)
{
    unsigned char *blocks[64];
    for (size_t i = 0; i < 64; i++) {
        blocks[i] = malloc(16 + i * 997 % 5000);
        memset(blocks[i], (int)i, 16 + i * 997 % 5000);
    }
    for (size_t i = 0; i < 64; i++) {
        for (size_t k = 0; k < 16 + i * 997 % 5000; k += 15)
            if (blocks[i][k] != i)
                wrong(kind, "content", blocks[i][k]);
        free(blocks[i]);
    }
    struct timespec moment = {.tv_nsec = 500000};
    if (kind->done % 32 == 0 && nanosleep(&moment, NULL) != 0)
        wrong(kind, "nanosleep", -1);
}

static void wait_condition(struct kind *kind)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 7000000;
    if (until.tv_nsec >= 1000000000)
        until.tv_sec++, until.tv_nsec -= 1000000000;
    uint64_t began = now();
    pthread_mutex_lock(&mutex);
    int result = pthread_cond_timedwait(&never, &mutex, &until);
    pthread_mutex_unlock(&mutex);
    if (result != ETIMEDOUT)
        wrong(kind, "pthread_cond_timedwait", result);
    if (now() - began < 6000000)
        wrong(kind, "too soon", (long)(now() - began));
}

static void wait_epoll(struct kind *kind)
{
    int fd = epoll_create1(0);
    struct epoll_event event;
    int result = epoll_wait(fd, &event, 1, 5);
    if (result != 0)
        wrong(kind, "epoll_wait", result);
    close(fd);
}

static void wait_poll(struct kind *kind)
{
    struct pollfd never = {.fd = -1};
    uint64_t began = now();
    int result = poll(&never, 1, 5);
    if (result != 0)
        wrong(kind, "poll", result);
    if (now() - began < 5000000)
        wrong(kind, "too soon", (long)(now() - began));
}

static void wait_select(struct kind *kind)
{
    struct timeval moment = {.tv_usec = 5000};
    int result = select(0, NULL, NULL, NULL, &moment);
    if (result != 0)
        wrong(kind, "select", result);
}

/* With a mask of its own for the time of the wait. */
static void wait_ppoll(struct kind *kind)
{
    struct pollfd never = {.fd = -1};
    struct timespec moment = {.tv_nsec = 5000000};
    sigset_t mask, after;
    sigfillset(&mask);
    sigdelset(&mask, SIGUSR2);
    uint64_t began = now();
    int result = ppoll(&never, 1, &moment, &mask);
    if (result != 0)
        wrong(kind, "ppoll", result);
    if (now() - began < 5000000)
        wrong(kind, "too soon", (long)(now() - began));
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    if (!sigismember(&after, SIGUSR2))
        wrong(kind, "mask", 0);
}

static void wait_signal(struct kind *kind)
{
    struct timespec moment = {.tv_nsec = 5000000};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    int result = sigtimedwait(&set, NULL, &moment);
    if (result != -1 || errno != EAGAIN)
        wrong(kind, "sigtimedwait", result);
}

static void sleep_relative(struct kind *kind)
{
    struct timespec moment = {.tv_nsec = 6000000}, left = {0};
    uint64_t began = now();
    if (nanosleep(&moment, &left) != 0)
        wrong(kind, "nanosleep", left.tv_nsec);
    if (now() - began < 6000000)
        wrong(kind, "too soon", (long)(now() - began));
}

static void sleep_absolute(struct kind *kind)
{
    uint64_t until = now() + 6000000;
    struct timespec at = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
    int result = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    if (result != 0 || now() < until)
        wrong(kind, "clock_nanosleep", result);
}

/* All registers that a system call keeps hold values over a sleep. */
static void keep_registers(struct kind *kind)
{
    static const struct timespec moment = {.tv_nsec = 4000000};
    static const double in[4] = {1.25, -7.5, 3e300, 0x1p-1000};
    double out[4];
    uint64_t kept[6];
    long result;
    __asm__ volatile("movq (%[in]), %%xmm0\n\tmovq 8(%[in]), %%xmm7\n\tmovq 16(%[in]), %%xmm9\n\tmovq 24(%[in]), %%xmm15\n\t"
                     "movq $0x1111, %%r8\n\tmovq $0x2222, %%r9\n\tmovq $0x3333, %%r12\n\tmovq $0x4444, %%r13\n\tmovq $0x5555, %%r14\n\t"
                     "movq $0x6666, %%r15\n\tmovl $35, %%eax\n\tmovq %[moment], %%rdi\n\txorl %%esi, %%esi\n\tsyscall\n\t"
                     "movq %%xmm0, (%[out])\n\tmovq %%xmm7, 8(%[out])\n\tmovq %%xmm9, 16(%[out])\n\tmovq %%xmm15, 24(%[out])\n\t"
                     "movq %%r8, (%[kept])\n\tmovq %%r9, 8(%[kept])\n\tmovq %%r12, 16(%[kept])\n\tmovq %%r13, 24(%[kept])\n\t"
                     "movq %%r14, 32(%[kept])\n\tmovq %%r15, 40(%[kept])"
                     : "=&a"(result)
                     : [in] "b"(in), [out] "d"(out), [kept] "r"(kept), [moment] "r"(&moment)
                     : "memory", "rcx", "r11", "rdi", "rsi", "r8", "r9", "r12", "r13", "r14", "r15", "xmm0", "xmm7", "xmm9", "xmm15");
    if (result != 0)
        wrong(kind, "raw nanosleep", result);
    if (memcmp(in, out, sizeof in) != 0)
        wrong(kind, "vector registers", 0);
    for (unsigned i = 0; i < 6; i++)
        if (kept[i] != 0x1111ull * (i + 1))
            wrong(kind, "register", (long)kept[i]);
}

static int numbers[2] = {-1, -1}, packets[2] = {-1, -1};

static void write_numbers(struct kind *kind)
{
    uint64_t number = kind->done;
    struct timespec moment = {.tv_nsec = 3000000};
    nanosleep(&moment, NULL);
    if (write(numbers[1], &number, 8) != 8 || send(packets[1], &number, 8, 0) != 8)
        wrong(kind, "write", (long)number);
}

static void read_numbers(struct kind *kind)
{
    uint64_t number = 0;
    ssize_t got = read(numbers[0], &number, 8);
    if (got != 8 || number != kind->done)
        wrong(kind, "read", got == 8 ? (long)number : (long)got);
}

static void receive_numbers(struct kind *kind)
{
    uint64_t number = 0;
    ssize_t got = recv(packets[0], &number, 8, 0);
    if (got != 8 || number != kind->done)
        wrong(kind, "recv", got == 8 ? (long)number : (long)got);
}

static void fork_and_wait(struct kind *kind)
{
    pid_t child = fork();
    if (child == 0) {
        free(malloc(1000));
        _exit(7);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
        wrong(kind, "waitpid", status);
    struct timespec moment = {.tv_nsec = 2000000};
    nanosleep(&moment, NULL);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number) { alarms += number == SIGALRM; }

/* With handlers that interrupt: EINTR is right here, but only with an alarm. */
static void take_signals(struct kind *kind)
{
    static int begun;
    if (!begun++) {
        struct sigaction action = {.sa_handler = on_alarm};
        sigaction(SIGALRM, &action, NULL);
        struct itimerval timer = {{0, 3000}, {0, 3000}};
        setitimer(ITIMER_REAL, &timer, NULL);
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGALRM);
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    }
    int before = alarms;
    struct timespec moment = {.tv_nsec = 50000000}, left = {0};
    int result = nanosleep(&moment, &left);
    if (alarms == before)
        wrong(kind, "interrupted without an alarm", result);
}

static void spin(struct kind *kind)
{
    volatile double x = 1.0;
    for (int i = 0; i < 1000; i++)
        x = x * 1.5 / 1.5;
    if (x < 0.99 || x > 1.01)
        wrong(kind, "arithmetic", 0);
    struct timespec moment = {.tv_nsec = 1000000};
    if (kind->done % 64 == 0)
        nanosleep(&moment, NULL);
}

static struct kind kinds[] = {
    {.name = "allocate", .once = allocate},
    {.name = "allocate2", .once = allocate},
    {.name = "condition", .once = wait_condition},
    {.name = "epoll", .once = wait_epoll},
    {.name = "poll", .once = wait_poll},
    {.name = "select", .once = wait_select},
    {.name = "ppoll", .once = wait_ppoll},
    {.name = "signal", .once = wait_signal},
    {.name = "relative", .once = sleep_relative},
    {.name = "absolute", .once = sleep_absolute},
    {.name = "registers", .once = keep_registers},
    {.name = "write", .once = write_numbers},
    {.name = "read", .once = read_numbers},
    {.name = "receive", .once = receive_numbers},
    {.name = "fork", .once = fork_and_wait},
    {.name = "signals", .once = take_signals},
    {.name = "spin", .once = spin},
};
#define KINDS (sizeof kinds / sizeof *kinds)

static void *work(void *argument)
{
    struct kind *kind = argument;
    for (;;) {
        kind->once(kind);
        kind->done++;
    }
    return NULL;
}

int main(int count, char **names)
{
    if (pipe(numbers) != 0 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets) != 0)
        return 1;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    for (size_t i = 0; i < KINDS; i++) {
        int wanted = count == 1;
        for (int k = 1; k < count; k++)
            wanted |= strcmp(names[k], kinds[i].name) == 0;
        pthread_t thread;
        if (wanted && pthread_create(&thread, NULL, work, &kinds[i]) != 0)
            return 1;
    }
    char line[64];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        for (size_t i = 0; i < KINDS; i++)
            printf("%s %lu %lu %s\n", kinds[i].name, kinds[i].done, kinds[i].errors, kinds[i].errors ? kinds[i].first : "-");
        puts("end");
        fflush(stdout);
    }
    return 0;
}
