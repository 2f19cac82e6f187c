"""The real screen in a real pseudo-terminal: how it starts, what reaches the terminal, and how it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

LEFT_BEHIND = {
    b"1049": "alternate screen",
    b"1000": "mouse",
    b"1003": "mouse",
    b"1006": "mouse",
    b"2004": "paste",
}
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}


def modes_at_end(raw: bytes) -> dict[bytes, bytes]:
    """The last h or l of each private mode that was ever set."""
    return {
        mode: state
        for modes, state in re.findall(rb"\x1b\[\?([\d;]+)([hl])", raw)
        for mode in modes.split(b";")
    }


def assert_restored(screen: Any) -> None:
    modes = modes_at_end(bytes(screen.raw))
    assert [name for mode, name in LEFT_BEHIND.items() if modes.get(mode) == b"h"] == []
    assert modes.get(b"25") == b"h"


def test_shows_the_node_and_quits(node_socket: tuple[Any, str], pty_screen: ModuleType) -> None:
    with pty_screen.screen_of("--socket", node_socket[1], columns=160, rows=48) as screen:
        screen.wait_drawn()
        for words in ("main (train.py:88)", "node17", "NVIDIA H200", "GPU util", "python3 (4711)"):
            screen.wait_for(words)
        before = termios.tcgetattr(screen.fd)[3]
        screen.send("q")
        assert screen.wait_exit() == 0
        assert_restored(screen)
        assert not before & termios.ECHO


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_restore_the_terminal(
    node_socket: tuple[Any, str], pty_screen: ModuleType, number: signal.Signals
) -> None:
    with pty_screen.screen_of("--socket", node_socket[1]) as screen:
        screen.wait_drawn()
        screen.kill(number)
        assert screen.wait_exit() == 128 + number
        assert_restored(screen)


def test_a_terminal_that_takes_nothing_does_not_hold_up_the_exit(
    node_socket: tuple[Any, str], pty_screen: ModuleType
) -> None:
    with pty_screen.screen_of("--socket", node_socket[1], columns=200, rows=60, answers=False) as screen:
        screen.wait_drawn()
        for _ in range(40):  # nobody reads: the redraws of these fill the terminal's buffer
            screen.send("?q")
            time.sleep(0.02)
        time.sleep(1.0)
        screen.kill(signal.SIGTERM)
        assert screen.wait_exit_unread() == 128 + signal.SIGTERM


def test_hang_up_of_the_terminal_ends_it(node_socket: tuple[Any, str], pty_screen: ModuleType) -> None:
    with pty_screen.screen_of("--socket", node_socket[1]) as screen:
        screen.wait_drawn()
        screen.hang_up()
        assert screen.wait_exit_unread() == 128 + signal.SIGHUP


def test_bytes_that_are_not_utf8_are_survived(node_socket: tuple[Any, str], pty_screen: ModuleType) -> None:
    """X10 mouse reports past column 95 have bytes above 0x7f that are no UTF-8."""
    with pty_screen.screen_of("--socket", node_socket[1], columns=200, rows=40) as screen:
        screen.wait_drawn()
        for column in (60, 100, 150, 190):
            screen.send(b"\x1b[M\x20" + bytes([32 + column, 32 + 30]))  # press
            screen.send(b"\x1b[M\x23" + bytes([32 + column, 32 + 30]))  # release
        screen.send(b"\xff\xfe\x80\xc3(\xed\xa0\x80")
        screen.send("?")
        screen.wait_for("What the numbers mean" if screen.screen.lines > 60 else "Anywhere")
        screen.send("\x1b")
        screen.wait_for(lambda text: "Anywhere" not in text)
        screen.send("q")
        assert screen.wait_exit() == 0


def test_x10_mouse_reports_work(node_socket: tuple[Any, str], pty_screen: ModuleType) -> None:
    """A drag over the charts in X10 encoding selects a range."""
    with pty_screen.screen_of("--socket", node_socket[1], columns=200, rows=50) as screen:
        screen.wait_drawn()
        for button, column in ((0, 90), (32, 100), (32, 120), (3, 120)):
            screen.send(b"\x1b[M" + bytes([32 + button, 32 + column, 32 + 8]))
            screen.pump(0.1)
        screen.wait_for("Esc lets go")
        screen.send("q")
        screen.wait_exit()


def test_hostile_names_reach_no_terminal(
    fake_node: ModuleType, pty_screen: ModuleType, tmp_path: Path, hostile_names: list[str]
) -> None:
    node = fake_node.FakeNode(1, hostile=hostile_names, host="evil\x1b]0;owned\x07host")
    now = time.monotonic_ns()
    node.fill(now - 30 * 10**9, now)
    threading.Thread(target=node.run, daemon=True).start()
    node.listener(str(tmp_path / "s"))
    with pty_screen.screen_of("--socket", str(tmp_path / "s"), columns=180, rows=60) as screen:
        screen.wait_drawn()
        for key in ("e", "j", "j", "t", "G", "k", "k", "/", "x", "\r", "\t", "j", "f", "\x7f", "zz"):
            screen.send(key)
            screen.pump(0.15)
        screen.wait_for("zz")
        screen.send("\x1b")
        screen.wait_for(lambda text: "zz" not in text)  # or the q would be Alt+q
        screen.send("q")
        screen.wait_exit()
        raw = re.sub(rb"\x1b\]22;[a-z]+\x07", b"", bytes(screen.raw))  # Textual sets the pointer's shape
    node.stop()
    for planted in (
        b"\x1b]0;owned",
        b"\x1b[31mred",
        b"\x9b31m",
        "\u202e".encode(),
        b"\x07",
        "\u200b".encode(),
    ):
        assert planted not in raw, (planted, raw[max(0, raw.index(planted) - 200) : raw.index(planted) + 50])
    controls = {byte for byte in raw if byte < 0x20 and byte not in (0x1B, 0x0D, 0x0A)}
    assert controls == set()
    assert b"[bold red]x" in raw  # markup is drawn, not obeyed


def test_sampler_gone_is_said_and_reconnected(node_socket: tuple[Any, str], pty_screen: ModuleType) -> None:
    node, path = node_socket
    with pty_screen.screen_of("--socket", path, columns=160, rows=40) as screen:
        screen.wait_drawn()
        os.rename(path, path + ".away")
        node.hang_up()
        screen.wait_for("sampler gone, reconnecting")
        os.rename(path + ".away", path)
        screen.wait_for(lambda text: "sampler gone" not in text)
        screen.wait_drawn()
        screen.send("q")
        assert screen.wait_exit() == 0


def test_no_terminal_is_an_error(node_socket: tuple[Any, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuprof.tui", "--socket", node_socket[1]],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 5
    assert done.stderr.startswith("gpuprof-tui: The screen needs a terminal")
    assert "Traceback" not in done.stderr


def test_dumb_terminal_is_an_error(node_socket: tuple[Any, str], pty_screen: ModuleType) -> None:
    with pty_screen.screen_of("--socket", node_socket[1], environ={"TERM": "dumb"}) as screen:
        assert screen.wait_exit() == 5
        assert b"TERM" in screen.raw
        assert b"\x1b" not in screen.raw


def test_sixteen_colours_and_no_answers(node_socket: tuple[Any, str], pty_screen: ModuleType) -> None:
    """A plain terminal: no true colour, and it answers no question."""
    plain = {"TERM": "xterm", "COLORTERM": ""}
    with pty_screen.screen_of(
        "--socket", node_socket[1], columns=80, rows=24, answers=False, environ=plain
    ) as screen:
        screen.wait_for(lambda text: re.search(r"\d samples", text) is not None and "quit" in text)
        assert b"38;2;" not in screen.raw
        screen.send("q")
        assert screen.wait_exit() == 0


def test_a_slow_terminal_is_not_flooded(node_socket: tuple[Any, str], pty_screen: ModuleType) -> None:
    """At 50 kB/s a key still shows within two seconds: at most one redraw is in flight.

    Told by what comes before it, which is the same however fast the machine is.
    """
    with pty_screen.screen_of("--socket", node_socket[1], columns=200, rows=60) as screen:
        screen.wait_drawn()
        screen.bytes_per_s = 50_000
        screen.pump(6)
        before = len(screen.raw)
        screen.send("?")
        screen.wait_for("Anywhere")
        assert len(screen.raw) - before < 2 * screen.bytes_per_s
        screen.bytes_per_s = None
        screen.send("qq")
        screen.wait_exit()


def test_file_opens_without_a_sampler(fake_node: ModuleType, pty_screen: ModuleType, tmp_path: Path) -> None:
    from gpuprof.snapshots.file import SnapshotWriter

    node = fake_node.FakeNode(1)
    node.fill(10**12, 10**12 + 20 * 10**9)
    path = tmp_path / "run.gpuprof"
    with SnapshotWriter(str(path), node.hello) as writer:
        writer.write(node.history.frames_between(*node.history.span))
    with pty_screen.screen_of("--file", str(path), columns=150, rows=44) as screen:
        for words in ("main (train.py:88)", "recording run.gpuprof", "whole recording"):
            screen.wait_for(words)
        screen.send("q")
        assert screen.wait_exit() == 0


def test_a_torn_file_shows_what_is_left(
    fake_node: ModuleType, pty_screen: ModuleType, tmp_path: Path
) -> None:
    from gpuprof.snapshots.file import SnapshotWriter

    node = fake_node.FakeNode(1)
    node.fill(10**12, 10**12 + 40 * 10**9)
    path = tmp_path / "run.gpuprof"
    with SnapshotWriter(str(path), node.hello) as writer:
        writer.write(node.history.frames_between(*node.history.span))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 5])
    with pty_screen.screen_of("--file", str(path), columns=150, rows=44) as screen:
        screen.wait_for(lambda text: "main (train.py:88)" in text and "not whole" in text)
        screen.send("q")
        assert screen.wait_exit() == 0


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(
    node_socket: tuple[Any, str], pty_screen: ModuleType
) -> None:
    with pty_screen.screen_of("--socket", node_socket[1]) as screen:
        screen.wait_drawn()
        screen.send("\x1a")
        screen.wait_stopped()
        assert_restored(screen)
        screen.screen.reset()
        screen.kill(signal.SIGCONT)
        screen.wait_drawn()
        screen.wait_for(lambda text: "quit" in text and "NVIDIA H200" in text)
        screen.send("q")
        assert screen.wait_exit() == 0


def test_no_answer_of_the_terminal_comes_after_the_end(
    node_socket: tuple[Any, str], pty_screen: ModuleType
) -> None:
    """An answer that came later would be typed into the shell."""
    with pty_screen.screen_of("--socket", node_socket[1], answer_delay_s=0.25) as screen:
        screen.wait_drawn()
        for _ in range(20):
            screen.send("j")
            screen.pump(0.05)
        screen.send("q")
        assert screen.wait_exit() == 0
        assert screen.answer_at == []


def test_a_stray_continue_signal_changes_nothing(
    node_socket: tuple[Any, str], pty_screen: ModuleType
) -> None:
    with pty_screen.screen_of("--socket", node_socket[1]) as screen:
        screen.wait_drawn()
        screen.kill(signal.SIGCONT)
        screen.pump(0.3)
        screen.send("q")
        assert screen.wait_exit() == 0
        assert_restored(screen)


def test_a_file_that_is_none_says_so(pty_screen: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "not.gpuprof").write_bytes(b"hello" * 1000)
    with pty_screen.screen_of("--file", str(tmp_path / "not.gpuprof")) as screen:
        assert screen.wait_exit() == 3
        assert_restored(screen)
        after = bytes(screen.raw).rpartition(b"\x1b[?1049l")[2]
        assert b"gpuprof-tui: " in after
        assert b"not.gpuprof" in after
        assert b"Traceback" not in screen.raw


def test_a_file_with_nothing_readable_left(
    fake_node: ModuleType, pty_screen: ModuleType, tmp_path: Path
) -> None:
    from gpuprof.snapshots.file import SnapshotWriter

    node = fake_node.FakeNode(1)
    node.fill(10**12, 10**12 + 5 * 10**9)
    path = tmp_path / "run.gpuprof"
    with SnapshotWriter(str(path), node.hello) as writer:
        writer.write(node.history.frames_between(*node.history.span))
    path.write_bytes(path.read_bytes()[:20])
    with pty_screen.screen_of("--file", str(path)) as screen:
        assert screen.wait_exit() == 3
        assert_restored(screen)


def test_keys_of_one_burst_all_count(node_socket: tuple[Any, str], pty_screen: ModuleType) -> None:
    """Each key goes where the one before it has put the focus, however fast it comes."""
    left = "\x1b[D"
    with pty_screen.screen_of("--socket", node_socket[1], columns=180, rows=48) as screen:
        screen.wait_for("main (train.py:88)")
        screen.send("v" + 40 * left + "\rj")
        text = screen.wait_for("Esc lets go")
        length = re.search(r"\(([\d.]+) s\)  Esc lets go", text)
        assert length is not None
        cell_s = 60 / (180 - 18 - 34)
        assert float(length[1]) == pytest.approx(41 * cell_s, abs=0.2)
        screen.send("fpid 4711\r/decode\r")
        screen.wait_for(lambda text: "filter: pid 4711" in text and "/decode:" in text)
        screen.send("f\x15pid 77\r")
        screen.wait_for(lambda text: "filter: pid 77 " in text)
        screen.send("?qq")
        assert screen.wait_exit() == 0


def test_a_host_that_cannot_be_reached(pty_screen: ModuleType) -> None:
    command = "printf 'ssh: Could not resolve hostname nosuchhost\\r\\n' >&2; exit 255"
    argv = json.dumps(["/bin/sh", "-c", command])
    with pty_screen.screen_of("--connect", argv, "--label", "nosuchhost", columns=150) as screen:
        screen.wait_for(
            lambda text: "cannot connect to nosuchhost: ssh: Could not resolve hostname nosuchhost  " in text
        )
        assert "sampler gone" not in screen.text
        screen.wait_for(lambda text: "cannot connect  " in text and "Trying again" not in text)
        assert "\u240d" not in screen.text
        assert "● live" not in screen.text
        assert not re.search(r"\d\d:\d\d:\d\d", screen.text)
        screen.send("v\rq")
        assert screen.wait_exit() == 5


def test_save_and_open_again(
    node_socket: tuple[Any, str], pty_screen: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pty_screen.screen_of("--socket", node_socket[1], columns=160, rows=44) as screen:
        screen.wait_drawn()
        screen.send("w")
        screen.wait_for("Saved")
        screen.send("q")
        screen.wait_exit()
    (saved,) = tmp_path.glob("gpuprof-node17-*.gpuprof")
    with pty_screen.screen_of("--file", str(saved), columns=160, rows=44) as screen:
        screen.wait_for("main (train.py:88)")
        screen.send("q")
        screen.wait_exit()


def test_socketpair_from_a_parent(fake_node: ModuleType, pty_screen: ModuleType) -> None:
    node = fake_node.FakeNode(1)
    now = time.monotonic_ns()
    node.fill(now - 10**10, now)
    ours, theirs = socket.socketpair()
    threading.Thread(target=node.serve, args=(ours,), daemon=True).start()
    with pty_screen.screen_of("--fd", str(theirs.fileno()), pass_fds=[theirs.fileno()]) as screen:
        screen.wait_drawn()
        screen.send("q")
        assert screen.wait_exit() == 0
    ours.close()
    theirs.close()
