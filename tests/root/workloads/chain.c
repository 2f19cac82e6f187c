/* Burns CPU through two call chains in the ratio 1 : 3 for some seconds; built without frame pointers. */
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline))
static volatile unsigned long sink;

NOINLINE void chain_burn(unsigned long units) {
    for (unsigned long i = 0; i < units * 1000000; i++)
        sink += i;
}
NOINLINE void chain_one_inner(void) {
    chain_burn(1);
    sink++;
}
NOINLINE void chain_one(void) {
    chain_one_inner();
    sink++;
}
NOINLINE int chain_three_compare(const void *a, const void *b) {
    (void)a;
    (void)b;
    chain_burn(3);
    sink++;
    return 0;
}
NOINLINE void chain_three(void) {
    int pair[2] = {1, 2};
    qsort(pair, 2, sizeof(int), chain_three_compare); /* through libc, which calls back */
    sink++;
}
int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    struct timespec now, start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        chain_one();
        chain_three();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - start.tv_sec + (now.tv_nsec - start.tv_nsec) * 1e-9 < seconds);
    return 0;
}
