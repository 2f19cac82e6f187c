/* Loads the library of its first argument in its first thread, beside as many idle threads as its second says. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *idle(void *unused)
{
    for (;;)
        pause();
    return unused;
}

int main(int count, char **words)
{
    pthread_t thread;
    for (int i = count == 3 ? atoi(words[2]) : 0; i > 0; i--)
        if (pthread_create(&thread, NULL, idle, NULL) != 0)
            return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    if (!dlopen(words[1], RTLD_NOW))
        return 1;
    puts("loaded");
    getchar();
    return 0;
}
