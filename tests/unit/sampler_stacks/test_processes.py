"""Who a process is."""

from __future__ import annotations

import ctypes
import os
import pwd
import subprocess
from collections.abc import Callable

from gpuprof.sampler.processes import cpu_ticks, describe, start_time_ns, user_name

Child = Callable[[str, str], tuple[subprocess.Popen[bytes], bytes]]


def test_own_process() -> None:
    own = describe(os.getpid())
    assert own is not None
    assert (own.pid, own.ppid, own.uid) == (os.getpid(), os.getppid(), os.getuid())
    assert own.user == pwd.getpwuid(os.getuid()).pw_name
    assert own.start_ns == start_time_ns(os.getpid())
    assert own.container_pid is None
    assert cpu_ticks(os.getpid()) is not None


def test_a_hostile_name_does_not_shift_the_fields(child: Child) -> None:
    import sys

    code = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b'a) R 1 (\\x1b\\n\\xff')
print(1, flush=True)
sys.stdin.read()
"""
    process, _ = child(sys.executable, code)
    found = describe(process.pid)
    assert found is not None
    assert found.ppid == os.getpid()
    assert found.name.startswith("a) R 1 (")
    assert found.name.isprintable()
    assert ctypes.sizeof(ctypes.c_long) == 8


def test_gone_and_kernel_processes() -> None:
    assert describe(0x7FFFFFF0) is None
    assert start_time_ns(0x7FFFFFF0) is None
    kthreadd = describe(2)
    if kthreadd is not None and kthreadd.name == "kthreadd":
        assert kthreadd.cmdline == ""
    assert user_name(3_999_999_999) == "3999999999"
