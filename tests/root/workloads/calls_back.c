/* call_for_ever(f): a thread made here calls f again and again; the caller waits for it. */
#include <pthread.h>
#include <stddef.h>

static void *calls_python(void *callback) {
    for (;;)
        ((void (*)(void))callback)();
    return NULL;
}

void call_for_ever(void (*callback)(void)) {
    pthread_t thread;
    if (!pthread_create(&thread, NULL, calls_python, (void *)callback))
        pthread_join(thread, NULL);
}
