"""`gpuprof-tui attach`: the helper's answers, what is said of them, the parent's side of key a, and what the
process table shows. The helper itself is in tests/root/test_attach.py."""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprof.snapshots.errors import EXIT_FAILED, EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, GpuprofError
from gpuprof.snapshots.frames import SourceStatus
from gpuprof.tui import arguments, attach, attach_marks, command, control
from gpuprof.tui.attach_requests import AttachRequests


def refusal(answer: str) -> attach.AttachError:
    with pytest.raises(attach.AttachError) as caught:
        attach.parse_answer(7, answer)
    return caught.value


def test_answers_of_the_helper() -> None:
    assert attach.parse_answer(7, "loaded\t9\t612\tpath\n") == attach.Attached(7, 9, 612, False)
    assert attach.parse_answer(7, "loaded\t9\t12\tmemory\n").from_memory
    assert "0.6 ms" in str(attach.Attached(7, 9, 612, False))
    error = refusal("refused\tuser\tit belongs to ada\tsudo\n")
    assert (error.code, error.message, error.exit_code) == ("user", "it belongs to ada", EXIT_NO_PERMISSION)
    assert error.hint == attach.sudo_line(7)
    assert error.hint.startswith("sudo ")
    assert error.hint.endswith(" attach 7")
    error = refusal("refused\tno-cuda\tit does not use CUDA (yet)\tattach later\n")
    assert (error.hint, error.exit_code) == ("attach later", EXIT_UNAVAILABLE)


@pytest.mark.parametrize(
    "answer", ["", "loaded", "loaded\tx\t1\tpath", "refused\ta", "\x1b[2J", "loaded\t1\t2\tpath\tx"]
)
def test_answers_that_are_none(answer: str) -> None:
    with pytest.raises(GpuprofError, match="ended without an answer"):
        attach.parse_answer(7, answer)


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    options = arguments.parse(["attach", "12", "13", "--no-screen"])
    assert (options.pids, options.no_screen, options.command) == ([12, 13], True, "attach")
    assert not arguments.parse(["attach", "12"]).no_screen
    for wrong in (
        ["attach"],
        ["attach", "0"],
        ["attach", "-3"],
        ["attach", "x"],
        ["attach", "99999999"],
        ["attach", "١"],
    ):
        with pytest.raises(SystemExit):
            arguments.parse(wrong)
    assert "no process id" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------- the command


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> dict[int, attach.Attached | GpuprofError]:
    """What attaching to each pid gives."""
    found: dict[int, attach.Attached | GpuprofError] = {}

    def attach_to(pid: int) -> attach.Attached:
        outcome = found[pid]
        if isinstance(outcome, GpuprofError):
            raise outcome
        return outcome

    monkeypatch.setattr(attach, "attach", attach_to)
    monkeypatch.setattr(
        attach, "wait_for_recording", lambda pid: (pid == 1, "kineto is there" if pid == 2 else "")
    )
    return found


def test_what_the_command_says(
    outcomes: dict[int, attach.Attached | GpuprofError], capsys: pytest.CaptureFixture[str]
) -> None:
    for pid in (1, 2, 3):
        outcomes[pid] = attach.Attached(pid, pid, 500, False)
    outcomes[3] = attach.AttachError("loaded", "it has the library already")
    outcomes[4] = attach.AttachError("traced", "gdb debugs it")
    assert attach.attach_all([1]) == (0, 0)
    assert attach.attach_all([2]) == (0, 0)
    assert attach.attach_all([1, 3, 4]) == (1, EXIT_UNAVAILABLE)
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("; its GPU time is being recorded")
    assert said[1].endswith("; not recorded now: kineto is there")
    assert said[3:] == ["pid 3 has the library already", "pid 4: gdb debugs it"]
    with pytest.raises(attach.AttachError, match="pid 4: gdb debugs it"):
        attach.attach_all([4])


def test_one_that_fails_keeps_no_other_from_being_attached_to(
    outcomes: dict[int, attach.Attached | GpuprofError], capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is that of the first that failed, in whatever way."""
    for pid in (1, 2, 5):
        outcomes[pid] = attach.Attached(pid, pid, 500, False)
    with pytest.raises(GpuprofError) as silent:
        attach.parse_answer(3, "")
    outcomes[3] = silent.value
    outcomes[4] = attach.AttachError("user", "it belongs to ada", "sudo gpuprof-tui attach 4")
    for pids, code in (([1, 4, 2], EXIT_NO_PERMISSION), ([3, 4, 1], EXIT_FAILED), ([1, 2], 0)):
        assert command.main(["attach", "--no-screen", *map(str, pids)]) == code
        said = capsys.readouterr()
        assert said.err == ""
        of_each = [line for line in said.out.splitlines() if line.startswith("pid ")]
        assert [int(line.split()[1].rstrip(":")) for line in of_each] == pids
        assert ("pid 4: it belongs to ada\n  sudo gpuprof-tui attach 4" in said.out) == (4 in pids)
    assert command.main(["attach", "4", "5"]) == EXIT_NO_PERMISSION
    assert "No sampler listens yet" in capsys.readouterr().out


def test_the_screen_opens_only_where_nobody_records_and_there_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[bool] = []
    monkeypatch.setattr(command, "_live", lambda options: shown.append(True) or 0)
    monkeypatch.setattr(attach, "attach_all", lambda pids: (len(pids), EXIT_UNAVAILABLE * (len(pids) - 1)))
    monkeypatch.setattr(os, "isatty", lambda fd: False)
    assert command.main(["attach", "5"]) == 0
    assert "No sampler listens yet" in capsys.readouterr().out
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    assert command.main(["attach", "5", "--no-screen"]) == 0
    assert shown == []
    assert command.main(["attach", "5"]) == 0
    assert shown == [True]
    assert command.main(["attach", "5", "6"]) == EXIT_UNAVAILABLE  # one failed, and the other is shown
    assert shown == [True, True]


def test_the_state_of_a_ring() -> None:
    """Read from a descriptor of this very process."""
    fd = os.memfd_create("gpuprof-ring")
    try:
        assert attach.ring_state(os.getpid()) == (None, "")
        os.ftruncate(fd, 8192)
        assert attach.ring_state(os.getpid()) == (None, "")
        os.pwrite(fd, b"GPRFING1" + struct.pack("<7I", 2, 8192, 64, 1 << 17, os.getpid(), 1, 3), 0)
        os.pwrite(fd, b"another profiler: \x1b[31mkineto\0rest", 608)
        assert attach.ring_state(os.getpid()) == (3, "another profiler: ?[31mkineto")
        assert attach.wait_for_recording(os.getpid(), 0) == (False, "another profiler: ?[31mkineto")
        os.pwrite(fd, struct.pack("<I", 1), 32)
        assert attach.wait_for_recording(os.getpid(), 0) == (True, "")
    finally:
        os.close(fd)
    assert attach.wait_for_recording(os.getpid(), 0) == (False, "")
    assert attach.ring_state(1 << 22) == (None, "")


# -------------------------------------------------------------------------------------- the parent's side


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    parent, screen = control.pair()
    yield parent, screen
    parent.close()
    screen.close()


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in the helper's place; what it is called with is in the file "called"."""
    script = tmp_path / "helper"
    library = tmp_path / "libgpuprof_inject.so"
    library.touch()
    monkeypatch.setattr(attach, "find_helper", lambda: script)
    monkeypatch.setattr(attach, "find_library", lambda: library)
    return script


def script(path: Path, text: str) -> None:
    path.write_text(f'#!/bin/sh\necho "$@" > {path.parent}/called\n{text}\n')
    path.chmod(stat.S_IRWXU)


def answer(requests: AttachRequests, parent: socket.socket, screen: socket.socket) -> control.Packet:
    end = time.monotonic() + 60
    while (packet := control.receive(screen)) is None:
        assert time.monotonic() < end
        requests.look(parent)
        time.sleep(0.005)
    return packet


def test_a_request_is_answered(ends: tuple[socket.socket, socket.socket], helper: Path) -> None:
    parent, screen = ends
    requests = AttachRequests()
    assert (requests.fd, requests.deadline) == (-1, None)
    script(helper, r"printf 'loaded\t12\t700\tpath\n'")
    requests.begin(parent, "4711")
    assert requests.fd >= 0
    packet = answer(requests, parent, screen)
    assert packet.op == "attached"
    assert packet.fields["message"].startswith("pid 4711 is ready")
    assert (helper.parent / "called").read_text() == f"4711 {attach.find_library()} gpuprof_start\n"
    assert requests.fd == -1
    script(helper, r"printf 'refused\tbusy\tno thread\ttry again\n'; exit 1")
    requests.begin(parent, "4711")
    packet = answer(requests, parent, screen)
    assert packet.op == "refused"
    assert packet.fields == {"request": "attach", "message": "no thread", "hint": "try again"}
    script(helper, "exit 3")
    requests.begin(parent, "4711")
    assert "without an answer" in answer(requests, parent, screen).fields["message"]


def test_a_look_changes_nothing(ends: tuple[socket.socket, socket.socket], helper: Path) -> None:
    parent, screen = ends
    requests = AttachRequests()
    script(helper, "echo possible")
    requests.begin(parent, "4711", "check")
    assert answer(requests, parent, screen) == control.Packet("attachable", {"message": ""})
    assert (helper.parent / "called").read_text().split()[:2] == ["--check", "4711"]
    script(helper, r"printf 'refused\tloaded\tit has the library already\t\n'; exit 1")
    requests.begin(parent, "4711", "check")
    assert answer(requests, parent, screen) == control.Packet("attachable", {"message": "loaded"})
    script(helper, r"printf 'refused\tno-cuda\tit does not use CUDA (yet)\tlater\n'; exit 1")
    requests.begin(parent, "4711", "check")
    packet = answer(requests, parent, screen)
    assert packet.op == "refused"
    assert packet.fields == {"request": "check", "message": "it does not use CUDA (yet)", "hint": "later"}


def test_one_request_at_a_time_and_no_other_words(
    ends: tuple[socket.socket, socket.socket], helper: Path
) -> None:
    parent, screen = ends
    requests = AttachRequests()
    for wrong in ("", "0", "-1", "x", "12 --any", "99999999999", "4194304", "٣", "1\n"):
        requests.begin(parent, wrong)
        packet = control.receive(screen)
        assert packet is not None
        assert packet.fields["message"] == "that is no process id"
    assert not (helper.parent / "called").exists()
    requests.begin(parent, "7")  # there is no such program
    packet = control.receive(screen)
    assert packet is not None
    assert packet.op == "refused"
    script(helper, "exec sleep 20")
    requests.begin(parent, "7")
    requests.begin(parent, "8")
    packet = control.receive(screen)
    assert packet is not None
    assert packet.fields["message"] == "pid 7 is being attached to"
    requests.close()
    assert requests.fd == -1


def test_a_helper_that_never_answers(
    ends: tuple[socket.socket, socket.socket], helper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, screen = ends
    requests = AttachRequests()
    monkeypatch.setattr(attach, "ANSWER_S", 0.05)
    script(helper, "exec sleep 20")
    requests.begin(parent, "7")
    assert "no answer" in answer(requests, parent, screen).fields["message"]


# ---------------------------------------------------------------------------------------------- marks


def test_reasons_of_the_status() -> None:
    status = SourceStatus(
        "gpu",
        "degraded",
        "pid 12 does not record: another profiler uses CUPTI in this process: kineto; pid 13: it is odd; "
        "pid 14 gives no launch stacks: x; not recording: pid 15, 16; 3 launches lost",
    )
    assert attach_marks.reasons(status) == {
        12: "another profiler uses CUPTI in this process: kineto",
        13: "it is odd",
    }
    assert attach_marks.reasons(None) == {}


def test_marks_and_notes() -> None:
    assert [attach_marks.mark(recording, "") for recording in (None, True, False)] == ["", "●", "a"]
    assert [attach_marks.mark(recording, "why") for recording in (None, True, False)] == ["!", "●", "!"]
    assert attach_marks.mark(False, "", live=False) == "○"
    assert attach_marks.note(False, "why") == "why"
    assert attach_marks.note(True, "why") == attach_marks.note(False, "") == ""
    assert attach_marks.merged({1: "now"}, {1: "before", 2: "tried"}) == {1: "now", 2: "tried"}
