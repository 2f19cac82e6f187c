/* Loads, calls and unloads code in many ways; argv[1] is the way, argv[2] a library with `int turn(int)`, argv[3]
 * another one. Each `turn` burns CPU for about a millisecond in a function named after its library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone, used))

static volatile int sink;

KEEP int call_turn(void *library) {
    int (*turn)(int) = (int (*)(int))dlsym(library, "turn");
    int sum = 0;
    for (int i = 0; i < 300; i++)
        sum += turn(i);
    return sum;
}

/* One library in the place of the other, again and again. */
KEEP void replaced(const char *one, const char *other) {
    for (int i = 0;; i++) {
        void *library = dlopen(i & 1 ? other : one, RTLD_NOW);
        sink += call_turn(library);
        dlclose(library);
    }
}

/* A library whose file is gone. */
KEEP void deleted(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    unlink(path);
    for (;;)
        sink += call_turn(library);
}

/* A library that never had a name. */
KEEP void nameless(const char *path) {
    char buffer[65536], link[64];
    int from = open(path, O_RDONLY), to = memfd_create("nameless", 0);
    ssize_t size;
    while ((size = read(from, buffer, sizeof buffer)) > 0)
        if (write(to, buffer, (size_t)size) != size)
            return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", to);
    void *library = dlopen(link, RTLD_NOW);
    for (;;)
        sink += call_turn(library);
}

/* Children that never exec and live for some milliseconds. */
KEEP void forks(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    for (;;) {
        if (fork() == 0)
            _exit(call_turn(library) & 1);
        wait(NULL);
    }
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    if (!strcmp(argv[1], "replaced"))
        replaced(argv[2], argv[3]);
    if (!strcmp(argv[1], "deleted"))
        deleted(argv[2]);
    if (!strcmp(argv[1], "nameless"))
        nameless(argv[2]);
    if (!strcmp(argv[1], "forks"))
        forks(argv[2]);
    void *library = dlopen(argv[2], RTLD_NOW);
    for (;;)
        sink += call_turn(library);
}
