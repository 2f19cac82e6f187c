// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Helpers of the kernel by names of our own. bcc looks up each call of these two by name in /proc/kallsyms, to replace
// it on kernels before 5.5, which costs it two thirds of the time that it takes to compile.

static long (*read_user_memory)(void *target, u32 size, const void *address) = (void *)112;
static long (*read_kernel_memory)(void *target, u32 size, const void *address) = (void *)113;
#define bpf_probe_read_user read_user_memory
#define bpf_probe_read_kernel read_kernel_memory
