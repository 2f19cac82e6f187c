"""Stacks of waits: what is cut, how host, wait and waker are put together, and what is asked for again."""

from __future__ import annotations

import re
from importlib import resources
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuprof.bpf.records import HEADER, Batch, batch_of
from gpuprof.bpf.wait_programs import COUNTS_TWICE, MAY_HAVE, TIME_WAS_UP, UNWALKED_NS, WAIT_RECORD
from gpuprof.sampler import wait_stacks
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.gone_processes import LATE_NS, GoneProcesses
from gpuprof.sampler.wait_stacks import WaitStacks, stable_name
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.tables import Tables

TRACING = ["__schedule", "bpf_trace_run4", "bpf_prog_1_wait_switch"]
SYSCALL = ["entry_SYSCALL_64_after_hwframe", "do_syscall_64", "do_futex", "futex_wait", "schedule"]


class Fake:
    """In place of the resolver and the programs: stacks are given by their hash."""

    def __init__(self) -> None:
        self.ids = FrameIds()
        self.frames: dict[int, tuple[list[str], list[str], bool]] = {}
        self.resent: list[tuple[int, int]] = []
        self.stacks = WaitStacks(self, self)  # type: ignore[arg-type]

    def resend_stack(self, pid: int, hashed: int) -> None:
        self.resent.append((pid, hashed))

    def resolve(self, batch: Batch) -> Any:
        found = []
        for hashed in batch.extra.tolist():
            user, kernel, complete = self.frames[hashed]
            frames = [self.ids.get(name, "", "app", FrameKind.NATIVE) for name in user]
            frames += [self.ids.get(name, "", "[kernel]", FrameKind.KERNEL_SPACE) for name in kernel]
            found.append(SimpleNamespace(frames=tuple(frames), complete=complete))
        return SimpleNamespace(stacks=found)

    def take(self, pid: int, hashed: int, user: list[str], kernel: list[str], complete: bool = True) -> None:
        self.frames[hashed] = user, kernel, complete
        header = np.zeros(1, HEADER)
        header["pid"], header["start_ns"], header["extra"], header["header_words"] = pid, pid * 10, hashed, 9
        self.stacks.take(batch_of(header.view(np.uint64), np.zeros(1, np.int64)), self.ids)

    def rows(self, tables: Tables, made: NDArray[np.void], runnable: bool = False) -> list[tuple[str, ...]]:
        chosen = np.full(len(made), runnable)
        stacks, self.by_thread = self.stacks.ids_of(made, chosen, tables, self.ids)
        return [path(tables, int(stack)) for stack in stacks]


def path(tables: Tables, stack: int) -> tuple[str, ...]:
    view = tables.view()
    names = []
    while stack:
        names.append(view.strings[view.name[view.frame_function[view.frame[stack]]]])
        stack = int(view.parent[stack])
    return tuple(reversed(names))


def waits(**values: Any) -> NDArray[np.void]:
    made = np.zeros(1, WAIT_RECORD)
    made["pid"], made["start_ns"], made["stack"], made["syscall"], made["state"] = 7, 70, 1, 202, 1
    for name, value in values.items():
        made[name] = value
    return made


BY_WORKER = {
    "waker_pid": 8,
    "waker_tid": 9,
    "waker_start_ns": 80,
    "waker_stack": 2,
    "waker_comm": b"worker-3",
}


@pytest.fixture
def fake() -> Fake:
    made = Fake()
    made.take(7, 1, ["main", "wait_for_it"], SYSCALL + TRACING)
    made.take(8, 2, ["run", "unlock"], ["entry", "futex_wake", "wake_up_q", "try_to_wake_up", *TRACING[1:]])
    return made


HOST = ("main", "wait_for_it", *SYSCALL)


def test_host_then_the_wait_then_the_waker(fake: Fake) -> None:
    rows = fake.rows(Tables(1), waits(**BY_WORKER))
    assert rows == [(*HOST, "futex", "woken by worker", "run", "unlock")]
    assert fake.by_thread.tolist() == [True]


def test_a_stack_that_was_left_out_is_said_to_be(fake: Fake) -> None:
    left_out = waits(**BY_WORKER, stack=0, weight=0)
    assert fake.rows(Tables(1), left_out) == [
        (wait_stacks.NOT_TAKEN, "futex", "woken by worker", "run", "unlock")
    ]
    assert fake.resent == []  # there is none that could come again


def test_time_in_the_queue_of_a_processor_has_no_waker(fake: Fake) -> None:
    assert fake.rows(Tables(1), waits(**BY_WORKER), runnable=True) == [(*HOST, "runnable, not scheduled")]
    assert fake.by_thread.tolist() == [False]


def test_an_interrupt_is_not_what_it_hit(fake: Fake) -> None:
    fake.take(8, 2, ["run", "innocent"], ["asm_sysvec_apic_timer_interrupt", "hrtimer_wakeup", *TRACING[1:]])
    assert fake.rows(Tables(1), waits(**BY_WORKER)) == [(*HOST, "futex", "woken by a timer")]
    assert fake.by_thread.tolist() == [False]


def test_a_wake_that_was_not_seen(fake: Fake) -> None:
    assert fake.rows(Tables(1), waits()) == [(*HOST, "futex")]


def test_a_wake_that_was_not_seen_after_the_time_limit(fake: Fake) -> None:
    late, tables = waits(waker_flags=TIME_WAS_UP), Tables(1)
    assert fake.rows(tables, late) == [(*HOST, "futex", "woken by a timer")]
    assert fake.by_thread.tolist() == [False]
    assert fake.rows(tables, late, runnable=True) == [(*HOST, "runnable, not scheduled")]


def test_frames_of_a_waker_that_were_lost_are_asked_for_again(fake: Fake) -> None:
    rows = fake.rows(Tables(1), waits(**{**BY_WORKER, "waker_stack": 6}))
    assert rows == [(*HOST, "futex", "woken by worker")]
    assert fake.resent == [(8, 6)]


def test_a_kernel_thread_wakes_with_its_own_frames(fake: Fake) -> None:
    fake.take(8, 2, [], ["ret_from_fork", "kthread", "kjournald2", "try_to_wake_up", *TRACING[1:]])
    woken = fake.rows(Tables(1), waits(**{**BY_WORKER, "waker_comm": b"jbd2/vda-8"}))
    assert woken == [
        (*HOST, "futex", "woken by jbd2/vda", "ret_from_fork", "kthread", "kjournald2", "try_to_wake_up")
    ]


def test_frames_that_were_lost_are_asked_for_again(fake: Fake) -> None:
    rows = fake.rows(Tables(1), waits(stack=5, syscall=232))
    assert rows == [("[stack not kept]", "poll")]
    assert fake.resent == [(7, 5)]
    assert fake.stacks.not_kept == 1
    fake.rows(Tables(1), waits(stack=0))  # was never taken: nothing to ask for
    assert len(fake.resent) == 1


def test_stacks_that_are_cut_short_are_counted(fake: Fake) -> None:
    fake.take(7, 1, ["[truncated: x]", "inner"], SYSCALL + TRACING, complete=False)
    fake.rows(Tables(1), waits())
    assert fake.stacks.truncated == 1


def test_a_new_generation_and_a_new_set_of_frame_ids(fake: Fake) -> None:
    before = fake.rows(Tables(1), waits(**BY_WORKER))
    assert fake.rows(Tables(2), waits(**BY_WORKER)) == before
    fake.ids = FrameIds()
    fake.stacks.tidy(fake.ids)
    assert fake.rows(Tables(2), waits(**BY_WORKER)) == before


def test_stacks_with_wakers_are_bounded(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_stacks, "MAX_WITH_WAKER", 1)
    tables = Tables(1)
    fake.take(8, 3, ["run", "other"], ["entry", *TRACING[1:]])
    first = fake.rows(tables, waits(**BY_WORKER))
    assert fake.rows(tables, waits(**{**BY_WORKER, "waker_stack": 3})) == [
        (*HOST, "futex", "woken by worker")
    ]
    assert fake.rows(tables, waits(**BY_WORKER)) == first


def test_stacks_of_processes_that_are_gone_are_let_go_of(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 10**9
    monkeypatch.setattr(wait_stacks, "LOOK_EVERY", 3)
    monkeypatch.setattr(wait_stacks, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    fake.stacks._gone = GoneProcesses({1: 0, 8: 0, 9: 0}.get)  # 7 is gone
    tables = Tables(1)
    fake.stacks.tidy(fake.ids)
    fake.take(9, 4, ["elsewhere"], SYSCALL + TRACING)
    by_gone = waits(
        pid=9, start_ns=90, stack=4, waker_pid=7, waker_start_ns=70, waker_stack=1, waker_comm=b"g"
    )
    fake.rows(tables, np.concatenate([waits(**BY_WORKER), waits(pid=9, start_ns=90, stack=4), by_gone]))
    fake.stacks.tidy(fake.ids)
    assert fake.rows(tables, waits()) == [(*HOST, "futex")]  # what was recorded before the end still comes
    now_ns += LATE_NS
    fake.stacks.tidy(fake.ids)
    assert {key[0] for key in fake.stacks._stacks} == {8, 9}
    assert len(fake.stacks._row_stacks) == 1
    assert fake.rows(tables, waits(pid=9, start_ns=90, stack=4)) == [("elsewhere", *SYSCALL, "futex")]
    assert fake.resent == []
    assert fake.rows(tables, waits()) == [(wait_stacks.NOT_KEPT, "futex")]
    assert fake.resent == [(7, 1)]


def test_stacks_without_rows_are_let_go_of(fake: Fake) -> None:
    fake.stacks._forget({(7, 70)})
    assert [key[0] for key in fake.stacks._stacks] == [8]


def test_stacks_that_end_in_the_same_kernel_functions_share_them(fake: Fake) -> None:
    fake.take(9, 4, ["elsewhere"], SYSCALL + TRACING)
    one, other = (fake.stacks.find(key) for key in ((7, 70, 1), (9, 90, 4)))
    assert one is not None
    assert other is not None
    assert one.names == tuple(reversed(SYSCALL))
    assert one.names is other.names
    assert one.binaries is other.binaries


@pytest.mark.parametrize(
    ("comm", "name"),
    [
        (b"python3.11", "python3.11"),
        (b"pt_data_worker", "pt_data_worker"),
        (b"kworker/u8:2", "kworker"),
        (b"ThreadPoolExec-0_3", "ThreadPoolExec"),
        (b"Thread-7 (worke", "Thread"),
        (b"cuda00001400006", "cuda"),
        (b"12345", "12345"),
        (b"x\x1b[31m", "x␛[31m"),
    ],
)
def test_names_of_wakers_are_stable_and_clean(comm: bytes, name: str) -> None:
    assert stable_name(comm) == name


def test_the_record_is_that_of_the_kernel_side() -> None:
    text = resources.files("gpuprof.bpf").joinpath("layout.bpf.h").read_text()
    size = re.search(r"#define WAIT_RECORD_BYTES (\d+)", text)
    assert size is not None
    assert int(size[1]) == WAIT_RECORD.itemsize
    long = re.search(r"#define UNWALKED_NS (\d+)ull", text)
    assert long is not None
    assert int(long[1]) == UNWALKED_NS
    twice = re.search(r"#define WAIT_COUNTS_TWICE (\d+)", text)
    assert twice is not None
    assert int(twice[1]) == COUNTS_TWICE
    maps = resources.files("gpuprof.bpf").joinpath("maps.bpf.h").read_text()
    bits = re.search(r"#define MAY_HAVE_BITS (\d+)", maps)
    assert bits is not None
    assert 1 << int(bits[1]) == MAY_HAVE
    fields = re.search(
        r"struct wait \{\n    struct record_header header;\n(.*?)struct switch_rate", text, re.S
    )
    assert fields is not None
    names = re.findall(r"(\w+)(?:\[\w+\])?;", re.sub(r"//.*", "", fields[1]).replace(", ", "; u32 "))
    ours = [name for name in WAIT_RECORD.names or () if name not in (HEADER.names or ())]
    assert [name for name in names if name != "waker"] == [
        name for name in ours if name not in {"waker_tid", "waker_pid"}
    ]
