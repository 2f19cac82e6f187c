/* Burns CPU through four call paths in the ratio 2 : 5 : 11 : 23, in random order; built without frame pointers. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define KEEP __attribute__((noinline, noclone))
static volatile unsigned long sink;
static volatile int for_ever = 1;

KEEP void burn(unsigned long units) {
    for (unsigned long i = 0; i < units * 8000; i++)
        sink += i;
}
KEEP void path_two(void) {
    burn(2);
    sink++;
}
KEEP int compare_five(const void *a, const void *b) {
    burn(5);
    sink++;
    return *(const int *)a - *(const int *)b;
}
KEEP void path_five(void) { /* through libc, which calls back */
    int pair[2] = {1, 2};
    qsort(pair, 2, sizeof(int), compare_five);
    sink++;
}
KEEP void path_eleven(int depth) { /* deep */
    if (depth)
        path_eleven(depth - 1);
    else
        burn(11);
    sink++;
}
KEEP void handle_twenty_three(int number) {
    (void)number;
    burn(23);
    sink++;
}
KEEP void path_twenty_three(void) { /* in a signal handler */
    raise(SIGUSR1);
    sink++;
}
int main(void) {
    struct sigaction action = {0};
    unsigned state = 1;
    action.sa_handler = handle_twenty_three;
    sigaction(SIGUSR1, &action, NULL);
    puts("ready");
    fflush(stdout);
    while (for_ever) {
        int order[4] = {0, 1, 2, 3};
        for (int i = 3; i > 0; i--) {
            state = state * 1103515245u + 12345u;
            int j = (int)((state >> 16) % (unsigned)(i + 1)), swapped = order[i];
            order[i] = order[j];
            order[j] = swapped;
        }
        for (int i = 0; i < 4; i++) {
            if (order[i] == 0)
                path_two();
            if (order[i] == 1)
                path_five();
            if (order[i] == 2)
                path_eleven(30);
            if (order[i] == 3)
                path_twenty_three();
        }
    }
    return 0;
}
