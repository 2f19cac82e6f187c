/* The instructions that run in the process: written into a page of their own, with the mail in the next.
 *
 * `payload` is what the borrowed thread executes, on the region's stack: one pthread_create, then a getpid at which the tracer waits for it
 * and puts everything back. Should the tracer be gone by then (killed, or its time was up), the thread goes on and puts itself back: vector
 * registers, signal mask, all others, and the system call that it was waiting in anew. The new thread loads the library and calls its start
 * function, says how that went, waits for the tracer to have read it, and ends through munmap, which takes the region away from under it.
 */
#include "attach.h"

_Static_assert(offsetof(struct mail, ack) == 4 && offsetof(struct mail, created) == 8 && offsetof(struct mail, started) == 12, "");
_Static_assert(offsetof(struct mail, dlopen) == 16 && offsetof(struct mail, munmap) == 56, "");
_Static_assert(offsetof(struct mail, region) == 64 && offsetof(struct mail, region_bytes) == 72, "");
_Static_assert(offsetof(struct mail, fd) == 80 && offsetof(struct mail, dlopen_flags) == 84 && offsetof(struct mail, thread) == 88, "");
_Static_assert(offsetof(struct mail, back) == 96 && offsetof(struct mail, back.rsp) == 232, "");
_Static_assert(offsetof(struct mail, signal_mask) == 240 && offsetof(struct mail, xsave_mask) == 248, "");
_Static_assert(offsetof(struct mail, symbol) == 256 && offsetof(struct mail, path) == 320, "");
_Static_assert(offsetof(struct mail, error) == 4416 && offsetof(struct mail, pause) == 4672, "");
_Static_assert(offsetof(struct mail, xsave) == 4736 && sizeof(struct mail) <= MAIL_BYTES, "");
_Static_assert(MAIL_LOADED == 2 && MAIL_NOT_LOADED == 3 && MAIL_NO_SYMBOL == 4, "");

__asm__(
    ".pushsection .rodata\n"
    ".globl payload, payload_marker, payload_thread, payload_end\n"
    ".hidden payload, payload_marker, payload_thread, payload_end\n"
    ".balign 64\n"
    "payload:\n"
    "   leaq payload+4096(%rip), %rbx\n"
    "   leaq 88(%rbx), %rdi\n"
    "   xorl %esi, %esi\n"
    "   leaq payload_thread(%rip), %rdx\n"
    "   movq %rbx, %rcx\n"
    "   call *40(%rbx)\n"
    "   movl %eax, 8(%rbx)\n"
    "   movl $39, %eax\n" /* getpid: what the tracer waits for */
    "   syscall\n"
    "payload_marker:\n"
    "   movl 248(%rbx), %eax\n"
    "   movl 252(%rbx), %edx\n"
    "   movl %eax, %ecx\n"
    "   orl %edx, %ecx\n"
    "   jz 1f\n"
    "   xrstor64 4736(%rbx)\n"
    "1: movl $14, %eax\n" /* rt_sigprocmask(SIG_SETMASK, ...) */
    "   movl $2, %edi\n"
    "   leaq 240(%rbx), %rsi\n"
    "   xorl %edx, %edx\n"
    "   movl $8, %r10d\n"
    "   syscall\n"
    "   pushq 224(%rbx)\n"
    "   popfq\n" /* no instruction from here on changes flags */
    "   movq payload+4096+96(%rip), %r15\n"
    "   movq payload+4096+104(%rip), %r14\n"
    "   movq payload+4096+112(%rip), %r13\n"
    "   movq payload+4096+120(%rip), %r12\n"
    "   movq payload+4096+128(%rip), %rbp\n"
    "   movq payload+4096+136(%rip), %rbx\n"
    "   movq payload+4096+144(%rip), %r11\n"
    "   movq payload+4096+152(%rip), %r10\n"
    "   movq payload+4096+160(%rip), %r9\n"
    "   movq payload+4096+168(%rip), %r8\n"
    "   movq payload+4096+176(%rip), %rax\n"
    "   movq payload+4096+184(%rip), %rcx\n"
    "   movq payload+4096+192(%rip), %rdx\n"
    "   movq payload+4096+200(%rip), %rsi\n"
    "   movq payload+4096+208(%rip), %rdi\n"
    "   movq payload+4096+232(%rip), %rsp\n"
    "   jmpq *payload+4096+216(%rip)\n"
    "\n"
    "payload_thread:\n"
    "   pushq %rbx\n"
    "   pushq %r12\n"
    "   subq $8, %rsp\n"
    "   movq %rdi, %rbx\n"
    "   movl $1, (%rbx)\n"
    "   movq %fs:16, %rdi\n" /* pthread_self() */
    "   call *48(%rbx)\n"
    "   leaq 320(%rbx), %rdi\n"
    "   movl 84(%rbx), %esi\n"
    "   call *16(%rbx)\n"
    "   movl $3, %r12d\n"
    "   testq %rax, %rax\n"
    "   jz 5f\n"
    "   movq %rax, %rdi\n"
    "   leaq 256(%rbx), %rsi\n"
    "   call *24(%rbx)\n"
    "   movl $4, %r12d\n"
    "   testq %rax, %rax\n"
    "   jz 5f\n"
    "   call *%rax\n"
    "   movl %eax, 12(%rbx)\n"
    "   movl $2, %r12d\n"
    "   jmp 7f\n"
    "5: movq 32(%rbx), %rax\n" /* the reason, cut to fit */
    "   testq %rax, %rax\n"
    "   jz 7f\n"
    "   call *%rax\n"
    "   testq %rax, %rax\n"
    "   jz 7f\n"
    "   xorl %ecx, %ecx\n"
    "6: movb (%rax,%rcx), %dl\n"
    "   movb %dl, 4416(%rbx,%rcx)\n"
    "   testb %dl, %dl\n"
    "   jz 7f\n"
    "   incl %ecx\n"
    "   cmpl $255, %ecx\n"
    "   jb 6b\n"
    "7: movl 80(%rbx), %edi\n"
    "   testl %edi, %edi\n"
    "   js 8f\n"
    "   movl $3, %eax\n" /* close */
    "   syscall\n"
    "8: xchgl %r12d, (%rbx)\n"
    "   movl $3000, %r12d\n"
    "9: cmpl $0, 4(%rbx)\n"
    "   jne 2f\n"
    "   decl %r12d\n"
    "   jz 3f\n"
    "   movl $35, %eax\n" /* nanosleep */
    "   leaq 4672(%rbx), %rdi\n"
    "   xorl %esi, %esi\n"
    "   syscall\n"
    "   jmp 9b\n"
    "3: addq $8, %rsp\n" /* the tracer is gone: whether the borrowed thread is back is not known, so the region stays */
    "   popq %r12\n"
    "   popq %rbx\n"
    "   xorl %eax, %eax\n"
    "   ret\n"
    "2: movq 64(%rbx), %rdi\n"
    "   movq 72(%rbx), %rsi\n"
    "   movq 56(%rbx), %rax\n"
    "   addq $8, %rsp\n"
    "   popq %r12\n"
    "   popq %rbx\n"
    "   jmpq *%rax\n" /* returns to who started this thread */
    "payload_end:\n"
    ".popsection\n");
