"""Kinds of waits and causes of wakes, from kernel stacks as they were seen and from the kernel's sources."""

from __future__ import annotations

import pytest

from gpuprof.sampler.wait_kinds import OTHER, cause_of_wake, is_tracing, kind_of_wait

ENTRY = "do_syscall_64 entry_SYSCALL_64"

KINDS = [  # kernel functions, innermost first; number of the system call; kind
    (f"schedule futex_do_wait __futex_wait futex_wait do_futex __x64_sys_futex {ENTRY}", 202, "futex"),
    (f"schedule futex_wait_queue_me futex_wait do_futex __x64_sys_futex {ENTRY}", 202, "futex"),
    (f"schedule do_nanosleep hrtimer_nanosleep common_nsleep sys_clock_nanosleep {ENTRY}", 230, "sleep"),
    (f"schedule schedule_hrtimeout_range_clock ep_poll do_epoll_wait {ENTRY}", 232, "poll"),
    (f"schedule schedule_hrtimeout_range_clock do_sys_poll __x64_sys_poll {ENTRY}", 7, "poll"),
    (f"schedule schedule_hrtimeout_range do_select core_sys_select __x64_sys_pselect6 {ENTRY}", 270, "poll"),
    (f"schedule anon_pipe_read vfs_read ksys_read {ENTRY}", 0, "pipe or socket"),
    (f"schedule pipe_write vfs_write ksys_write {ENTRY}", 1, "pipe or socket"),
    (f"schedule schedule_timeout unix_stream_data_wait {ENTRY}", 45, "pipe or socket"),
    (f"schedule schedule_timeout wait_woken sk_wait_data tcp_recvmsg {ENTRY}", 45,
     "pipe or socket"),
    (f"schedule schedule_timeout inet_csk_accept inet_accept do_accept {ENTRY}", 43, "pipe or socket"),
    (f"schedule io_schedule folio_wait_bit_common filemap_read ext4_read {ENTRY}", 0,
     "disk or file I/O"),
    (f"schedule jbd2_log_wait_commit ext4_sync_file do_fsync {ENTRY}", 74, "disk or file I/O"),
    (f"schedule io_schedule bit_wait_io __wait_on_bit {ENTRY}", 0, "disk or file I/O"),
    (f"schedule request_wait_answer fuse_simple_request {ENTRY}", 0, "disk or file I/O"),
    ("schedule io_schedule folio_wait_bit_common filemap_fault __do_fault handle_mm_fault do_user_addr_fault "
     "exc_page_fault asm_exc_page_fault", -1, "page fault"),
    ("schedule rwsem_down_read_slowpath down_read_killable lock_mm_and_find_vma do_user_addr_fault "
     "exc_page_fault asm_exc_page_fault", -1, "page fault"),
    (f"schedule rwsem_down_write_slowpath down_write vm_mmap_pgoff {ENTRY}", 9, "kernel lock"),
    (f"schedule do_wait kernel_wait4 __do_sys_wait4 {ENTRY}", 61, "child process"),
    (f"schedule do_sigtimedwait.isra.0 __x64_sys_rt_sigtimedwait {ENTRY}", 128, "signal"),
    (f"schedule do_signal_stop get_signal arch_do_signal_or_restart {ENTRY}", 0, "stopped"),
    (f"schedule io_cqring_wait __do_sys_io_uring_enter {ENTRY}", 426, "io_uring"),
    (f"schedule schedule_timeout os_acquire_semaphore nvidia_ioctl nvidia_unlocked_ioctl {ENTRY}", 16,
     "NVIDIA ioctl"),
    (f"schedule schedule_timeout wait_for_completion do_exit do_group_exit {ENTRY}", 231, "exit"),
    ("schedule something_new", 202, "futex"),  # by the system call
    ("schedule something_new", 16, "ioctl"),
    ("schedule something_new", 9999, OTHER),
    ("schedule something_new", -1, OTHER),
    ("[kernel] [kernel]", 232, "poll"),  # names are hidden
    ("[kernel] [kernel]", -1, "page fault"),
    ("", 35, "sleep"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "syscall", "kind"), KINDS)
def test_the_kind_of_a_wait(names: str, syscall: int, kind: str) -> None:
    assert kind_of_wait(names.split(), syscall) == kind


def test_a_thread_that_was_preempted_waits_for_a_processor_whatever_it_did() -> None:
    assert kind_of_wait(["schedule", "futex_wait"], 202, runnable=True) == "runnable, not scheduled"


def test_the_module_of_a_function_tells_of_the_driver() -> None:
    names = f"schedule schedule_timeout _nv001 x {ENTRY}".split()
    assert kind_of_wait(names, 16, binaries=["[kernel]", "[kernel]", "[nvidia]"]) == "NVIDIA ioctl"


TIMER = (
    "try_to_wake_up hrtimer_wakeup __hrtimer_run_queues hrtimer_interrupt __sysvec_apic_timer_interrupt "
    "sysvec_apic_timer_interrupt asm_sysvec_apic_timer_interrupt"
)
LOOPBACK = (
    "try_to_wake_up __wake_up_common sock_def_readable tcp_data_queue tcp_rcv_established tcp_v4_rcv ip_rcv "
    "net_rx_action handle_softirqs do_softirq __local_bh_enable_ip tcp_sendmsg"
)
CAUSES = [
    (f"{TIMER} pv_native_safe_halt default_idle do_idle", True, True, False, "a timer"),
    (TIMER, False, False, False, "a timer"),  # it hit a process in user mode, on whose stack it runs
    (f"{TIMER} vfs_read {ENTRY}", False, True, True, "a timer"),
    (f"try_to_wake_up wake_up_q futex_wake do_futex {ENTRY}", False, False, True, None),
    (f"{LOOPBACK} {ENTRY}", False, True, True, None),
    ("try_to_wake_up sock_def_readable tcp_v4_rcv net_rx_action irq_exit_rcu common_interrupt "
     "asm_common_interrupt", False, True, False, "the network"),
    (f"try_to_wake_up process_timeout call_timer_fn run_timer_softirq do_softirq "
     f"__local_bh_enable_ip tcp_sendmsg {ENTRY}", False, True, True, "a timer"),
    ("try_to_wake_up wake_page_function bio_endio blk_mq_end_request virtblk_done "
     "__common_interrupt common_interrupt asm_common_interrupt do_idle", True, True, False, "a disk"),
    ("try_to_wake_up __up nvidia_isr_common handle_irq_event asm_common_interrupt", False, True, False,
     "the GPU driver"),
    ("try_to_wake_up rcu_core irq_exit_rcu asm_sysvec_apic_timer_interrupt", False, True, False,
     "an interrupt"),
    ("try_to_wake_up rwsem_wake up_read exc_page_fault asm_exc_page_fault", False, False, False, None),
    ("try_to_wake_up process_one_work worker_thread kthread ret_from_fork", False, False, True, None),
    ("[kernel] [kernel]", False, False, True, None),  # names are hidden
    ("[kernel] [kernel]", False, True, True, "an interrupt"),
    ("[kernel] [kernel]", False, False, False, "an interrupt"),
    ("", True, True, False, "an interrupt"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "idle", "on_interrupt_stack", "in_syscall", "cause"), CAUSES)
def test_what_woke(
    names: str, idle: bool, on_interrupt_stack: bool, in_syscall: bool, cause: str | None
) -> None:
    found = cause_of_wake(
        names.split(), idle=idle, on_interrupt_stack=on_interrupt_stack, in_syscall=in_syscall
    )
    assert found == cause


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bpf_prog_1a8882aae41cf228_wait_switch", True),
        ("bpf_trace_run4", True),
        ("__traceiter_sched_switch", True),
        ("__bpf_trace_sched_waking", True),
        ("__schedule", True),
        ("schedule", False),
        ("futex_wait", False),
    ],
)
def test_frames_of_the_tracing_itself(name: str, expected: bool) -> None:
    assert is_tracing(name) == expected
