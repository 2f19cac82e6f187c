/* Launches from two call paths in prime numbers; see fake_inject.c.  usage: fake_gpu MODE [seconds] */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/wait.h>

#define KEEP __attribute__((noinline, noclone, used))

extern int fake_start(void), fake_has_listener(void), fake_fd(void);
extern void fake_attach(void), fake_launch_api(uint32_t name, uint64_t duration_ns, int with_record);
extern uint64_t fake_now(void), fake_dropped(void);
static volatile int sink;

KEEP void forward(uint32_t name) { fake_launch_api(name, 1000, 1); sink++; }
KEEP void backward(uint32_t name) { fake_launch_api(name, 2000, 1); sink++; }
KEEP void train_step(int forwards, int backwards, int copies)
{
    for (int i = 0; i < forwards; i++) forward(1);
    for (int i = 0; i < backwards; i++) backward(2);
    for (int i = 0; i < copies; i++) forward(0);
    sink++;
}

static void wait_for_listener(int wanted)
{
    while (!!fake_has_listener() != wanted)
        usleep(10000);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "primes";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (fake_start() != 0)
        return 1;
    puts("ready");
    wait_for_listener(1);
    fake_attach();
    if (!strcmp(mode, "primes")) {
        train_step(1009, 503, 101);
        puts("done");
        getchar();
    } else if (!strcmp(mode, "exit")) {
        train_step(1009, 503, 101);
        _exit(0);
    } else if (!strcmp(mode, "forever")) {
        puts("done");
        for (;;)
            train_step(1, 1, 0);
    } else if (!strcmp(mode, "fork")) {
        train_step(11, 0, 0);
        pid_t child = fork();
        if (child == 0) { /* has the descriptor still, and no ring: what a library without a fork handler would leave */
            sleep(3);
            _exit(0);
        }
        train_step(13, 0, 0);
        puts("done");
        getchar();
        waitpid(child, NULL, 0);
    } else if (!strcmp(mode, "release")) {
        puts("done");
        wait_for_listener(0);
        puts("released");
    } else if (!strcmp(mode, "cost")) {
        long n = argc > 2 ? atol(argv[2]) : 100000;
        sleep(3); /* tables are published */
        uint64_t before = fake_now();
        for (long i = 0; i < n; i++) { forward(1); if (i % 64 == 63) usleep(500); }
        printf("%.0f\n", (double)(fake_now() - before) / (double)n);
        getchar();
    }
    return 0;
}
