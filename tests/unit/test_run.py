"""`gpuprof-tui run`: the environment of the workload, what it refuses, and that it becomes the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, EXIT_USAGE, GpuprofError
from gpuprof.snapshots.process_name import is_running
from gpuprof.tui import arguments, run


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / run.LIBRARY
    path.touch()
    monkeypatch.setattr(run, "_built_library", lambda: path)
    monkeypatch.setattr(run, "is_running", lambda name: False)
    return path


def test_the_driver_is_told_of_the_library(library: Path) -> None:
    given = {"PATH": "/bin", "X": "1"}
    assert run.environment(given) == {
        **given, "CUDA_INJECTION64_PATH": str(library), "NVTX_INJECTION64_PATH": str(library)
    }  # fmt: skip
    assert given == {"PATH": "/bin", "X": "1"}


def test_the_library_is_told_of_a_sampler_that_runs(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run.EXPECT not in run.environment({run.EXPECT: "1"})  # of an outer run, whose sampler has gone
    monkeypatch.setattr(run, "is_running", lambda name: name == "gpuprof-sampler")
    assert run.environment({})["GPUPROF_EXPECT_LISTENER"] == "1"


def test_a_process_is_found_by_its_name() -> None:
    with Path("/proc/self/comm").open() as comm:
        assert is_running(comm.read().strip())
    assert not is_running("nobody-has-this")


def test_nested_runs_are_fine_and_other_tools_are_not(library: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.so"
    link.symlink_to(library)
    assert run.environment({run.VARIABLE: str(link)})[run.VARIABLE] == str(library)
    with pytest.raises(GpuprofError, match=r"set already, to /opt/nsys\.so, which cannot be read") as caught:
        run.environment({run.VARIABLE: "/opt/nsys.so"})
    assert caught.value.exit_code == EXIT_USAGE
    assert "unset CUDA_INJECTION64_PATH" in caught.value.hint


def test_another_library_is_chained_unless_it_uses_cupti(library: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(b"\x7fELF" + bytes(5000))
    ours = {run.VARIABLE: str(library), run.NVTX: str(library), run.NEXT: str(other)}
    assert run.environment({run.VARIABLE: str(other)}) == ours
    assert run.environment(run.environment({run.VARIABLE: str(other)})) == ours
    other.write_bytes(b"\x7fELF" + bytes(5000) + b"cuptiSubscribe\0")
    with pytest.raises(GpuprofError, match="which uses CUPTI"):
        run.environment({run.VARIABLE: str(other)})
    other.write_bytes(b"")
    with pytest.raises(GpuprofError, match="it is empty"):
        run.environment({run.VARIABLE: str(other)})


def test_no_compiler_at_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_built_library", lambda: None)
    with pytest.raises(GpuprofError, match="was not built") as caught:
        run.environment({})
    assert caught.value.exit_code == EXIT_UNAVAILABLE
    assert "apt install gcc" in caught.value.hint


def test_an_unreadable_library(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(GpuprofError, match="cannot be read by this user"):
        run.environment({})


def test_the_command_takes_the_process_over(library: Path) -> None:
    """Its exit code, arguments, signals as by default, and the variable."""
    script = (
        "import os, signal, sys; print(os.environ['CUDA_INJECTION64_PATH'], sys.argv[1:], os.getpid(), "
        "signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN); sys.exit(7)"
    )
    code = (
        "import sys; from pathlib import Path; from gpuprof.tui import run; "
        "run._built_library = lambda: Path(sys.argv[1]); run.run(sys.argv[2:])"
    )
    # Python ignores SIGPIPE by itself at its start, so a shell tells what was inherited.
    shell = "trap - PIPE; kill -PIPE $$; echo ignored"
    started = subprocess.run(
        [sys.executable, "-c", code, str(library), "sh", "-c", shell],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (started.returncode, started.stdout) == (-13, "")
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(library), sys.executable, "-c", script, "--", "-x"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    out, _ = process.communicate()
    assert process.returncode == 7
    assert out.split() == [str(library), "['--',", "'-x']", str(process.pid), "True"]


def test_a_command_that_is_not_there(library: Path) -> None:
    with pytest.raises(GpuprofError, match="no-such-command: command not found"):
        run.run(["no-such-command"])


def script(path: Path, content: str) -> str:
    path.write_bytes(content.encode())
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("first_line", "message", "hint"),
    [
        ("#!/opt/gone/python -u\n", "names /opt/gone/python, which is not there", "python "),
        ("#! /opt/gone/python", "names /opt/gone/python, which is not there", "python "),
        ("#!/bin/sh\r\n", "names /bin/sh␍, which is not there", r"sed -i 's/\r$//' "),
    ],
)
def test_a_script_whose_interpreter_is_not_there(
    first_line: str, message: str, hint: str, tmp_path: Path, library: Path
) -> None:
    name = script(tmp_path / "train.py", first_line)
    with pytest.raises(FileNotFoundError):  # the kernel's own answer, which seems to be of the script
        subprocess.run([name], check=False)
    with pytest.raises(GpuprofError, match=r"train\.py") as caught:
        run.run([name])
    assert message in caught.value.message
    assert hint + name in caught.value.hint
    assert caught.value.exit_code == run.EXIT_NOT_EXECUTABLE


@pytest.mark.parametrize("content", ["#!/bin/sh\n", "#!  /bin/sh -e\n", "#!/bin/sh", "echo\n", "#!\n", ""])
def test_whatever_else_is_left_to_the_kernel(content: str, tmp_path: Path) -> None:
    name = script(tmp_path / "train", content)
    assert run.find_program(name) == name


def test_a_script_without_a_first_line_has_a_hint(tmp_path: Path, library: Path) -> None:
    name = script(tmp_path / "train", "echo hello\n")
    before = signal.getsignal(signal.SIGPIPE)
    with pytest.raises(GpuprofError, match="Exec format error") as caught:
        run.run([name])
    assert signal.getsignal(signal.SIGPIPE) == before == signal.SIG_IGN
    assert caught.value.hint == f"name the program that reads it: sh {name}"
    assert caught.value.exit_code == run.EXIT_NOT_EXECUTABLE


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert arguments.parse(["run", "--", "python", "train.py", "--debug"]).cmd == [
        "python", "train.py", "--debug",
    ]  # fmt: skip
    for argv in (["run"], ["run", "--"], ["run", "python", "train.py"]):
        with pytest.raises(SystemExit):
            arguments.parse(argv)
    assert "after --" in capsys.readouterr().err


def test_who_is_told_of_ranges_already_goes_on_being_told(library: Path) -> None:
    assert run.environment({run.NVTX: ""})[run.NVTX] == str(library)
    assert run.nvtx_note({}) == run.nvtx_note(run.environment({})) == ""
    given = {run.NVTX: "/opt/nsys.so"}
    assert run.environment(given)[run.NVTX] == "/opt/nsys.so"
    assert "/opt/nsys.so: NVTX ranges are not recorded" in run.nvtx_note(given)
