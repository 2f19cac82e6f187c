// A program whose stacks are known: argv[1] names the chain that burns CPU for ever. No frame pointers (see the test).
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone, used))

volatile unsigned long sink;
volatile int for_ever = 1;  // the compiler must not see that burn() does not return

KEEP void burn(void) {
    while (for_ever)
        for (int i = 0; i < 1000; i++)
            sink += (unsigned long)i;
}

KEEP void big_frame(void) {
    volatile char room[3000];
    memset((void *)room, 1, sizeof room);
    burn();
    sink += (unsigned long)room[5];
}

KEEP void three(void) { big_frame(); sink++; }
KEEP void two(void) { three(); sink++; }
KEEP void one(void) { two(); sink++; }

KEEP int deep(int n) {
    if (n == 0)
        burn();
    int result = n ? deep(n - 1) : 0;
    sink += (unsigned long)result;
    return result + 1;
}

KEEP void on_signal(int number) { (void)number; burn(); sink++; }

KEEP void signalled(void) {
    struct sigaction action = {0};
    action.sa_handler = on_signal;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    sink++;
}

KEEP void *thread_main(void *argument) { one(); return argument; }

// Assembly without call frame information: a frame of 1,208 bytes that only a scan of the stack gets past.
__asm__(".text\n.globl no_cfi\n.type no_cfi, @function\nno_cfi:\n"
        "  push %rbx\n  sub $1200, %rsp\n1: inc %rbx\n  jmp 1b\n  add $1200, %rsp\n  pop %rbx\n  ret\n.size no_cfi, .-no_cfi\n");
extern void no_cfi(void);
KEEP void calls_assembly(void) { no_cfi(); sink++; }

// Generated code with a frame pointer: push rbp; mov rbp, rsp; 1: inc rax; jmp 1b
KEEP void calls_generated(void) {
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xff, 0xc0, 0xeb, 0xfb};
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(memory, code, sizeof code);
    ((void (*)(void))memory)();
    sink++;
}

KEEP void forks(void) {
    getchar();
    if (fork() == 0)
        one();
    wait(NULL);
    sink++;
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IONBF, 0);
    if (strcmp(which, "forks"))
        puts("ready");
    if (!strcmp(which, "chain"))
        one();
    if (!strcmp(which, "deep"))
        deep(atoi(argv[2]));
    if (!strcmp(which, "signal"))
        signalled();
    if (!strcmp(which, "assembly"))
        calls_assembly();
    if (!strcmp(which, "generated"))
        calls_generated();
    if (!strcmp(which, "forks")) {
        puts("ready");
        forks();
    }
    if (!strcmp(which, "thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, thread_main, NULL);
        pthread_join(thread, NULL);
    }
    if (!strcmp(which, "exec")) {
        getchar();
        execl(argv[0], argv[0], "chain", (char *)NULL);
    }
    return 0;
}
