// Waits of known length, longer than the pieces in which a wait is written while it lasts.
//   planted          main holds a mutex and sleeps for 2.5 s in long_sleep(), then lets go in let_go() and joins in
//                    joiner(); the thread "the_waiter" waits for the mutex in lock_waiter(), then sleeps for 1 s in
//                    last_sleep()
//   naps             ten sleeps of 0.1 s in nap(), then one of 1.5 s in long_sleep()
//   forever          main joins in joiner() a thread that sleeps for ever in long_sleep()
//   burn             uses a CPU in burn() until it had 1.5 s of it
//   told             as planted, but main lets go when it reads a byte from its input, in hear()
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void pause_for(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left)) {
    }
}

__attribute__((noinline)) static void long_sleep(double seconds) {
    pause_for(seconds);
    __asm__ volatile("");
}

__attribute__((noinline)) static void nap(void) {
    pause_for(0.1);
    __asm__ volatile("");
}

__attribute__((noinline)) static void last_sleep(void) {
    pause_for(1.0);
    __asm__ volatile("");
}

__attribute__((noinline)) static void lock_waiter(void) {
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    __asm__ volatile("");
}

__attribute__((noinline)) static void let_go(void) {
    pthread_mutex_unlock(&mutex);
    __asm__ volatile("");
}

__attribute__((noinline)) static void hear(void) {
    char byte;
    if (read(0, &byte, 1) < 0)
        perror("read");
    __asm__ volatile("");
}

__attribute__((noinline)) static void joiner(pthread_t thread) {
    pthread_join(thread, NULL);
    __asm__ volatile("");
}

__attribute__((noinline)) static void burn(void) {
    struct timespec used = {0, 0};
    while ((double)used.tv_sec + (double)used.tv_nsec / 1e9 < 1.5)
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
}

static void *waiter(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "the_waiter");
    lock_waiter();
    last_sleep();
    return NULL;
}

static void *sleeper(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "the_sleeper");
    long_sleep(1e6);
    return NULL;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    pthread_t thread;
    if (!strcmp(mode, "burn")) {
        burn();
        return 0;
    }
    if (!strcmp(mode, "naps")) {
        for (int i = 0; i < 10; i++)
            nap();
        long_sleep(1.5);
        return 0;
    }
    int forever = !strcmp(mode, "forever");
    pthread_mutex_lock(&mutex);
    if (pthread_create(&thread, NULL, forever ? sleeper : waiter, NULL))
        return 1;
    if (!strcmp(mode, "planted"))
        long_sleep(2.5);
    if (!strcmp(mode, "told"))
        hear();
    if (!forever)
        let_go();
    joiner(thread);
    return 0;
}
