"""What a person is told who got it wrong: once, of the command that they used, and what to write instead."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, EXIT_USAGE, GpuprofError
from gpuprof.tui import arguments, attach, command, run, sampler_choice, sampler_process
from gpuprof.tui.recordings import bundled_recording


def usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        arguments.parse(words)
    assert caught.value.code == EXIT_USAGE
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["report", "f", "--scale"], "usage: gpuprof-tui report "),
        (["report", "f", "--by-range", "--tree", "cpu"], "usage: gpuprof-tui report "),
        (["report", "f", "--nonsense"], "usage: gpuprof-tui report "),
        (["demo", "x"], "usage: gpuprof-tui demo "),
        (["run"], "usage: gpuprof-tui run "),
        (["--host", "a", "demo"], "usage: gpuprof-tui demo "),
        (["--nonsense"], "usage: gpuprof-tui [-h] [--version]"),
    ],
)
def test_the_usage_shown_is_that_of_the_command(
    words: list[str], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert usage_error(words, capsys).startswith(usage)


@pytest.mark.parametrize("words", [["run"], ["record", "-o", "f"]])
def test_a_command_without_the_dashes_is_told_where_they_go(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = usage_error([*words, "python", "train.py"], capsys)
    assert f"gpuprof-tui {words[0]} … -- python train.py" in said
    assert "does not take" not in said


def test_folded_stacks_refuse_what_they_have_no_place_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no place for --rate" in usage_error(["report", "f", "--folded", "--rate", "gemm"], capsys)
    assert arguments.parse(["report", "f", "--json", "--rate", "gemm"]).rate == ["gemm"]


def test_folded_stacks_of_nothing_are_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty line would be a stack, to what reads them."""
    demo = str(bundled_recording())
    assert command.main(["report", demo, "--folded", "--pid", "4242"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "gpuprof-tui: No CPU stack of pid 4242 was sampled in this range.\n"


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_closed_stream_is_no_bug(stream: int) -> None:
    code = "import sys; from gpuprof.tui.command import main; sys.exit(main())"
    argv = [sys.executable, "-c", code, "report", str(bundled_recording())]
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$@" {stream}>&-', *argv], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("12,588 CPU samples" in done.stdout) == (stream != 1)


def test_a_program_that_cannot_be_run_ends_as_in_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "train.py"
    text.write_text("print()")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)

    def refused(name: str) -> GpuprofError:
        with pytest.raises(GpuprofError) as caught:
            run.find_program(name)
        return caught.value

    error = refused("no-such-command")
    assert (error.message, error.exit_code) == ("no-such-command: command not found", 127)
    assert "PATH" in error.hint
    assert refused("./no-such-command").exit_code == 127
    error = refused("train.py")  # which is here, but no shell looks here
    assert (error.exit_code, "./train.py" in error.hint) == (127, True)
    error = refused("./train.py")
    assert (error.message, error.exit_code) == ("./train.py is not executable", 126)
    assert "chmod +x ./train.py" in error.hint
    assert (refused(str(tmp_path)).exit_code, refused(str(tmp_path)).message[-11:]) == (126, "is a folder")
    assert refused("./link").exit_code == 126


def test_a_program_is_not_found_from_a_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(GpuprofError, match="command not found") as caught:
        run.find_program("./train.py")
    assert (caught.value.exit_code, caught.value.hint[-24:]) == (127, "from a folder that is gone"[-24:])


def test_a_pid_is_named_once_and_what_to_do_is_said() -> None:
    gone = attach.about(7, attach.AttachError("gone", "there is no process 7"))
    assert (gone.message, gone.exit_code) == ("there is no process 7", EXIT_UNAVAILABLE)
    assert "nvidia-smi" in gone.hint
    slow = attach.about(7, attach.AttachError("slow", "pid 7: there was no answer in 25 s", "try again"))
    assert (slow.message, slow.hint) == ("pid 7: there was no answer in 25 s", "try again")
    other = attach.about(7, attach.AttachError("user", "it belongs to user 77", "sudo x"))
    assert (other.message, other.hint) == ("pid 7: it belongs to user 77", "sudo x")


def test_of_many_processes_each_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(pid: int) -> attach.Attached:
        raise attach.AttachError("no-cuda", "it does not use CUDA (yet)", "attach later")

    monkeypatch.setattr(attach, "attach", refuse)
    with pytest.raises(GpuprofError, match="none of the 2 processes could be attached to") as caught:
        attach.attach_all([7, 8])
    assert caught.value.exit_code == EXIT_UNAVAILABLE
    assert capsys.readouterr().out.splitlines() == [
        "pid 7: it does not use CUDA (yet)", "  attach later",
        "pid 8: it does not use CUDA (yet)", "  attach later",
    ]  # fmt: skip


def test_what_the_other_node_is_asked_for_is_not_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--hz 50", "--offcpu-all", "--no-service", "--gpu-overhead off"):
        said = usage_error(["--host", "ada@node17", *option.split()], capsys)
        assert f"gpuprof-tui dial-stdio {option.split(maxsplit=1)[0]} …" in said


@pytest.mark.parametrize("more", [["--hz", "50"], ["--gpu-overhead", "off"]])
@pytest.mark.parametrize("named", [False, True])
def test_a_service_is_not_asked_for_what_it_would_not_do(
    named: bool, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "s")
    monkeypatch.setattr(sampler_process, "SERVICE_SOCKET", path)
    options = arguments.parse(["record", "-o", "f", *more, *(["--socket", path] if named else [])])
    if not named:  # no service runs: a sampler is started, as asked
        assert sampler_choice.sampler_options(options).use_service
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(path)
        service.listen()
        with pytest.raises(GpuprofError, match=f"leave {more[0]} out") as caught:
            sampler_choice.sampler_options(options)
        assert caught.value.exit_code == EXIT_USAGE
        options.service = False
        options.socket = None
        assert not sampler_choice.sampler_options(options).use_service


def test_what_a_service_would_not_do_is_refused_before_anything_is_attached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, attached = str(tmp_path / "s"), list[int]()
    monkeypatch.setattr(sampler_process, "SERVICE_SOCKET", path)
    monkeypatch.setattr(attach, "attach_all", lambda pids: attached.extend(pids) or (0, 0))
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(path)
        service.listen()
        assert command.main(["attach", "--hz", "50", "7"]) == EXIT_USAGE
        assert (attached, "leave --hz out" in capsys.readouterr().err) == ([], True)
        assert command.main(["attach", "7"]) == 0
        assert attached == [7]


def test_ctrl_c_before_the_screen_is_up_says_nothing() -> None:
    """To the whole group, as from a terminal, while the screen is a Python without handlers of its own."""
    sleeps = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(120)"]
    code = (
        "import sys\n"
        "from gpuprof.tui import supervisor\n"
        "from gpuprof.tui.sampler_process import SamplerOptions\n"
        f"options = SamplerOptions(use_service=False, program={('/bin/sleep', '120')!r})\n"
        f"sys.exit(supervisor.run(options, {sleeps!r}))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode == 128 + signal.SIGINT
