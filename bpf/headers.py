"""The include tree that bcc compiles against, so that no kernel headers need to be installed.

bcc puts `-include include/linux/kconfig.h` on the command line of clang and its own helpers include eight
kernel headers by name. Our programs use no kernel structure by name (offsets come from BTF), so each of these
headers needs only the few declarations that bcc's helpers use: fixed-width types, the kernel version and a
power-of-two macro. bcc brings its own copy of linux/bpf.h. The tree is written into a private directory and
named by the environment variable BCC_KERNEL_SOURCE.
"""

from __future__ import annotations

import os
import platform
import re
import tempfile
from pathlib import Path

_TYPES = """\
#pragma once
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __le16;
typedef __u16 __be16;
typedef __u32 __le32;
typedef __u32 __be32;
typedef __u64 __le64;
typedef __u64 __be64;
typedef __u16 __sum16;
typedef __u32 __wsum;
typedef __u64 __aligned_u64 __attribute__((aligned(8)));
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s8 s8;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;
typedef unsigned long size_t;
typedef unsigned long uintptr_t;
typedef int pid_t;
#define __always_inline inline __attribute__((always_inline))
#define true 1
#define false 0
#define NULL ((void *)0)
"""

_LOG2 = """\
#pragma once
#define FILL_1(n) ((n) | ((n) >> 1))
#define FILL_2(n) (FILL_1(n) | (FILL_1(n) >> 2))
#define FILL_4(n) (FILL_2(n) | (FILL_2(n) >> 4))
#define FILL_8(n) (FILL_4(n) | (FILL_4(n) >> 8))
#define FILL_16(n) (FILL_8(n) | (FILL_8(n) >> 16))
#define roundup_pow_of_two(n) (FILL_16((n) - 1) + 1)
"""

_EMPTY = "#pragma once\n"


def kernel_version_code(release: str) -> int:
    """LINUX_VERSION_CODE of a release string such as "6.1.0-18-amd64"; 0 when it does not start with two
    numbers.
    """
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release)
    if match is None:
        return 0
    major, minor, patch = (int(part or 0) for part in match.groups())
    return (major << 16) | (minor << 8) | min(patch, 255)


def tree(release: str) -> dict[str, str]:
    """The files of the include tree: path below its top -> contents."""
    version = (
        f"#pragma once\n#define LINUX_VERSION_CODE {kernel_version_code(release)}\n"
        "#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + ((c) > 255 ? 255 : (c)))\n"
    )
    return {
        "include/linux/kconfig.h": "#define CONFIG_BPF_SYSCALL 1\n#define CONFIG_BPF_EVENTS 1\n",
        "include/linux/types.h": _TYPES,
        "include/linux/version.h": version,
        "include/linux/log2.h": _LOG2,
        "include/linux/bpf.h": _EMPTY,
        "include/linux/bpf_common.h": _EMPTY,
        "include/uapi/linux/bpf.h": _EMPTY,
        "include/uapi/linux/if_ether.h": _EMPTY,
        "include/uapi/linux/if_packet.h": _EMPTY,
        "include/uapi/linux/ptrace.h": "#pragma once\nstruct pt_regs;\n",
        "arch/x86/include/asm/page.h": "#pragma once\n#define PAGE_SIZE 4096\n",
    }


def write_tree(parent: str | None = None) -> Path:
    """Write the tree into a new directory (mode 0700) below `parent`, or /run, or the temporary directory.

    The caller removes it. OSError when nothing can be written.
    """
    if parent is None and os.access("/run", os.W_OK):
        parent = "/run"
    top = Path(tempfile.mkdtemp(prefix="gpuprof-headers-", dir=parent))
    for name, text in tree(platform.release()).items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return top
