"""CUPTI is not attached or let go of while the process makes contexts; with a sampler there, in cuInit."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpuprof.sampler import gpu_ring

Start = Callable[..., Any]
Listen = Callable[..., Any]
SETTLE_S = 0.8
EXPECT_S, UNSETTLED_S = 2 * SETTLE_S, 3 * SETTLE_S
MEET_S, BUSY_S = 1.0, 2.0
WAITING = "it makes CUDA contexts over and over"


@pytest.fixture(scope="module")
def slow(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library with times that a test can tell apart."""
    times = {"EXPECT_NS": EXPECT_S, "UNSETTLED_NS": UNSETTLED_S}
    flags = [f"-D{name}={int(seconds * 1e9)}ull" for name, seconds in times.items()]
    return kit.build(tmp_path_factory.mktemp("slow"), library=flags, settle_ns=int(SETTLE_S * 1e9))


def subscribers(program: Any) -> int:
    return int(program.counters.get("subscribers", 0))


def test_one_who_is_there_while_contexts_are_made_waits(
    start: Start, listen: Listen, kit: Any, slow: Any
) -> None:
    program = start(which=slow).init()
    listener = listen(program, wait=False)
    end, turn = time.monotonic() + UNSETTLED_S + SETTLE_S, 0  # longer than it would wait for any of them
    while time.monotonic() < end:
        program.ask(f"contexts {1 + turn % 3} 0")
        time.sleep(0.1)
        assert (listener.facts.state, subscribers(program)) == ("waiting", 0), turn
        turn += 1
    assert WAITING in listener.facts.message
    listener.close()
    listener = listen(program, lock=False)
    kit.wait_for(lambda: listener.facts.message == "", what="the end of a message for one who has left")
    assert listener.ring.lock()
    began = time.monotonic()
    listener.reach("recording")
    assert time.monotonic() - began > SETTLE_S / 2
    assert listener.facts.message == ""
    program.launch(101)
    listener.expect(101)


def test_an_answer_that_waited_for_a_context_is_a_context_in_the_making(
    start: Start, listen: Listen, slow: Any
) -> None:
    program = start(which=slow).init()
    program.ask("contexts 1 25000000")
    listener = listen(program, wait=False)
    time.sleep(3 * SETTLE_S)
    assert (listener.facts.state, subscribers(program)) == ("waiting", 0)
    program.ask("contexts 1 0")
    listener.reach("recording")


def test_a_process_without_a_primary_context_is_recorded_later(
    start: Start, listen: Listen, slow: Any
) -> None:
    program = start(which=slow, MOCK_CUDA_CONTEXTS="0").init()
    listener = listen(program, wait=False)
    time.sleep(2 * SETTLE_S)
    assert (listener.facts.state, subscribers(program)) == ("waiting", 0)
    listener.reach("recording")
    program.launch(53)
    listener.expect(53)


def test_where_a_sampler_is_expected_it_attaches_within_the_driver_s_start(
    start: Start, listen: Listen, slow: Any
) -> None:
    """And not later again: what is launched before somebody listens is of the same attach."""
    program = start(which=slow, GPUPROF_EXPECT_LISTENER="1", MOCK_CUDA_CONTEXTS="0").init()
    assert subscribers(program) == 1
    program.ask("contexts 1 0")
    program.launch(7, "early")
    listener = listen(program)
    program.launch(101, "later")
    listener.expect(108)
    assert listener.by_name() == {"early": 7, "later": 101}
    assert listener.facts.uuids[1] is not None
    time.sleep(EXPECT_S + SETTLE_S)  # longer than it is expected
    assert listener.facts.state == "recording"
    assert program.counters["subscribes"] == 1
    assert program.faults == {}


def test_what_came_before_the_sampler_that_is_expected_can_be_placed_and_named(
    start: Start, listen: Listen, slow: Any
) -> None:
    """The clocks are compared once a second, and a name is told once."""
    program = start(which=slow, GPUPROF_EXPECT_LISTENER="1").init()
    program.launch(7, "early")
    listen(program, lock=False).reach_records(7)
    listener = listen(program)
    program.launch(3, "early")
    listener.expect(10)
    assert listener.slots["kind"][0] == gpu_ring.CLOCK
    assert listener.by_name() == {"early": 10}


def test_who_is_expected_and_does_not_come_is_not_waited_for(
    start: Start, listen: Listen, kit: Any, slow: Any
) -> None:
    program = start(which=slow, GPUPROF_EXPECT_LISTENER="1").init()
    assert subscribers(program) == 1
    listener = listen(program, lock=False)
    listener.reach("detaching")
    program.launch(1)
    kit.wait_for(lambda: subscribers(program) == 0, what="the finalize")
    listener.reach("waiting")
    assert program.faults == {}


@pytest.mark.parametrize("value", ["0", "", "yes"])
def test_nobody_is_expected(start: Start, slow: Any, value: str) -> None:
    program = start(which=slow, GPUPROF_EXPECT_LISTENER=value).init()
    time.sleep(0.1)
    assert program.counters == {}


@pytest.fixture(scope="module")
def heard(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """A library that no other test's programs have, patient, and the address that it knocks at."""
    patience = f"-DBUSY_NS={int(BUSY_S * 1e9)}ull"
    name = f"{kit.RING_NAME}-{os.getpid()}"
    return kit.build(tmp_path_factory.mktemp("heard"), ring_name=name, library=[patience]), f"\0{name}"


@pytest.fixture
def ear(heard: tuple[Any, str]) -> Iterator[socket.socket]:
    """A sampler's socket, that libraries knock at."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(heard[1])
        listening.listen(4)
        listening.settimeout(10)
        yield listening


def knocker(ear: socket.socket) -> int:
    knocking, _ = ear.accept()
    with knocking:
        said = knocking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    return int(struct.unpack("iII", said)[0])


def test_the_driver_s_start_waits_for_a_sampler_that_hears_of_the_ring(
    start: Start, listen: Listen, heard: tuple[Any, str], ear: socket.socket
) -> None:
    program = start(which=heard[0])
    program.tell("init")
    assert knocker(ear) == program.pid
    listener = listen(program)
    began = time.monotonic()
    program.answer("init")
    assert time.monotonic() - began < MEET_S / 2
    program.launch(7, "first")
    listener.expect(7)
    assert listener.by_name() == {"first": 7}
    assert program.faults == {}


def test_it_does_not_wait_long(start: Start, heard: tuple[Any, str], ear: socket.socket) -> None:
    program = start(which=heard[0])
    began = time.monotonic()
    program.init()
    assert MEET_S * 0.9 < time.monotonic() - began < MEET_S + 5
    assert subscribers(program) == 1


@contextmanager
def crowd(address: str) -> Iterator[None]:
    """So many who wait to be heard that nobody else can."""
    with ExitStack() as stack:
        with suppress(BlockingIOError):
            for _ in range(100):
                one = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                one.setblocking(False)
                one.connect(address)
        yield


def test_it_knocks_again_where_too_many_do(
    start: Start, listen: Listen, heard: tuple[Any, str], ear: socket.socket
) -> None:
    with crowd(heard[1]):
        program = start(which=heard[0])
        program.tell("init")
        listening = listen(program, lock=False)
        while knocker(ear) != program.pid:
            pass
        assert listening.ring.lock()
        program.answer("init")


def test_it_gives_up_soon_where_nobody_is_heard(
    start: Start, heard: tuple[Any, str], ear: socket.socket
) -> None:
    with crowd(heard[1]):
        program = start(which=heard[0])
        began = time.monotonic()
        program.init()
        assert time.monotonic() - began > BUSY_S * 0.9
        assert program.counters == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_socket_of_somebody_else_is_not_waited_for(start: Start, heard: tuple[Any, str]) -> None:
    code = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.bind(chr(0) + sys.argv[1]); s.listen(4); print('there', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, heard[1][1:]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == b"there\n"
        program = start(which=heard[0])
        began = time.monotonic()
        program.init()
        assert time.monotonic() - began < MEET_S / 2
        assert program.counters == {}
        squatter.kill()


def test_where_nobody_hears_it_does_not_wait(start: Start) -> None:
    program = start()
    began = time.monotonic()
    program.init()
    assert time.monotonic() - began < MEET_S / 2
    assert program.counters == {}


def test_a_detach_waits_for_contexts_but_not_for_ever(
    start: Start, listen: Listen, kit: Any, slow: Any
) -> None:
    program = start(which=slow).init()
    listener = listen(program)
    began = time.monotonic()
    program.ask("contexts 3 25000000")
    time.sleep(0.1)
    listener.close()
    reader = listen(program, lock=False)
    reader.reach("detaching")
    assert time.monotonic() - began > UNSETTLED_S / 2
    program.launch(1)
    kit.wait_for(lambda: subscribers(program) == 0, what="the finalize")


def test_a_refusal_within_the_driver_s_start_is_tried_again(
    start: Start, listen: Listen, tmp_path: Path
) -> None:
    program = start(script="subscribe_result=39", GPUPROF_EXPECT_LISTENER="1").init()
    listener = listen(program, wait=False)
    listener.reach("refused")
    program.ask("set subscribe_result 0")
    listener.reach("recording")


def test_contexts_that_were_made_long_ago_do_not_count(start: Start, listen: Listen, slow: Any) -> None:
    """A detach waits again for those that are made later."""
    program = start(which=slow).init()
    listener = listen(program)
    program.ask("contexts 3 0")
    time.sleep(UNSETTLED_S + SETTLE_S)  # settled, and longer ago than a detach waits
    began = time.monotonic()
    program.ask("contexts 3 25000000")
    time.sleep(0.1)
    listener.close()
    listen(program, lock=False).reach("detaching")
    assert time.monotonic() - began > UNSETTLED_S / 2


def test_another_library_is_started_before_it_attaches(
    start: Start, listen: Listen, kit: Any, tmp_path: Path
) -> None:
    """Which has CUPTI to itself, as it has without this one."""
    source, other, mark = tmp_path / "other.c", tmp_path / "other.so", tmp_path / "mark"
    source.write_text(
        "#include <dlfcn.h>\n#include <fcntl.h>\n#include <stdlib.h>\n"
        "int InitializeInjection(void);\n"
        "static void call(void *user, int domain, unsigned id, const void *data)\n"
        "{ (void)user, (void)domain, (void)id, (void)data; }\n"
        "int InitializeInjection(void)\n{\n"
        '    void *subscriber, *cupti = dlopen(getenv("GPUPROF_CUPTI"), RTLD_NOW);\n'
        "    int (*subscribe)(void **, void (*)(void *, int, unsigned, const void *), void *);\n"
        '    *(void **)&subscribe = dlsym(cupti, "cuptiSubscribe");\n'
        '    return subscribe(&subscriber, call, NULL) == 0 && open(getenv("MARK"), O_CREAT, 0600) >= 0;\n}\n'
    )
    kit._gcc(other, [source], "-shared", "-fPIC")
    program = start(GPUPROF_EXPECT_LISTENER="1", GPUPROF_NEXT_INJECTION=str(other), MARK=str(mark)).init()
    assert mark.exists()
    listen(program, wait=False).reach("refused")


def test_a_process_that_got_no_thread_ends_at_once(start: Start, kit: Any, tmp_path: Path) -> None:
    """Its exit does not wait for a thread that there never was."""
    source, refuses = tmp_path / "refuses.c", tmp_path / "refuses.so"
    source.write_text(
        "#include <errno.h>\n#include <pthread.h>\n"
        "int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with)\n"
        "{ (void)thread, (void)how, (void)run, (void)with; return EAGAIN; }\n"
    )
    kit._gcc(refuses, [source], "-shared", "-fPIC")
    patient = kit.build(tmp_path / "patient", library=("-DEND_WAIT_S=60",))
    program = start(which=patient, GPUPROF_EXPECT_LISTENER="1", LD_PRELOAD=str(refuses)).init()
    assert subscribers(program) == 1
    program.ask("launch 1 a kernel k 1")
    assert program.end("exit 0") == 0
