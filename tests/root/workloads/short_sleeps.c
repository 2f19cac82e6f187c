// As many threads as the first argument says, each of which waits until the main thread lets it go on, one after the
// other once a byte has come from the input; then it sleeps for 50 us, and then for good. Prints "ready" when they have
// begun to wait and, at the next byte, how long the short sleeps took together, in ns, as the threads' own clocks say.
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MOST 1000

static sem_t may_go[MOST], begun, slept;
static long took[MOST];

static long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void *one(void *argument) {
    long number = (long)argument;
    struct timespec brief = {0, 50000};
    sem_post(&begun);
    sem_wait(&may_go[number]);
    long since = now_ns();
    nanosleep(&brief, NULL);
    took[number] = now_ns() - since;
    sem_post(&slept);
    pause();
    return NULL;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 0;
    if (count < 1 || count > MOST)
        return 2;
    sem_init(&begun, 0, 0);
    sem_init(&slept, 0, 0);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (long n = 0; n < count; n++) {
        pthread_t thread;
        sem_init(&may_go[n], 0, 0);
        if (pthread_create(&thread, &small, one, (void *)n))
            return 1;
    }
    for (int n = 0; n < count; n++)
        sem_wait(&begun);
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF)
        return 1;
    struct timespec pause_between = {0, 2000000};
    for (int n = 0; n < count; n++) {
        sem_post(&may_go[n]);
        nanosleep(&pause_between, NULL);
    }
    long sum = 0;
    for (int n = 0; n < count; n++)
        sem_wait(&slept);
    for (int n = 0; n < count; n++)
        sum += took[n];
    printf("%ld\n", sum);
    fflush(stdout);
    getchar();
    return 0;
}
