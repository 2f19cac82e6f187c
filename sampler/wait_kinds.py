"""What a thread waited for, and what ended its wait, from the names of kernel functions; where those are
hidden, from the number of the system call.

Names are innermost first. The functions are those of kernels 5.15 to 6.18; a name that is not known changes
nothing. The numbers of system calls are those of x86-64.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

RUNNABLE = "runnable, not scheduled"
PAGE_FAULT = "page fault"
OTHER = "other wait"
A_TIMER = "a timer"

_FAULT = re.compile(r"(asm_)?exc_page_fault$|handle_mm_fault$|do_user_addr_fault$")


def _any_of(text: str) -> re.Pattern[str]:
    """Matches a name that begins with any of these words; "$" ends a name."""
    return re.compile("(?:" + "|".join(text.split()) + ")")


# The first function that any of these knows decides, seen from the innermost one on.
_KINDS = (
    ("futex", _any_of("(__)?futex_(wait|lock|do_wait|requeue|unqueue) do_futex rt_mutex_(slowlock|wait)")),
    ("sleep", _any_of("(do|hrtimer)_nanosleep common_nsleep (__x64_)?sys_(clock_)?nanosleep timerfd_read")),
    (
        "poll",
        _any_of(
            """ep_poll (do_|__x64_sys_)?epoll_p?wait do_(sys_)?poll do_select core_sys_select io_pgetevents
            read_events inotify_read"""
        ),
    ),
    (
        "pipe or socket",
        _any_of(
            """(anon_)?pipe_(read|write|wait) fifo_ wait_for_partner splice_to_pipe eventfd_read
            unix_(stream|dgram|wait) (sk|inet)_(wait|stream_wait|csk_wait|csk_accept|accept) sk_stream_wait
            sock_(recv|send|alloc_send) (tcp|udp|mptcp|raw)_?v?6?_(recv|send|connect) __?skb_wait skb_recv
            netlink_recv vsock_ virtio_transport n_tty_ tty_ ldsem"""
        ),
    ),
    ("child process", _any_of("(__)?do_wait$ do_wait4 kernel_wait wait_consider do_wait_thread")),
    ("signal", _any_of("do_sigtimedwait sigsuspend (__x64_)?sys_pause signalfd_")),
    ("stopped", _any_of("do_signal_stop ptrace_(stop|notify|do_notify) do_freezer do_jobctl __refrigerator")),
    ("System V semaphore or queue", _any_of("(__)?do_semtimedop do_msg(rcv|snd) (do_)?mq_timed wq_sleep")),
    ("io_uring", _any_of("io_cqring_ io_uring_ io_wq io_sq_thread")),
    ("NVIDIA ioctl", _any_of("nvidia_ nv_ nvUvm uvm_ rm_ os_(acquire|cond)")),
    (
        "disk or file I/O",
        _any_of(
            """io_schedule folio_(wait|lock) (__)?filemap_
            (__)?wait_on_(page|folio|buffer|bit|freeing) bit_wait_io __lock_page jbd2_ blk_ blkdev_
            submit_bio bio_ dio_ iomap_ sync_ vfs_fsync wb_wait balance_dirty writeback_ ext4_ xfs_
            btrfs_ f2fs_ nfs4?_ rpc_ fuse_ request_wait_answer ovl_ lookup_ lock_two cifs_ ceph_
            p9_ v9fs_ netfs_ ll_ cl_ gpfs"""
        ),
    ),
)
_GENERAL = (
    (
        "kernel lock",
        _any_of(
            """(__)?mutex_lock __ww_mutex rwsem_(down|read|write) percpu_(rwsem|down)
            down_(read|write|killable|inter) (__)?down(_common)?$ rt_mutex synchronize_ (__)?wait_rcu"""
        ),
    ),
    ("exit", _any_of("do_exit do_group_exit exit_mm coredump_ do_coredump mmput")),
    ("exec", _any_of("de_thread begin_new_exec")),
)
_SYSCALLS = {
    "futex": (202, 449, 454, 455, 456),
    "poll": (7, 23, 208, 232, 270, 271, 281, 333, 441),
    "sleep": (35, 230),
    "pipe or socket": (42, 43, 44, 45, 46, 47, 275, 276, 278, 288, 299, 307),
    "child process": (61, 247),
    "signal": (34, 128, 130),
    "disk or file I/O": (
        *(2, 17, 18, 26, 74, 75, 76, 77, 162, 217, 257, 262, 277, 285, 295, 296, 306, 327, 328, 332, 437),
    ),
    "read": (0, 19),
    "write": (1, 20),
    "ioctl": (16,),
    "System V semaphore or queue": (65, 69, 70, 220, 242, 243),
    "io_uring": (426,),
    "exit": (60, 231),
    "exec": (59, 322),
}
_OF_SYSCALL = {number: kind for kind, numbers in _SYSCALLS.items() for number in numbers}

_TRACING = _any_of("(__)?bpf_ __traceiter_ perf_trace_ trace_event_ __SC[TK]__ __schedule$")
_INTERRUPT = _any_of(
    """(asm_|__)?(sysvec_|common_interrupt|exc_nmi|spurious_interrupt) irq_exit_rcu __irq_exit
    handle_irq_event run_ksoftirqd"""
)
_SOFT_TIMER = _any_of("run_timer_softirq hrtimer_run_softirq expire_timers call_timer_fn __run_timers tmigr_")
_CAUSES = (
    (
        A_TIMER,
        _any_of(
            """hrtimer_wakeup __hrtimer_run_queues process_timeout it_real_fn posix_timer timerfd_tmr alarm_
            call_timer_fn run_timer_softirq expire_timers tmigr_ delayed_work_timer"""
        ),
    ),
    ("the GPU driver", _any_of("nvidia nv_ uvm_ rm_isr os_")),
    (
        "a disk",
        _any_of(
            """blk_ bio_ nvme virtblk scsi ata_ ahci end_(page|bio|buffer|folio) folio_end jbd2
            md_ dm_ loop_"""
        ),
    ),
    (
        "the network",
        _any_of(
            """net_rx napi_ __napi tcp_ udp_ ip6?_(rcv|local) __?netif sock_def sk_ mlx5 ena_ virtnet ib_"""
        ),
    ),
)


def kind_of_wait(
    names: Sequence[str], syscall: int, *, runnable: bool = False, binaries: Sequence[str] = ()
) -> str:
    """The kind of wait, in words that stay the same from release to release.

    `names`: kernel functions at the switch-out, `binaries` theirs ("[nvidia]"); `syscall`: number, negative
    outside of one; `runnable`: it was not waiting but preempted.
    """
    if runnable:
        return RUNNABLE
    if any(_FAULT.match(name) for name in names):
        return PAGE_FAULT
    for index, name in enumerate(names):
        if index < len(binaries) and binaries[index].startswith("[nvidia"):
            return "NVIDIA ioctl"
        for kind, pattern in _KINDS:
            if pattern.match(name):
                return kind
    for kind, pattern in _GENERAL:
        if any(pattern.match(name) for name in names):
            return kind
    if syscall in _OF_SYSCALL:
        return _OF_SYSCALL[syscall]
    hidden = not names or all(name.startswith("[") for name in names)
    return PAGE_FAULT if syscall < 0 and hidden else OTHER


def cause_of_wake(
    names: Sequence[str], *, idle: bool, on_interrupt_stack: bool, in_syscall: bool
) -> str | None:
    """What woke a thread where it was not the process that ran there: "a timer", "a disk", "the network",
    "the GPU driver", or "an interrupt"; None when it was.

    An interrupt lands on whatever runs. Soft interrupts are also run by a process itself when it lets them
    again, as at the end of a send over loopback: then that process is the waker, unless a timer was due.
    `names`: kernel functions at the wake; `in_syscall`: the process was in a system call.
    """
    named = any(not name.startswith("[") for name in names)
    if named:
        interrupted = idle or any(_INTERRUPT.match(name) for name in names)
        timer = any(_SOFT_TIMER.match(name) for name in names)
    else:
        interrupted, timer = idle or on_interrupt_stack or not in_syscall, False
    if not interrupted and not timer:
        return None
    for name in names:
        if _INTERRUPT.match(name):
            break
        for cause, pattern in _CAUSES:
            if pattern.match(name):
                return cause
    return "an interrupt"


def is_tracing(name: str) -> bool:
    """Whether a kernel function belongs to how the stack was taken, or to every switch-out."""
    return _TRACING.match(name) is not None
