"""The privileged parent: what its children run as and inherit, how everything ends, what it answers."""

from __future__ import annotations

import json
import os
import pty
import pwd
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from machine_time import PATIENCE_S, Stopwatch

pytestmark = pytest.mark.root

STUB = str(Path(__file__).with_name("screen_stub.py"))
SAMPLER = (sys.executable, "-I", "-m", "gpuprof.sampler", "--no-cpu", "--no-nvml")
NOBODY = pwd.getpwnam("nobody")


def program(
    sampler: tuple[str, ...], *, socket_path: str = "/nonexistent", given: bool = False, before: str = ""
) -> list[str]:
    """A command line that runs the supervisor with the stub for a screen."""
    code = (
        "import sys\n"
        "from gpuprof.tui import supervisor\n"
        "from gpuprof.tui.sampler_process import SamplerOptions\n"
        f"{before}\n"
        f"options = SamplerOptions(99, {socket_path!r}, True, {sampler!r}, socket_given={given})\n"
        f"sys.exit(supervisor.run(options, [{sys.executable!r}, {STUB!r}]))\n"
    )
    return [sys.executable, "-c", code]


class Run:
    """A supervisor with a stub screen; `ask` sends the screen a line and returns its answer."""

    def __init__(self, argv: list[str], cwd: Path, environ: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, "SUDO_UID": "", **(environ or {})} if environ else _without_sudo(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.pending = b""
        self.screen = self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self.pending:
            ready = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]
            data = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not data:
                assert self.process.stderr is not None
                raise AssertionError(f"no answer; stderr: {os.read(self.process.stderr.fileno(), 65536)!r}")
            self.pending += data
        line, _, self.pending = self.pending.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, line: str) -> dict[str, Any]:
        self.tell(line)
        while "news" in (answer := self.answer()):
            pass
        return answer

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _without_sudo() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("SUDO_")}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(sampler: tuple[str, ...] = SAMPLER, environ: dict[str, str] | None = None, **more: str) -> Run:
        runs.append(Run(program(sampler, **more), tmp_path, environ))
        return runs[-1]

    yield begin
    for run in runs:
        run.stop()


def status(pid: int) -> dict[str, list[str]]:
    """/proc/PID/status as words by field."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}


def environment(pid: int) -> dict[str, str]:
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry)


def is_gone(pid: int) -> bool:
    try:
        return status(pid)["State"][0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def all_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not all(is_gone(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def wait_for_service(path: str, service: subprocess.Popen[bytes]) -> None:
    """Until it takes connections: its socket is there a moment before."""
    while True:
        assert service.poll() is None
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.connect(path)
            return
        time.sleep(0.01)


HOSTILE = {
    "LD_PRELOAD_X": "1",
    "LD_LIBRARY_PATH": "/evil",
    "PYTHONSTARTUP": "/evil",
    "GPUPROF_X": "1",
    "EVIL": "1",
}


def test_under_sudo_the_screen_is_the_caller_and_the_sampler_inherits_nothing(
    start: Callable[..., Run],
) -> None:
    caller = pwd.getpwnam("daemon")
    run = start(
        environ={"SUDO_UID": str(caller.pw_uid), "SUDO_GID": str(caller.pw_gid), "TERM": "xterm", **HOSTILE}
    )
    screen = status(run.screen["pid"])
    assert screen["Uid"] == [str(caller.pw_uid)] * 4
    assert screen["Gid"] == [str(caller.pw_gid)] * 4
    assert {int(group) for group in screen["Groups"]} == set(os.getgrouplist("daemon", caller.pw_gid))
    assert screen["NoNewPrivs"] == ["1"]
    its = environment(run.screen["pid"])
    assert (its["HOME"], its["USER"], its["TERM"]) == (caller.pw_dir, "daemon", "xterm")
    assert its["XDG_CONFIG_HOME"] == f"{caller.pw_dir}/.config"
    sampler = run.ask("hello")["sampler"]
    assert status(sampler)["Uid"] == ["0"] * 4
    for name in HOSTILE:
        assert name not in environment(sampler)
        assert name == "GPUPROF_X" or name not in its
    assert not {name for name in environment(sampler) if name.startswith(("LD_", "PYTHON"))}
    run.tell("exit 0")
    assert run.process.wait(PATIENCE_S) == 0


def test_as_plain_root_the_screen_is_nobody_with_at_most_one_capability(start: Callable[..., Run]) -> None:
    run = start()
    screen = status(run.screen["pid"])
    assert screen["Uid"] == [str(NOBODY.pw_uid)] * 4
    assert screen["Gid"] == [str(NOBODY.pw_gid)] * 4
    assert [int(group) for group in screen["Groups"]] == [NOBODY.pw_gid]
    kept = "--drop-caps" in run.screen["words"]
    assert int(screen["CapPrm"][0], 16) == (1 << 2 if kept else 0)
    assert int(screen["CapBnd"][0], 16) & 1  # no_new_privs makes the bounding set useless
    if kept:
        answer = run.ask("drop")
        assert answer == {"dropped": "colorsys", "left": []}
        after = status(run.screen["pid"])
        assert {after[name][0].strip("0") for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {""}


def test_nobody_saves_through_its_parent(start: Callable[..., Run], tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    run = start()
    assert "--save-through-parent" in run.screen["words"]
    answer = run.ask("save")
    assert answer["op"] == "saved"
    path = Path(answer["path"])
    assert path.parent == tmp_path
    assert re.fullmatch(r"gpuprof-[\w.-]+-\d{8}-\d{6}(-\d+)?\.gpuprof", path.name)
    assert path.read_bytes() == b"snapshot"
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (0, 0o600)
    second = run.ask("save")
    assert second["path"] != answer["path"]
    assert run.ask("nonsense")["op"] == "saved"  # a path in the request changes nothing
    assert len(list(tmp_path.iterdir())) == 3


def test_what_nobody_could_not_write_is_removed_by_its_parent(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    run = start()
    first, second = (Path(run.ask("save")["path"]) for _ in range(2))
    run.ask("discard")
    assert sorted(tmp_path.iterdir()) == [first]
    run.ask("discard")  # of the last one only, and once
    assert sorted(tmp_path.iterdir()) == [first]
    third = Path(run.ask("save")["path"])
    third.rename(second)
    third.write_text("another's")
    run.ask("discard")
    assert sorted(tmp_path.iterdir()) == sorted([first, second, third])


def test_the_screen_has_a_process_attached_to(start: Callable[..., Run]) -> None:
    """By the parent, which looks at what the screen asks for; what it loads is not the screen's to say."""
    run = start()
    assert run.ask("attach 1; rm -rf /")["message"] == "that is no process id"
    sleeper = subprocess.Popen(["sleep", "100"])
    try:
        answer = run.ask(f"attach {sleeper.pid}")
        assert answer["op"] == "refused"
        assert answer["message"] == "it does not use CUDA (yet)"
        assert "gpuprof-tui run" in answer["hint"]
        code = (
            "from gpuprof.tui import attach, supervisor; "
            "attach.FUNCTION = 'getpid'; "  # of libc, which every library finds; its result is no 0
            "attach.HELPER_OPTIONS = ('--any',)"
        )
        forced = start(before=code)
        answer = forced.ask(f"attach {sleeper.pid}")
        assert answer["message"].startswith("the library could not start")
        assert "libgpuprof_inject.so" in Path(f"/proc/{sleeper.pid}/maps").read_text()
        assert forced.ask(f"attach {sleeper.pid}")["op"] == "refused"
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_caller_who_can_write_is_given_no_files(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start(environ={"SUDO_UID": "1", "SUDO_GID": "1"})
    assert run.ask("save")["op"] == "refused"
    assert not list(tmp_path.iterdir())


def test_a_sampler_that_was_killed_is_started_again(start: Callable[..., Run]) -> None:
    run = start()
    first = run.ask("hello")["sampler"]
    os.kill(first, signal.SIGKILL)
    run.ask("eof")
    assert run.ask("reconnect")["op"] == "connection"
    second = run.ask("hello")["sampler"]
    assert second not in (0, first)
    assert is_gone(first)
    run.tell("exit 7")
    assert run.process.wait(PATIENCE_S) == 7
    assert all_gone([second])


def test_the_screen_hears_what_happened_to_the_sampler(start: Callable[..., Run]) -> None:
    run = start()
    os.kill(run.ask("hello")["sampler"], signal.SIGKILL)
    news = run.ask("news")
    assert (news["op"], news["state"]) == ("sampler", "restarting")
    assert "137" in news["message"]
    assert run.ask("news")["state"] == "running"


def test_the_screen_does_not_wait_for_a_slow_sampler(start: Callable[..., Run]) -> None:
    run = start((sys.executable, "-c", "import time; time.sleep(60)"))
    watch = Stopwatch()
    assert run.ask("save")["op"] == "saved"
    run.tell("exit 0")
    assert run.process.wait(PATIENCE_S) == 0
    assert watch.seconds < 2.0


def test_a_sampler_that_ignores_signals_is_killed(start: Callable[..., Run]) -> None:
    words = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    run = start((sys.executable, "-c", words))
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    (sampler,) = {int(pid) for pid in children} - {run.screen["pid"]}
    while int(status(sampler)["SigIgn"][0], 16) >> (signal.SIGTERM - 1) & 1 == 0:
        time.sleep(0.01)
    watch = Stopwatch()
    run.process.terminate()
    run.process.wait(PATIENCE_S)
    assert all_gone([sampler, run.screen["pid"]])
    assert watch.seconds < 1.0


def test_another_connection_to_the_same_sampler(start: Callable[..., Run]) -> None:
    run = start()
    first = run.ask("hello")["sampler"]
    assert run.ask("reconnect")["op"] == "connection"
    assert run.ask("hello")["sampler"] == first


def test_a_sampler_that_cannot_live_is_given_up_with_its_reason(start: Callable[..., Run]) -> None:
    words = "import sys; sys.exit('gpuprof sampler: no \\x1b[31m luck')"
    run = start((sys.executable, "-c", words), before="supervisor._FIRST_PAUSE_S = 0.01")
    states = []
    while "failed" not in states:
        news = run.ask("news")
        states.append(news["state"])
        assert "luck" in news["message"] or news["state"] == "running"
        assert "\x1b" not in news["message"]
    assert states.count("restarting") == 5
    answer = run.ask("reconnect")
    assert answer["op"] == "refused"
    assert "luck" in answer["message"]
    run.tell("exit 0")
    assert run.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_parent_ends_everything_within_a_second(
    start: Callable[..., Run], signum: int
) -> None:
    run = start()
    pids = [run.process.pid, run.screen["pid"], run.ask("hello")["sampler"]]
    watch = Stopwatch()
    run.process.send_signal(signum)
    run.process.wait(PATIENCE_S)
    assert all_gone(pids)
    assert watch.seconds < 1.0


def test_a_screen_that_ignores_signals_is_killed(start: Callable[..., Run]) -> None:
    run = start()
    run.ask("deaf")
    pids = [run.process.pid, run.screen["pid"], run.ask("hello")["sampler"]]
    watch = Stopwatch()
    run.process.terminate()
    assert run.process.wait(PATIENCE_S) == 137
    assert watch.seconds < 1.0
    assert all_gone(pids)
    assert run.process.stderr is not None
    assert b"SIGKILL" not in run.process.stderr.read()  # whoever ended it knows


@pytest.mark.parametrize("victim", ["parent", "screen"])
def test_killing_one_leaves_no_orphans(start: Callable[..., Run], victim: str) -> None:
    run = start()
    pids = [run.screen["pid"], run.ask("hello")["sampler"]]
    os.kill(run.process.pid if victim == "parent" else run.screen["pid"], signal.SIGKILL)
    run.process.wait(PATIENCE_S)
    watch = Stopwatch()
    assert all_gone(pids)
    assert watch.seconds < 1.0
    assert run.process.stderr is not None
    said = run.process.stderr.read()
    assert (b"gpuprof-tui: the screen was ended by SIGKILL\n" in said) == (victim == "screen")


def test_a_screen_that_is_suspended_takes_its_parent_along(tmp_path: Path) -> None:
    process = subprocess.Popen(
        program(SAMPLER),
        cwd=tmp_path,
        env=_without_sudo(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        preexec_fn=lambda: os.setpgid(0, 0),  # noqa: PLW1509 (as a shell does: its session, a group of its own)
    )
    assert process.stdin is not None
    assert process.stdout is not None
    screen = json.loads(process.stdout.readline())["pid"]
    process.stdin.write(b"suspend\n")
    _, state = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(state)
    assert status(screen)["State"][0] == "T"
    os.killpg(process.pid, signal.SIGCONT)
    assert json.loads(process.stdout.readline()) == {"resumed": True}
    process.stdin.write(b"exit 0\n")
    assert process.wait(PATIENCE_S) == 0
    process.stdin.close()
    process.stdout.close()


def test_a_running_service_is_used_and_replaced_when_it_goes(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    path = str(tmp_path / "s.sock")
    service = subprocess.Popen([*SAMPLER, "--socket", path])
    wait_for_service(path, service)
    run = start(socket_path=path)
    assert run.ask("hello")["sampler"] == service.pid
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    assert children == [str(run.screen["pid"])]
    service.terminate()
    assert service.wait(PATIENCE_S) == 0
    assert not os.path.exists(path)
    run.ask("eof")
    assert run.ask("reconnect")["op"] == "connection"
    assert run.ask("hello")["sampler"] not in (0, service.pid)


def test_no_other_sampler_takes_the_place_of_one_that_was_named(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    path = str(tmp_path / "s.sock")
    done = subprocess.run(
        program(SAMPLER, socket_path=path, given=True), capture_output=True, text=True, check=False
    )
    assert f"no sampler listens at {path}" in done.stderr
    service = subprocess.Popen([*SAMPLER, "--socket", path])
    wait_for_service(path, service)
    run = start(socket_path=path, given=True)
    assert run.ask("hello")["sampler"] == service.pid
    service.terminate()
    assert service.wait(PATIENCE_S) == 0
    run.ask("eof")
    refused = run.ask("reconnect")
    assert refused["op"] == "refused"
    assert "no sampler listens at" in refused["message"]
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    assert children == [str(run.screen["pid"])]


def test_the_terminal_is_restored_after_a_screen_that_was_killed(tmp_path: Path) -> None:
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        argv = program(SAMPLER)
        os.execve(argv[0], argv, _without_sudo())
    before = termios.tcgetattr(fd)
    out = b""

    def read_until(wanted: bytes) -> None:
        nonlocal out
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in out:
            assert time.monotonic() < deadline, out
            if select.select([fd], [], [], 0.2)[0]:
                try:
                    out += os.read(fd, 65536)
                except OSError:
                    break

    read_until(b'"pid"')
    screen = int(re.search(rb'"pid": (\d+)', out)[1])  # type: ignore[index]
    os.write(fd, b"raw\n")
    read_until(b'"raw": true')
    assert termios.tcgetattr(fd) != before
    out = b""
    os.kill(screen, signal.SIGKILL)
    read_until(b"\x1b[?25h")
    for wanted in (b"\x1b[?1049l", b"\x1b[?1003l", b"\x1b[?25h"):
        assert wanted in out
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 137
    with suppress(termios.error):  # the master still sees the settings of a terminal that nobody has open
        assert termios.tcgetattr(fd)[:4] == before[:4]
    os.close(fd)
