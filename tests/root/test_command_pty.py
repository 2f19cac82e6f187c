"""The whole program in a pseudo-terminal: the processes that it starts, and that none of them is left."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from machine_time import PATIENCE_S, Stopwatch

from gpuprof.snapshots.file import read_snapshot

pytestmark = pytest.mark.root

CODE = "import sys; sys.argv[0] = 'gpuprof-tui'; from gpuprof.tui.command import main; sys.exit(main())"
OPTION = "--no-service"


class Terminal:
    """The program in a terminal of 120 x 40."""

    def __init__(self, cwd: Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            environ = {k: v for k, v in os.environ.items() if not k.startswith("SUDO_")}
            environ.update(TERM="xterm-256color", LANG="C.UTF-8")
            os.execve(sys.executable, [sys.executable, "-c", CODE, OPTION], environ)
        self.before = termios.tcgetattr(self.fd)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.out = b""
        self.code: int | None = None

    def read(self, seconds: float) -> None:
        if select.select([self.fd], [], [], seconds)[0]:
            with suppress(OSError):
                self.out += os.read(self.fd, 65536)

    def until(self, condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.out[-2000:]
            self.read(0.02)

    def drain(self) -> None:
        """Read all that was written by one that has ended."""
        with suppress(OSError):  # the end of a terminal that nobody has open
            while select.select([self.fd], [], [], 0.05)[0]:
                self.out += os.read(self.fd, 65536)

    def children(self) -> dict[str, int]:
        """pids of the screen and the sampler, as far as they run."""
        found: dict[str, int] = {}
        with suppress(OSError):
            for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                for name in ("gpuprof.tui", "gpuprof.sampler"):
                    if name.encode() in words:
                        found[name] = int(pid)
        return found

    def ended(self) -> bool:
        if self.code is None:
            pid, state = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(state)
        return self.code is not None

    def close(self) -> None:
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.hang_up()

    def hang_up(self) -> None:
        """Close the terminal; a second time its number may be another file's."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    made.until(lambda: b"\x1b[?1049h" in made.out and len(made.children()) == 2)
    yield made
    made.close()


def _gone(pids: list[int]) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def _family(pids: list[int]) -> list[int]:
    """These processes and all below them, the sampler's loader among them."""
    found = list(pids)
    for pid in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                found += [int(p) for p in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_all_of_it_within_a_second(terminal: Terminal, signum: int) -> None:
    pids = _family([terminal.pid])
    assert len(pids) >= 3
    watch = Stopwatch()
    os.kill(terminal.pid, signum)
    terminal.until(lambda: terminal.ended() and _gone(pids))
    assert watch.seconds < 1.0
    terminal.drain()
    assert terminal.out.rindex(b"\x1b[?1049l") > terminal.out.rindex(b"\x1b[?1049h")
    assert b"Traceback" not in terminal.out


def test_q_ends_all_of_it(terminal: Terminal) -> None:
    pids = _family([terminal.pid])
    terminal.until(lambda: b"quit" in terminal.out)
    os.write(terminal.fd, b"q")
    terminal.until(terminal.ended)
    watch = Stopwatch()
    assert terminal.code == 0
    terminal.until(lambda: _gone(pids))
    assert watch.seconds < 1.0


def test_closing_the_terminal_ends_all_of_it(terminal: Terminal) -> None:
    pids = _family([terminal.pid])
    terminal.hang_up()
    watch, deadline = Stopwatch(), time.monotonic() + PATIENCE_S
    while not (terminal.ended() and _gone(pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if not _gone([pid])]
        time.sleep(0.01)
    assert watch.seconds < 2.0


def test_a_sampler_that_dies_under_the_screen_is_replaced(terminal: Terminal) -> None:
    first = terminal.children()["gpuprof.sampler"]
    terminal.until(lambda: b"quit" in terminal.out)
    os.kill(first, signal.SIGKILL)
    terminal.until(lambda: terminal.children().get("gpuprof.sampler", first) != first)
    second = terminal.children()["gpuprof.sampler"]
    # The screen is connected again: the new sampler has a client that it sends to.
    terminal.out = b""
    terminal.until(lambda: b"sampler" in terminal.out or len(terminal.out) > 5000)
    assert terminal.children()["gpuprof.sampler"] == second
    assert not terminal.ended()


def test_w_saves_a_snapshot_though_the_screen_is_nobody(terminal: Terminal, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    screen = terminal.children()["gpuprof.tui"]
    assert Path(f"/proc/{screen}").stat().st_uid != 0
    terminal.until(lambda: b"quit" in terminal.out and b"memory" in terminal.out)
    os.write(terminal.fd, b"w")

    terminal.until(lambda: b"Saved" in terminal.out)
    os.write(terminal.fd, b"q")
    terminal.until(terminal.ended)
    (path,) = tmp_path.glob("*.gpuprof")
    opened = read_snapshot(path)
    assert opened.damage is None
    assert opened.history.series_defs


def test_w_on_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    """The screen is nobody, its parent has made the file; with room again the next one is saved."""
    where = tmp_path / "disk"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)], check=True)
    terminal = Terminal(where)
    try:
        filler = where / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        terminal.until(lambda: b"quit" in terminal.out and b"memory" in terminal.out)
        os.write(terminal.fd, b"w")
        terminal.until(lambda: b"cannot write" in terminal.out)
        terminal.until(lambda: list(where.iterdir()) == [filler])
        filler.unlink()
        os.write(terminal.fd, b"w")
        terminal.until(lambda: b"Saved" in terminal.out)
        os.write(terminal.fd, b"q")
        terminal.until(terminal.ended)
        (path,) = where.iterdir()
        assert read_snapshot(path).damage is None
        assert b"descriptor" not in terminal.out
    finally:
        terminal.close()
        subprocess.run(["umount", "-l", str(where)], check=True)
