/* Waits for ever under a system call filter: filtered kill|errno NUMBER, or filtered strict. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **words)
{
    if (count == 2 && strcmp(words[1], "strict") == 0) {
        char byte;
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        for (;;)
            if (read(0, &byte, 1) <= 0)
                return 0;
    }
    if (count != 3)
        return 2;
    unsigned action = strcmp(words[1], "kill") == 0 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | 1;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(words[2]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return 1;
    for (;;)
        poll(NULL, 0, 1000000);
}
