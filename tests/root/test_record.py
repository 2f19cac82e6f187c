"""`gpuprof-tui record` as root and under sudo: whose file, whose command, what a full disk leaves. Nothing is
sampled: the service is one that the test fills.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from machine_time import PATIENCE_S
from recorders import record, wait_until_it_records

from gpuprof.sampler import endpoint
from gpuprof.sampler.server import Server
from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, EXIT_UNAVAILABLE
from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import FrameKind, Hello, ProcessDef, Query, SourceStatus, Status
from gpuprof.snapshots.history import History

pytestmark = pytest.mark.root

SECOND = 10**9


class Service:
    """A sampler's server in a thread, with a history that the test fills."""

    def __init__(self, path: str, *, privileged: bool = True) -> None:
        hello = Hello(1, "node", "boot", "6.1", 2, 5, 0, "0", 1, 99, 10, privileged)
        self.path = path
        self.history = History(hello)
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()

        async def serve() -> None:
            self.server = Server(self.history, lambda: hello)
            self.server.listen(endpoint.listen(path))
            self.stopping = asyncio.Event()
            ready.set()
            await self.stopping.wait()
            await self.server.close()

        self.thread = threading.Thread(target=lambda: self.loop.run_until_complete(serve()))
        self.thread.start()
        ready.wait()
        self.set_status()

    def set_status(self, state: str = "ok", extra: SourceStatus | None = None) -> None:
        sources = [SourceStatus("cpu", state), *([extra] if extra is not None else [])]
        self.history.set_status(Status(time.monotonic_ns(), sources, 0, 0, 0, 0))

    def add(self, count: int, start_ns: int, seconds: float = 1.0) -> None:
        """`count` samples of stacks that do not compress."""
        rng = np.random.default_rng(count)
        with self.history.lock:
            tables = self.history.tables
            process = tables.process(ProcessDef(7, 1, "python", "python t.py", "me", 1000, 1))
            thread = tables.thread(process, 7, "main")
            stacks = np.array(
                [
                    tables.stack([tables.frame(tables.function(f"f{n}", "t.py", "", FrameKind.PYTHON), 1)])
                    for n in range(1000)
                ]
            )
            times = np.sort(start_ns + (rng.random(count) * seconds * 1e9).astype(np.uint64))
            chosen = stacks[rng.integers(0, 1000, count)]
            self.history.add_samples(times, rng.integers(0, 64, count), np.full(count, thread), chosen)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.stopping.set)
        self.thread.join(PATIENCE_S)
        self.loop.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(str(tmp_path / "s.sock"))
    yield made
    made.stop()


def test_what_was_sampled_while_the_command_ran_is_in_the_file(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "a.gpuprof"
    go = tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.05; done; exit 3"
    process = record("--socket", service.path, "-o", str(path), "--", "sh", "-c", script)
    wait_until_it_records(process)
    service.add(5000, time.monotonic_ns(), 0.1)
    time.sleep(0.15)  # of samples nothing may lie ahead
    go.touch()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, err
    assert "5,000 CPU samples" in err
    opened = read_snapshot(path)
    assert opened.damage is None
    assert opened.history.query(Query(1, "cpu", 0, 1 << 60)).total_weight[0] == 5000


@pytest.mark.parametrize("name", ["SEGV", "KILL", "TERM"])
def test_a_command_that_a_signal_ended_is_said_as_a_shell_says_it(
    service: Service, tmp_path: Path, name: str
) -> None:
    file = str(tmp_path / "a.gpuprof")
    process = record("--socket", service.path, "-o", file, "--", "sh", "-c", f"sleep 0.3; kill -{name} $$")
    wait_until_it_records(process)
    service.add(100, time.monotonic_ns(), 0.01)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.Signals[f"SIG{name}"]
    assert ("the command was ended by SIG" + name in err) == (name != "TERM")


def test_ctrl_c_ends_it_with_what_was_recorded(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "a.gpuprof"
    process = record("--socket", service.path, "-o", str(path))
    wait_until_it_records(process)
    service.add(100, time.monotonic_ns(), 0.01)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert read_snapshot(path).history.query(Query(1, "cpu", 0, 1 << 60)).total_weight[0] == 100


def test_time_ends_the_command_too(service: Service, tmp_path: Path) -> None:
    process = record(
        "--socket", service.path, "-o", str(tmp_path / "a"), "--for", "0.3s", "--", "sleep", "60"
    )
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert read_snapshot(tmp_path / "a").damage is None


def processes_with(mark: str) -> list[int]:
    """Living processes that have `mark` among their arguments."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            found += [int(name)] if mark.encode() in words else []
    return found


def end(mark: str) -> None:
    for pid in processes_with(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["time", "SIGTERM", "twice SIGINT"])
def test_all_that_the_command_has_started_ends_with_it(service: Service, tmp_path: Path, how: str) -> None:
    """A pipe after `record` would hang on what lived on. What made itself a session of its own stays."""
    mark, daemon = f"4711.{os.getpid()}", f"4712.{os.getpid()}"
    script = f"setsid sleep {daemon} >&- 2>&- & sleep {mark} | cat; echo after"
    limit = ("--for", "4s") if how == "time" else ()
    argv = ("--socket", service.path, "-o", str(tmp_path / "a"), *limit, "--", "sh", "-c", script)
    process = record(*argv)
    try:
        wait_until_it_records(process)
        deadline = time.monotonic() + PATIENCE_S
        while not (processes_with(mark) and processes_with(daemon)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert processes_with(mark)
        assert processes_with(daemon)
        for _ in range({"time": 0, "SIGTERM": 1}.get(how, 2)):
            process.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGINT)
            time.sleep(0.1)
        out, err = process.communicate(timeout=PATIENCE_S)  # to the end of its pipes
        # After SIGTERM it is the command's own where that ended before the recording was complete.
        assert process.returncode in {"time": (0,), "SIGTERM": (130, 143)}.get(how, (130,)), err
        assert "after" not in out
        assert "has not ended" not in err
        assert processes_with(mark) == []
        assert len(processes_with(daemon)) == 1
        assert read_snapshot(tmp_path / "a").damage is None
    finally:
        end(mark)
        end(daemon)


@pytest.mark.parametrize("who", ["the command", "a process of the command"])
def test_what_does_not_end_on_sigterm_is_named_and_killed(service: Service, tmp_path: Path, who: str) -> None:
    mark = f"4713.{os.getpid()}"
    command = ["sh", "-c", f"trap '' TERM; exec sleep {mark}"]
    if who != "the command":
        command = ["sh", "-c", '"$@"; :', "sh", *command]
    process = record("--socket", service.path, "-o", str(tmp_path / "a"), "--for", "1.5s", "--", *command)
    try:
        wait_until_it_records(process)
        assert process.stderr is not None
        lines = []
        while not any("has not ended" in line for line in lines):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        assert re.fullmatch(
            rf"gpuprof-tui: {who} \(\d+\) has not ended on SIGTERM; killed in \d s, or at once on Ctrl-C\n",
            lines[-1],
        )
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert processes_with(mark) == []
        assert process.returncode == 130
    finally:
        end(mark)


def test_ended_before_it_began_is_said(service: Service, tmp_path: Path) -> None:
    service.set_status("starting")
    path = tmp_path / "a.gpuprof"
    process = record("--socket", service.path, "-o", str(path))
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    said = "gpuprof-tui: ended before the recording began: nothing was recorded, and no file is left\n"
    assert err == said
    assert not path.exists()


@pytest.mark.parametrize("rows", [True, False])
def test_a_quiet_recording_is_as_long_as_was_asked_for(service: Service, tmp_path: Path, rows: bool) -> None:
    """To the nanosecond, with a sample at its beginning, or with nothing at all."""
    path = tmp_path / "a"
    process = record("--socket", service.path, "-o", str(path), "--for", "1.3s")
    wait_until_it_records(process)
    if rows:
        service.add(10, time.monotonic_ns(), 0.1)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    history = read_snapshot(path).history
    assert history.span[1] - history.span[0] == 1_300_000_000
    assert f"wrote {path}: 1.3 s, {10 * rows} CPU samples" in err


def test_under_sudo_file_and_command_are_the_callers(service: Service, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(0o711)
    where = tmp_path / "mine"
    where.mkdir()
    os.chown(where, 1, 1)
    path = where / "a.gpuprof"
    sudo = {"SUDO_UID": "1", "SUDO_GID": "1"}
    script = "id -u; id -g; echo $HOME"
    process = record("--socket", service.path, "-o", str(path), "--", "sh", "-c", script, environ=sudo)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert out.split() == ["1", "1", "/usr/sbin"]
    assert path.stat().st_uid == 1
    # A file that only root may replace is not replaced in the caller's name.
    process = record("--socket", service.path, "-o", "/etc/gpuprof-test", "--for", "1s", environ=sudo)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert "Permission denied" in err
    assert not os.path.exists("/etc/gpuprof-test")


def test_a_file_that_is_there_is_kept_unless_forced(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "a.gpuprof"
    path.write_text("precious")
    process = record("--socket", service.path, "-o", str(path), "--for", "1s")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert "--force" in err
    assert path.read_text() == "precious"
    process = record("--socket", service.path, "-o", str(path), "--for", "0.2s", "--force")
    process.communicate(timeout=PATIENCE_S)
    assert read_snapshot(path).damage is None


def test_a_command_that_does_not_exist(service: Service, tmp_path: Path) -> None:
    process = record("--socket", service.path, "-o", str(tmp_path / "a"), "--", "no-such-program")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 127
    assert "command not found" in err
    assert "Traceback" not in err


def test_a_sampler_that_ends_leaves_a_whole_file_and_the_command(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "a.gpuprof"
    mark = tmp_path / "mark"
    go = tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.05; done; touch {mark}"
    process = record("--socket", service.path, "-o", str(path), "--", "sh", "-c", script)
    wait_until_it_records(process)
    service.add(100, time.monotonic_ns(), 0.01)
    time.sleep(0.5)
    service.loop.call_soon_threadsafe(service.stopping.set)
    service.thread.join(PATIENCE_S)
    time.sleep(1)  # the recorder has seen it long before the command ends
    go.touch()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 5, err
    assert "before the recording did" in err
    assert mark.exists()
    assert read_snapshot(path).history.query(Query(1, "cpu", 0, 1 << 60)).total_weight[0] == 100


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(where)], check=True)
    yield where
    subprocess.run(["umount", str(where)], check=True)


def test_a_full_disk_is_said_and_what_came_before_is_readable(service: Service, small_disk: Path) -> None:
    path = small_disk / "a.gpuprof"
    process = record("--socket", service.path, "-o", str(path))
    wait_until_it_records(process)
    begin_ns = time.monotonic_ns()
    for second in range(40):
        if process.poll() is not None:
            break
        service.add(20_000, begin_ns + 11 * second * SECOND, 11.0)
        time.sleep(0.15)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, err
    assert "No space left" in err or "full" in err
    assert "Traceback" not in err
    history = read_snapshot(path).history
    assert f"wrote {path}: {(history.span[1] - history.span[0]) / 1e9:.1f} s" in err
    kept = history.query(Query(1, "cpu", 0, 1 << 60)).total_weight[0]
    assert kept > 0
    assert kept % 20_000 == 0 or kept > 20_000


@pytest.mark.parametrize("privileged", [True, False])
def test_nothing_of_what_was_asked_for_is_an_exit_code(tmp_path: Path, privileged: bool) -> None:
    """No CPU stacks and no GPU: the host's readings are kept, and a script can tell."""
    made = Service(str(tmp_path / "s.sock"), privileged=privileged)
    try:
        made.set_status("failed")
        path = tmp_path / "a.gpuprof"
        argv = ("--socket", made.path, "-o", str(path))
        process = record(*argv, "--for", "0.3s")
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == (EXIT_UNAVAILABLE if privileged else EXIT_NO_PERMISSION), err
        assert "neither CPU stacks nor anything of a GPU could be recorded" in err
        assert "getting ready" not in err
        assert read_snapshot(path).damage is None
        for code in (0, 7):  # the command's own failure is the more telling one
            process = record(*argv, "--force", "--", "sh", "-c", f"exit {code}")
            _, err = process.communicate(timeout=PATIENCE_S)
            wanted = EXIT_UNAVAILABLE if privileged else EXIT_NO_PERMISSION
            assert process.returncode == (code or wanted), err
        made.set_status("ok", extra=SourceStatus("nvml", "ok"))
        process = record(*argv, "--force", "--for", "0.3s")
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
    finally:
        made.stop()


@pytest.mark.parametrize("device", ["/dev/full", "/dev/null"])
def test_a_device_is_no_place_for_a_recording(service: Service, device: str) -> None:
    process = record("--socket", service.path, "-f", "-o", device, "--for", "0.2s")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert f"{device} is a device" in err
    assert "--force" not in err
    assert os.path.exists(device)
