// Waits whose truth is known; each thread names itself, and the program prints what it measured by its own clock.
//   lock SECONDS          holder holds a mutex for 50 ms in holder_work(), waiter waits for it
//   pipe SECONDS          a child writes to a pipe every 20 ms in slow_writer(), the parent reads in pipe_reader()
//   sleep SECONDS         sleeps of 20 ms in sleeper()
//   starve SECONDS        two threads burn on one CPU in burn_one(), burn_two()
//   short SECONDS US      sleeps of US microseconds in short_sleeper()
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double seconds;
static long micros;

static double now(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void nap(long us) {
    struct timespec for_ = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&for_, NULL);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int done, held;
static double waited;
static long waits;

__attribute__((noinline)) static void holder_work(void) {
    pthread_mutex_lock(&mutex);
    held = 1;
    double until = now(CLOCK_MONOTONIC) + 0.05;
    while (now(CLOCK_MONOTONIC) < until) {
    }
    held = 0;
    pthread_mutex_unlock(&mutex);
    __asm__ volatile("" ::: "memory");
}

static void *holder(void *unused) {
    prctl(PR_SET_NAME, "the_holder");
    while (!done) {
        holder_work();
        nap(10000);
    }
    return unused;
}

__attribute__((noinline)) static void lock_waiter(void) {
    double before = now(CLOCK_MONOTONIC);
    pthread_mutex_lock(&mutex);
    waited += now(CLOCK_MONOTONIC) - before;
    waits++;
    pthread_mutex_unlock(&mutex);
}

static void run_lock(void) {
    pthread_t thread;
    double until = now(CLOCK_MONOTONIC) + seconds;
    pthread_create(&thread, NULL, holder, NULL);
    prctl(PR_SET_NAME, "the_waiter");
    while (now(CLOCK_MONOTONIC) < until) {
        while (!held && now(CLOCK_MONOTONIC) < until)
            nap(500);
        lock_waiter();
    }
    done = 1;
    pthread_join(thread, NULL);
}

__attribute__((noinline)) static void slow_writer(int fd) {
    nap(20000);
    if (write(fd, "x", 1) != 1)
        _exit(0);
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static int pipe_reader(int fd) {
    char byte;
    double before = now(CLOCK_MONOTONIC);
    int got = read(fd, &byte, 1) == 1;
    waited += now(CLOCK_MONOTONIC) - before;
    waits++;
    return got;
}

static void run_pipe(void) {
    int fds[2];
    if (pipe(fds))
        exit(1);
    double until = now(CLOCK_MONOTONIC) + seconds;
    pid_t child = fork();
    if (!child) {
        close(fds[0]);
        prctl(PR_SET_NAME, "pt_data_worker");
        while (now(CLOCK_MONOTONIC) < until)
            slow_writer(fds[1]);
        _exit(0);
    }
    close(fds[1]);
    while (pipe_reader(fds[0])) {
    }
    waitpid(child, NULL, 0);
}

__attribute__((noinline)) static void sleeper(long us) {
    double before = now(CLOCK_MONOTONIC);
    nap(us);
    waited += now(CLOCK_MONOTONIC) - before;
    waits++;
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static void short_sleeper(long us) {
    sleeper(us);
    __asm__ volatile("" ::: "memory");
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

__attribute__((noinline)) static void burn_one(double until) {
    while (now(CLOCK_MONOTONIC) < until) {
    }
}

__attribute__((noinline)) static void burn_two(double until) {
    while (now(CLOCK_MONOTONIC) < until)
        __asm__ volatile("nop" ::: "memory");
}

static double other_cpu;

static void *second(void *until) {
    pin(0);
    prctl(PR_SET_NAME, "the_second");
    burn_two(*(double *)until);
    other_cpu = now(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

static void run_starve(void) {
    pthread_t thread;
    double until = now(CLOCK_MONOTONIC) + seconds;
    pin(0);
    pthread_create(&thread, NULL, second, &until);
    burn_one(until);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    seconds = atof(argv[2]);
    micros = argc > 3 ? atol(argv[3]) : 0;
    char go = 0;
    printf("ready\n");
    fflush(stdout);
    if (read(0, &go, 1) != 1)
        return 1;
    double begin = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
    if (!strcmp(argv[1], "lock"))
        run_lock();
    else if (!strcmp(argv[1], "pipe"))
        run_pipe();
    else if (!strcmp(argv[1], "starve"))
        run_starve();
    else
        while (now(CLOCK_MONOTONIC) < begin + seconds)
            !strcmp(argv[1], "sleep") ? sleeper(20000) : short_sleeper(micros);
    double end = now(CLOCK_MONOTONIC);
    printf("%.9f %.9f %.9f %.9f %ld %.9f\n", begin, end, now(CLOCK_THREAD_CPUTIME_ID) - cpu, waited, waits, other_cpu);
    fflush(stdout);
    if (read(0, &go, 1) < 0)
        return 1;
    return 0;
}
