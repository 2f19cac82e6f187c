"""Attaching to running processes: the library is loaded, over and over, and the program notices nothing: no
call fails, no time-out is early, no result is wrong. And what cannot be attached to is left alone, with the
reason.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.tui import attach

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

HERE = Path(__file__).parent
WORKLOADS = HERE / "workloads"
SOURCES = sorted((HERE.parents[1] / "bpf" / "attach").glob("*.c"))
NOBODY = 65534
COUNTED = "int count_calls(void);\nint call_count;\nint count_calls(void) { call_count++; return 0; }\n"
REFUSES = "int count_calls(void);\nint count_calls(void) { return -12; }\n"
WAITS = """#include <unistd.h>
__attribute__((constructor)) static void wait_here(void) { char byte; if (read(0, &byte, 1) < 0) _exit(1); }
"""
Start = Callable[..., "Target"]


class Target:
    """A program that answers a line on its standard input with its counts."""

    def __init__(self, *command: str | Path, **options: Any) -> None:
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        self.pid = self.process.pid
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ask(self) -> list[str]:
        self.tell()
        return self.line().split(" ")

    def counts(self) -> dict[str, tuple[int, int, str]]:
        """Of attach_target.c: (operations, errors, the first) by kind."""
        found = {}
        words = self.ask()
        while words != ["end"]:
            found[words[0]] = (int(words[1]), int(words[2]), words[3])
            words = self.line().split(" ")
        return found

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self.process.wait()


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    """A folder that all can read (pytest's own cannot be), with helper, target, and libraries."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    with tempfile.TemporaryDirectory(prefix="gpuprof-attach-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        _build(folder)
        yield folder


def _build(folder: Path) -> None:
    warnings = [
        "-std=c11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Wshadow",
        "-Wconversion",
        "-Wstrict-prototypes",
        "-Werror",
    ]
    subprocess.run(["gcc", *warnings, "-o", folder / "gpuprof_attach", *SOURCES], check=True)
    for name, text in (("counts", COUNTED), ("refuses", REFUSES), ("waits", WAITS)):
        (folder / f"{name}.c").write_text(text)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-o", folder / f"{name}.so", folder / f"{name}.c"], check=True
        )
    flags = ["-O2", "-std=gnu11", "-pthread"]
    for program in ("attach_target", "filtered", "loading"):
        subprocess.run(["gcc", *flags, "-o", folder / program, WORKLOADS / f"{program}.c"], check=True)


@pytest.fixture
def start(built: Path) -> Iterator[Start]:
    running: list[Target] = []

    def begin(*command: str | Path, **options: Any) -> Target:
        running.append(Target(*command, **options))
        return running[-1]

    yield begin
    for target in running:
        target.close()


@pytest.fixture
def idle() -> Iterator[Callable[..., int]]:
    """idle(command...) -> pid of a program that does nothing for long."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*command: str | Path, **options: Any) -> int:
        words = [str(word) for word in command or ("sleep", "600")]
        running.append(subprocess.Popen(words, stdin=subprocess.PIPE, **options))
        pid = running[-1].pid
        wait_until(lambda: Path(f"/proc/{pid}/wchan").exists() and _sleeps(pid))
        return pid

    yield begin
    for process in running:
        with contextlib.suppress(OSError):
            process.kill()
        process.communicate()


def _sleeps(pid: int) -> bool:
    """Whether it waits in a call that means to: a page fault or a read of the loader would be too early."""
    number, *arguments = Path(f"/proc/{pid}/syscall").read_text().split()
    return number in {"7", "34", "35", "230"} or (number == "0" and arguments[0] == "0x0")  # poll … sleep


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def load(
    built: Path,
    pid: int,
    library: Path | None = None,
    *,
    any_program: bool = True,
    before: Sequence[str] = (),
) -> attach.Attached:
    """What the helper says. `before`: words that come before it."""
    words = [*before, str(built / "gpuprof_attach"), *(["--any"] if any_program else [])]
    done = subprocess.run(
        [*words, str(pid), str(library or built / "counts.so"), "count_calls"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return attach.parse_answer(pid, done.stdout)


def refusal(built: Path, pid: int, library: Path | None = None, **options: Any) -> attach.AttachError:
    with pytest.raises(attach.AttachError) as caught:
        load(built, pid, library, **options)
    return caught.value


def calls_of(pid: int, library: str) -> int:
    """The counter in the library as the process has it mapped."""
    base = next(
        int(line.split("-")[0], 16)
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if library in line
    )
    path = next(part for part in (Path(f"/proc/{pid}/maps").read_text().split()) if part.endswith(library))
    table = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
    offset = next(int(line.split()[0], 16) for line in table.splitlines() if line.endswith(" call_count"))
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(base + offset)
        return int.from_bytes(memory.read(4), "little")


def regions(pid: int) -> int:
    """Anonymous executable memory: what attaching leaves behind, if it does."""
    return sum(
        1 for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if line.split()[1].startswith("r-xp") and line.split()[4] == "0" and "[" not in line
    )  # fmt: skip


def test_two_hundred_times_and_the_program_notices_nothing(built: Path, start: Start) -> None:
    target = start(built / "attach_target")
    threads = len(os.listdir(f"/proc/{target.pid}/task"))
    for _ in range(200):
        attached = load(built, target.pid)
        assert str(attached.tid) in os.listdir(f"/proc/{target.pid}/task")
    assert calls_of(target.pid, "counts.so") == 200
    counts = target.counts()
    assert len(counts) == 17
    assert {kind: count for kind, count in counts.items() if count[1]} == {}
    assert min(count[0] for count in counts.values()) > 5
    wait_until(lambda: len(os.listdir(f"/proc/{target.pid}/task")) == threads)
    wait_until(lambda: regions(target.pid) == 0)
    assert target.process.stdin is not None
    target.process.stdin.close()
    assert target.process.wait(60) == 0


@pytest.mark.parametrize(
    "kind",
    ["epoll", "poll", "ppoll", "signal", "select", "relative", "registers", "signals", "fork", "allocate"],
)
def test_with_one_kind_of_thread_to_choose(built: Path, start: Start, kind: str) -> None:
    target = start(built / "attach_target", kind)
    for _ in range(25):
        load(built, target.pid)
    counts = target.counts()[kind]
    assert counts[0] > 3
    assert counts[1:] == (0, "-")
    assert calls_of(target.pid, "counts.so") == 25


def test_a_python_program_with_many_threads(built: Path, start: Start) -> None:
    target = start(sys.executable, WORKLOADS / "attach_target.py", "24")
    for _ in range(60):
        load(built, target.pid)
    time.sleep(0.3)
    operations, errors, *first = target.ask()
    assert (int(errors), first) == (0, [])
    assert int(operations) > 100
    assert calls_of(target.pid, "counts.so") == 60


def test_a_copy_in_memory_where_the_file_cannot_be_seen(built: Path, start: Start, tmp_path: Path) -> None:
    """Another mount namespace, another root, and a file that only root may read."""
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    library = hidden / "hidden.so"
    shutil.copy(built / "counts.so", library)
    here = start(built / "attach_target", "poll", user=NOBODY, group=NOBODY, extra_groups=[])
    assert load(built, here.pid, library).from_memory
    assert not load(built, here.pid).from_memory
    elsewhere = start("unshare", "-m", built / "attach_target", "poll")
    assert load(built, elsewhere.pid, library).from_memory
    for target in (here, elsewhere):
        assert "/memfd:hidden.so (deleted)" in Path(f"/proc/{target.pid}/maps").read_text()
        links = [os.readlink(link) for link in Path(f"/proc/{target.pid}/fd").iterdir()]
        assert not [link for link in links if "memfd" in link]
        assert target.counts()["poll"][1] == 0


def test_a_tracer_that_is_killed_leaves_a_program_that_goes_on(built: Path, start: Start) -> None:
    """From the time on at which the thread runs the payload; before that it is a matter of microseconds."""
    target = start(built / "attach_target", "relative", "registers", "poll", "allocate")
    command = [built / "gpuprof_attach", "--any", str(target.pid), built / "counts.so", "count_calls"]
    chance = random.Random(5)
    for _ in range(40):
        helper = subprocess.Popen(command, stdout=subprocess.PIPE)
        wait_until(lambda: regions(target.pid) > 0 or helper.poll() is not None)  # noqa: B023
        time.sleep(chance.random() * 0.0005)
        helper.send_signal(signal.SIGKILL)
        helper.communicate()
    assert target.process.poll() is None
    assert target.process.stdin is not None
    counts = target.counts()
    assert all(count[0] > 10 for kind, count in counts.items() if kind in {"relative", "registers", "poll"})


def test_a_library_that_cannot_be_loaded_or_does_not_start(built: Path, start: Start) -> None:
    target = start(built / "attach_target", "poll")
    error = refusal(built, target.pid, built / "counts.c")
    assert (error.code, "invalid ELF header" in error.message or "file too short" in error.message) == (
        "not-loaded",
        True,
    )
    error = refusal(built, target.pid, built / "refuses.so")
    assert error.message == "the library could not start: Cannot allocate memory"
    error = refusal(built, target.pid, built / "gpuprof_attach")
    assert error.code == "not-loaded"
    assert refusal(built, target.pid, built / "none.so").code == "library"
    load(built, target.pid)
    assert refusal(built, target.pid, any_program=False).code == "loaded"
    assert target.counts()["poll"][1] == 0


def test_what_is_no_process_to_attach_to(built: Path, idle: Callable[..., int]) -> None:
    assert refusal(built, 4_000_000).message == "there is no process 4000000"
    kernel = next((pid for pid in (2, 3) if not Path(f"/proc/{pid}/exe").exists()), None)
    if kernel is not None and Path(f"/proc/{kernel}").exists():
        assert refusal(built, kernel).code == "kernel-thread"
    ended = subprocess.Popen(["true"])
    wait_until(lambda: "Z (zombie)" in Path(f"/proc/{ended.pid}/status").read_text())
    assert refusal(built, ended.pid).code == "zombie"
    ended.wait()
    pid = idle()
    error = refusal(built, pid, any_program=False)
    assert error.code == "no-cuda"
    assert "gpuprof-tui run" in error.hint
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: "T (stopped)" in Path(f"/proc/{pid}/status").read_text())
    assert refusal(built, pid).code == "stopped"


def test_a_static_program(built: Path, idle: Callable[..., int], tmp_path: Path) -> None:
    source, program = tmp_path / "s.c", tmp_path / "static"
    source.write_text("#include <unistd.h>\nint main(void) { pause(); return 0; }\n")
    if subprocess.run(["gcc", "-static", "-o", program, source], capture_output=True, check=False).returncode:
        pytest.skip("no static libc")
    assert refusal(built, idle(program)).code == "static"


def test_a_program_that_is_debugged(built: Path, idle: Callable[..., int]) -> None:
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    pid = idle()
    debugger = subprocess.Popen(["strace", "-o", "/dev/null", "-p", str(pid)], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: f"TracerPid:\t{debugger.pid}" in Path(f"/proc/{pid}/status").read_text())
        error = refusal(built, pid)
        assert error.message == f"another program debugs it: strace (pid {debugger.pid})"
    finally:
        debugger.terminate()
        debugger.wait()
    load(built, pid)


def test_another_user_without_privilege(built: Path, idle: Callable[..., int]) -> None:
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    error = refusal(built, idle(), before=as_nobody)
    assert (error.code, error.message) == ("user", "it belongs to root")
    assert error.hint.startswith("sudo ")
    assert error.hint.split()[2] == "attach"


@pytest.mark.parametrize(
    ("filter_", "outcome"),
    [
        ("kill getpid", "its seccomp filter ends it for getpid, which loading a library takes"),
        ("kill acct", ""),
        ("errno clone3", ""),
        ("errno mmap", "no memory was to be had in the process: Operation not permitted"),
        ("strict", "it runs in seccomp's strict mode"),
    ],
)
def test_seccomp(built: Path, idle: Callable[..., int], filter_: str, outcome: str) -> None:
    """A filter with which the process would be killed is seen before anything is done."""
    numbers = {"getpid": "39", "acct": "163", "clone3": "435", "mmap": "9"}
    pid = idle(built / "filtered", *(numbers.get(word, word) for word in filter_.split()))
    if outcome:
        assert refusal(built, pid).message == outcome
    elif filter_ == "errno clone3":  # EPERM, which glibc takes for an answer
        assert "no thread could be made" in refusal(built, pid).message
    else:
        load(built, pid)
    wait_until(lambda: "State:\tS" in Path(f"/proc/{pid}/status").read_text())
    wait_until(lambda: regions(pid) == 0)


def test_one_at_a_time(built: Path, start: Start) -> None:
    target = start(built / "attach_target", "poll")
    command = [built / "gpuprof_attach", "--any", str(target.pid), built / "counts.so", "count_calls"]
    helpers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    answers = [helper.communicate()[0].split("\t") for helper in helpers]
    loaded = sum(answer[0] == "loaded" for answer in answers)
    assert loaded >= 1
    assert {answer[1] for answer in answers if answer[0] == "refused"} <= {"busy", "traced"}
    assert calls_of(target.pid, "counts.so") == loaded
    assert target.counts()["poll"][1] == 0


def test_a_thread_that_holds_the_loader_is_not_borrowed(built: Path, start: Start) -> None:
    """It sits in a constructor, under dlopen, until it can read something."""
    target = start(built / "loading", built / "waits.so", "0")
    error = refusal(built, target.pid)
    assert error.code == "busy"
    assert "1 in the allocator or the loader" in error.message
    target.tell()
    assert target.line() == "loaded"
    load(built, target.pid)


def test_the_load_waits_for_who_holds_the_loader(built: Path, start: Start) -> None:
    """Another thread is borrowed, and is back at once; the new one waits in dlopen."""
    target = start(built / "loading", built / "waits.so", "1")
    command = [built / "gpuprof_attach", "--any", str(target.pid), built / "counts.so", "count_calls"]
    helper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: len(os.listdir(f"/proc/{target.pid}/task")) == 3)
    wait_until(lambda: "TracerPid:\t0\n" in Path(f"/proc/{target.pid}/status").read_text())
    assert helper.poll() is None
    target.tell()
    attached = attach.parse_answer(target.pid, helper.communicate()[0])
    assert attached.tid != target.pid
    assert target.line() == "loaded"
    assert calls_of(target.pid, "counts.so") == 1


def test_usage(built: Path) -> None:
    for words in ([], ["x", "/l", "f"], ["1", "relative", "f"], ["0", "/l", "f"], ["-1", "/l", "f"]):
        done = subprocess.run([built / "gpuprof_attach", *words], capture_output=True, check=False)
        assert done.returncode == 2


@pytest.fixture(scope="module")
def kit() -> ModuleType:
    path = HERE.parent / "native" / "injected.py"
    spec = importlib.util.spec_from_file_location("injected", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["injected"] = module
    spec.loader.exec_module(module)
    return module


def test_the_library_records_from_then_on(
    kit: ModuleType, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real library in a process on the mock driver that has been launching: every launch from then on."""
    made = kit.build(tmp_path / "made")
    monkeypatch.setattr(attach, "find_library", lambda: made.library)
    monkeypatch.setattr(attach, "find_helper", lambda: built / "gpuprof_attach")
    program = kit.Program(made, tmp_path / "program", inject=False).init()
    try:
        program.launch(7, "before")
        attached = attach.attach(program.pid)
        assert attached.pid == program.pid
        assert len(program.threads()["gpuprof"]) == 1
        listener = kit.Listener(program)
        listener.reach("recording")
        program.launch(101, "after")
        listener.expect(101)
        assert listener.by_name() == {"after": 101}
        listener.close()
        with pytest.raises(attach.AttachError) as caught:
            attach.attach(program.pid)
        assert caught.value.code == "loaded"
        assert program.faults == {}
        assert program.end() == 0
    finally:
        program.close()


def test_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "_helper_paths", lambda: iter([Path("/nonexistent")]))
    with pytest.raises(GpuprofError, match="was not built"):
        attach.find_helper()
