"""Whether this process may load BPF programs, and whether they would see what they must."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, GpuprofError

ROOT_HINT = "Run it as root, or with CAP_BPF, CAP_PERFMON and CAP_SYS_RESOURCE."
_CAP_SYS_ADMIN, _CAP_PERFMON, _CAP_BPF = 21, 38, 39
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel, part of its ABI
_LOCKDOWN = Path("/sys/kernel/security/lockdown")


def check() -> None:
    """GpuprofError where programs cannot be loaded or would not see this machine's processes."""
    lockdown = _LOCKDOWN.read_text() if _LOCKDOWN.exists() else ""
    check_permission(Path("/proc/self/status").read_text(), lockdown)
    check_pid_namespace(os.stat("/proc/self/ns/pid").st_ino)


def check_permission(status: str, lockdown: str) -> None:
    """GpuprofError unless /proc/self/status shows the capabilities and lockdown lets the programs read
    memory.
    """
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    capabilities = int(match[1], 16) if match else 0

    def has(bit: int) -> bool:
        return bool(capabilities >> bit & 1)

    if not (has(_CAP_SYS_ADMIN) or (has(_CAP_BPF) and has(_CAP_PERFMON))):
        raise GpuprofError("no permission to load BPF programs", ROOT_HINT, EXIT_NO_PERMISSION)
    if "[confidentiality]" in lockdown:
        raise GpuprofError(
            "the kernel is locked down (confidentiality mode): BPF programs must not read memory",
            "Boot without lockdown=confidentiality, or use lockdown=integrity.",
            EXIT_NO_PERMISSION,
        )


def check_pid_namespace(inode: int) -> None:
    """GpuprofError unless this is the machine's first pid namespace, whose pids the programs see."""
    if inode != _FIRST_PID_NAMESPACE:
        raise GpuprofError(
            "CPU stacks need the pids of the host, and this is a pid namespace of its own",
            "Run the container with the host's pids (--pid=host, or hostPID: true).",
            EXIT_UNAVAILABLE,
        )


def raise_locked_memory() -> None:
    """BPF maps count as locked memory before 5.11."""
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        pass  # newer kernels do not need it, older ones will say so when a map is made
