"""The arguments of raw tracepoints as the kernel's type information has them."""

from __future__ import annotations

import pytest

from gpuprof.bpf.btf import VMLINUX, Btf, BtfError
from gpuprof.bpf.inventory import TRACEPOINT_FORMS

pytestmark = pytest.mark.skipif(not VMLINUX.exists(), reason="this kernel has no BTF")


def test_arguments_of_the_scheduler_tracepoints() -> None:
    btf = Btf.of_kernel()
    assert btf.tracepoint_arguments("sched_waking") == [True]
    # (preempt, previous, next), and from 5.19 on the previous task's state
    assert btf.tracepoint_arguments("sched_switch")[:3] == [False, True, True]
    assert {name for name, _ in TRACEPOINT_FORMS.values()} == {"sched_switch"}


def test_a_tracepoint_that_is_not_there() -> None:
    with pytest.raises(BtfError, match="no tracepoint"):
        Btf.of_kernel().tracepoint_arguments("no_such_thing")
