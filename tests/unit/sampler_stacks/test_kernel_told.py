"""Messages about processes that are gone by the time they are read: who they were, what they mapped, their
code.
"""

from __future__ import annotations

import os
import struct
import time

import pytest
from noted_tables import NotedTables

from gpuprof.bpf.messages import (
    DEVICE_VDSO,
    CodeMessage,
    MappingMessage,
    Message,
    WhoMessage,
    pack_key,
    parse_message,
)
from gpuprof.bpf.records import ControlMessage, MessageReason
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.generated_code import advice, runtime_of
from gpuprof.sampler.kernel_told import FileNames, with_mapping
from gpuprof.sampler.maps import Mapping, parse_maps, read_maps
from gpuprof.sampler.process_follower import ProcessFollower
from gpuprof.sampler.processes import describe
from gpuprof.sampler.symbol_store import SymbolStore
from gpuprof.sampler.unwind_tables import executable_pages

GONE = 0x7FFFFFF0  # no process can have this pid
START = 123_450_000_000
LIBC = ("fd:01", 77, 5)
OTHER = ("fd:01", 78, 6)


@pytest.fixture
def follower() -> ProcessFollower:
    return ProcessFollower(NotedTables(), FrameIds(), SymbolStore())  # type: ignore[arg-type]


def who(name: bytes = b"short", own_pid: int = 7) -> WhoMessage:
    return WhoMessage(GONE, START + 1234, 0, 1, own_pid, name, b"/opt/short\0-x\0")


def mapped(start: int, key: object = LIBC, time_ns: int = 10, size: int = 0x1000) -> MappingMessage:
    return MappingMessage(GONE, START, time_ns, start, start + size, 0x2000, key, True)  # type: ignore[arg-type]


def names(follower: ProcessFollower, time_ns: int) -> list[tuple[int, object]]:
    process = follower.get(GONE, START, time_ns, uid=0, comm=b"comm")
    return [(mapping.start, mapping.key) for mapping in process.mappings]


def test_messages_are_read_as_they_are_laid_out() -> None:
    head = struct.pack("<II", 12, int(MessageReason.MAPPING))
    body = struct.pack("<QQQQQIIIIQQ", 0x1000, 0x2000, 0x3000, 77, 5, 0xFD << 20 | 1, 0, 1, 0, 99, START)
    assert parse_message(head + body) == MappingMessage(12, START, 99, 0x1000, 0x2000, 0x3000, LIBC, True)
    anonymous = struct.pack("<QQQQQIIIIQQ", 0x1000, 0x2000, 0, 0, 0, 0, 0, 0, 0, 99, START)
    assert parse_message(head + anonymous).key is None  # type: ignore[union-attr]
    vdso = struct.pack("<QQQQQIIIIQQ", 0x1000, 0x2000, 0, 0, 0, DEVICE_VDSO, 0, 1, 0, 99, START)
    assert parse_message(head + vdso).key == ("vdso",)  # type: ignore[union-attr]
    raw = struct.pack("<IIQIIII16s192s", 12, int(MessageReason.WHO), START, 1000, 1, 7, 3, b"name", b"a\0b")
    assert parse_message(raw) == WhoMessage(12, START, 1000, 1, 7, b"name", b"a\0b")
    parts = (b"c" * 224, b"n" * 192, b"f" * 256, b"l" * 512)
    raw = struct.pack("<IIQ4Q", 12, int(MessageReason.CODE), START, 1, 0, 3, 4) + b"".join(parts)
    assert parse_message(raw) == CodeMessage(12, START, ((1, parts[0]), (3, parts[2]), (4, parts[3])))
    assert parse_message(struct.pack("<IIQ", 1, int(MessageReason.EXIT), 0)) == ControlMessage(
        1, MessageReason.EXIT, 0
    )


def test_a_key_is_the_one_that_the_kernel_makes() -> None:
    assert pack_key(LIBC) == struct.pack("<QQII", 77, 5, 0xFD << 20 | 1, 0)
    assert pack_key(("vdso",)) == struct.pack("<QQII", 0, 0, DEVICE_VDSO, 0)
    assert pack_key(None) is None


def test_the_pages_of_code_are_those_that_the_kernel_counts() -> None:
    """/proc/PID/status has mm->exec_vm as the sum of two lines."""
    with open("/proc/self/status", encoding="utf-8") as file:
        sizes = {line.split(":")[0]: line.split()[1] for line in file if line.startswith(("VmExe", "VmLib"))}
    assert executable_pages(read_maps(os.getpid())) * 4 == int(sizes["VmExe"]) + int(sizes["VmLib"])


def test_a_process_that_is_gone_has_its_name_and_files(follower: ProcessFollower) -> None:
    files = FileNames()
    line = b"1000-2000 r-xp 00002000 fd:01 77   /usr/lib/libc.so.6\n"
    files.learn([Mapping(**{**vars_of(parse_maps(line)[0]), "stamp": 5})])
    follower._files = files
    follower.handle([who(), mapped(0x7000), mapped(0x1000, key=None)])
    process = follower.get(GONE, START + 99, 1000, uid=0, comm=b"thread")
    assert process.definition.name == "short"
    assert process.definition.cmdline == "/opt/short -x"
    assert process.definition.container_pid == 7
    assert [(m.start, m.kind, m.name) for m in process.mappings] == [
        (0x1000, "anonymous", "[anon]"), (0x7000, "file", "libc.so.6"),
    ]  # fmt: skip
    follower.handle([ControlMessage(GONE, MessageReason.EXIT, 2000)])
    assert follower.get(GONE, START, 1000, uid=0, comm=b"thread") is process


def vars_of(mapping: Mapping) -> dict[str, object]:
    return {name: getattr(mapping, name) for name in Mapping.__dataclass_fields__}


def test_a_file_in_the_place_of_another_is_there_from_its_time_on(follower: ProcessFollower) -> None:
    follower.handle([who(), mapped(0x7000, LIBC, 10), mapped(0x9000, LIBC, 11)])
    follower.handle([mapped(0x7800, OTHER, 50), mapped(0x7000, LIBC, 90)])
    assert names(follower, 20) == [(0x7000, LIBC), (0x9000, LIBC)]
    assert names(follower, 60) == [(0x7800, OTHER), (0x9000, LIBC)]
    assert names(follower, 95) == [(0x7000, LIBC), (0x9000, LIBC)]


def test_an_exec_changes_name_and_files_from_its_time_on(follower: ProcessFollower) -> None:
    exec_message = ControlMessage(GONE, MessageReason.EXEC, 100)
    messages: list[Message] = [who(b"sh"), mapped(0x7000, LIBC, 10), exec_message, who(b"cat")]
    follower.handle([*messages, mapped(0x7000, OTHER, 120)])
    assert names(follower, 50) == [(0x7000, LIBC)]
    assert names(follower, 130) == [(0x7000, OTHER)]
    # One row of the tree is one process: it has the name that it has now.
    assert follower.get(GONE, START, 50, uid=0, comm=b"sh").definition.name == "cat"


def test_what_is_told_of_another_process_with_the_same_pid_is_not_believed(
    follower: ProcessFollower,
) -> None:
    follower.handle([who(), mapped(0x7000)])
    late = MappingMessage(GONE, START + 10**10, 10, 0x9000, 0xA000, 0, OTHER, True)
    follower.handle([late])
    assert names(follower, 50) == [(0x7000, LIBC)]
    reused = follower.get(GONE, START + 10**10, 50, uid=0, comm=b"another")
    assert reused.definition.name == "another"
    assert reused.mappings == ()


def test_children_of_a_known_process_that_were_never_told(follower: ProcessFollower) -> None:
    own = describe(os.getpid())
    assert own is not None
    parent = follower.get(os.getpid(), own.start_ns, time.monotonic_ns(), uid=0, comm=b"x")
    follower.handle([ControlMessage(GONE, MessageReason.FORK, os.getpid())])
    follower.handle([ControlMessage(GONE, MessageReason.EXIT, 0)])
    child = follower.get(GONE, START, time.monotonic_ns(), uid=0, comm=b"child")
    assert child.definition.name == "child"
    assert child.mappings == parent.mappings


def test_mappings_that_overlap_are_replaced() -> None:
    line = "{:x}-{:x} r-xp 00000000 fd:01 {}   /lib/{}.so\n"
    text = "".join(line.format(at, at + 0x1000, at, at) for at in (0x1000, 0x2000, 0x3000))
    mappings = parse_maps(text.encode())
    (added,) = parse_maps(line.format(0x1800, 0x2800, 9, 9).encode())
    assert [m.start for m in with_mapping(mappings, added)] == [0x1800, 0x3000]


@pytest.mark.parametrize(
    ("names_mapped", "binary"),
    [
        (["java", "libjvm.so"], "[jit of java]"),
        (["node"], "[jit of node]"),
        (["nodetool"], "[jit]"),
        ([], "[jit]"),
    ],
)
def test_the_runtime_shows_in_the_files(names_mapped: list[str], binary: str) -> None:
    line = "{:x}-{:x} r-xp 00000000 fd:01 1   /lib/{}\n"
    text = "".join(line.format(n * 0x1000, (n + 1) * 0x1000, name) for n, name in enumerate(names_mapped, 1))
    runtime = runtime_of(parse_maps(text.encode()))
    assert runtime.binary == binary
    assert bool(advice(binary)) == (binary == "[jit of java]")
