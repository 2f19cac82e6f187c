"""A socket that was named with --socket: that sampler, or an error; never another one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, EXIT_USAGE, GpuprofError
from gpuprof.tui import doctor, sampler_process
from gpuprof.tui.sampler_process import SamplerOptions, running_service

COMMAND = [sys.executable, "-I", "-c", "import sys; from gpuprof.tui.command import main; sys.exit(main())"]


def options(path: str, *, given: bool = True) -> SamplerOptions:
    return SamplerOptions(socket_path=path, socket_given=given)


@pytest.mark.parametrize("what", ["nothing", "nobody", "a file", "a long name", "a zero byte"])
def test_where_nobody_listens(tmp_path: Path, what: str) -> None:
    path = str(tmp_path / "s.sock")
    if what == "nobody":
        gone = socket.socket(socket.AF_UNIX)
        gone.bind(path)
        gone.close()
    elif what == "a file":
        Path(path).write_text("x")
    elif what == "a long name":
        path += "x" * 200
    elif what == "a zero byte":
        path += "\0"
    with pytest.raises(GpuprofError, match="no sampler listens at") as caught:
        running_service(options(path))
    assert caught.value.exit_code == EXIT_UNAVAILABLE
    assert "sampler --socket" in caught.value.hint
    assert running_service(options(path, given=False)) is None
    found = {finding.name: finding for finding in doctor.look_up(path, str(tmp_path), given=True)}
    assert found["service"].state == "missing"
    found = {finding.name: finding for finding in doctor.look_up(str(tmp_path / "none"), str(tmp_path))}
    assert found["service"].state == "note"


def test_one_that_listens_and_one_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        connection = running_service(options(path))
        assert connection is not None
        connection.close()
        monkeypatch.setattr(sampler_process.struct, "unpack", lambda *_: (1, 4711, 1))
        with pytest.raises(GpuprofError, match=r"another user's \(uid 4711\)") as caught:
            running_service(options(path))
        assert caught.value.exit_code == EXIT_NO_PERMISSION
        assert running_service(options(path, given=False)) is None


def test_a_service_that_is_closed_to_this_user_is_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "s.sock")
    assert sampler_process.closed_service(options(path, given=False)) == ""  # there is none

    class Closed(socket.socket):
        def connect(self, _address: object) -> None:  # root is let through every mode
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sampler_process.socket, "socket", Closed)
    said = sampler_process.closed_service(options(path, given=False))
    assert path in said
    assert "sudo usermod -aG gpuprof" in said
    assert sampler_process.closed_service(SamplerOptions(socket_path=path, use_service=False)) == ""


@pytest.mark.parametrize(
    "argv",
    [
        ("record", "--for", "1s", "-o", "a.gpuprof"),
        ("dial-stdio",),
        ("attach", "--no-screen", str(os.getpid())),
    ],
)
def test_commands_do_not_start_another_sampler(tmp_path: Path, argv: tuple[str, ...]) -> None:
    path = str(tmp_path / "dead.sock")
    done = subprocess.run(
        [*COMMAND, *argv, "--socket", path],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_UNAVAILABLE, done.stderr
    first, second, *_ = done.stderr.splitlines()
    assert first == f"gpuprof-tui: no sampler listens at {path}: No such file or directory"
    assert second.startswith("  start one: sudo ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", [("--no-service",), ("--offcpu-all",), ("--offcpu-pid", "1")])
def test_a_socket_that_would_not_be_used_is_refused(tmp_path: Path, more: tuple[str, ...]) -> None:
    argv = ("record", "-o", str(tmp_path / "a"), "--for", "1s", "--socket", "/s", *more)
    done = subprocess.run([*COMMAND, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_USAGE
    assert f"with {more[0]} one is started" in done.stderr
    assert not (tmp_path / "a").exists()
