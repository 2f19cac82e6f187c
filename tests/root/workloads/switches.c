/* Waits of a known length while threads are switched out as often as they can be. Prints the seconds that the poller
   waited, by its own clock. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MAX_PAIRS 64

static int pipes[MAX_PAIRS][4];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *hand_over(void *of) {
    int *ends = of;
    char byte = 0;
    while (read(ends[0], &byte, 1) == 1 && write(ends[3], &byte, 1) == 1)
        ;
    return 0;
}

__attribute__((noinline)) void long_poll(int ms) {
    poll(0, 0, ms);
    __asm__ volatile(""); /* so that it is no tail call */
}

static void *poller(void *count) {
    pthread_setname_np(pthread_self(), "the_poller");
    double waited = 0;
    for (long i = (long)count; i > 0; i--) {
        double began = now();
        long_poll(i == 1 ? 1500 : 200);
        waited += now() - began;
    }
    printf("%.6f\n", waited);
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv) {
    int pairs = argc > 2 ? atoi(argv[1]) : 1;
    pthread_t thread, last;
    for (int i = 0; i < pairs && i < MAX_PAIRS; i++) {
        if (pipe(pipes[i]) || pipe(pipes[i] + 2))
            return 1;
        static int back[MAX_PAIRS][4];
        back[i][0] = pipes[i][2], back[i][3] = pipes[i][1];
        pthread_create(&thread, 0, hand_over, pipes[i]);
        pthread_create(&thread, 0, hand_over, back[i]);
        if (write(pipes[i][1], "x", 1) != 1)
            return 1;
    }
    usleep(700000); /* until no burst is left to be allowed for */
    pthread_create(&last, 0, poller, (void *)(argc > 2 ? atol(argv[2]) : 1));
    pthread_join(last, 0);
    return 0;
}
