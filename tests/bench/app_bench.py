"""What the whole screen costs, in a real pseudo-terminal over a node that does not exist: `python
tests/bench/app_bench.py`.

Prints the time from the start of the process to the first full frame (median of 5), to the first tree,
and the CPU of the screen at 200×60 with two GPUs at 10 Hz, a tree that is asked for every two seconds and
the process table.
"""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tui"
COLUMNS, ROWS = 200, 60
SECONDS = 20.0


def _pty_screen() -> ModuleType:
    sys.path.insert(0, str(TESTS))
    import pty_screen

    return pty_screen


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, from /proc/PID/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_times(module: ModuleType, path: str) -> tuple[float, float]:
    """Seconds from exec to the first frame, by the bytes that reach the terminal, and to the tree of the
    first answer."""
    with module.screen_of("--socket", path, columns=COLUMNS, rows=ROWS) as screen:
        while b"quit" not in screen.raw:  # the bottom line: all lines above it were written before
            _read(screen)
        first = time.monotonic() - screen.started
        while b"train.py" not in screen.raw:
            _read(screen)
        tree = time.monotonic() - screen.started
        screen.send("q")
        screen.wait_exit()
    return first, tree


def _read(screen: Any) -> None:
    if select.select([screen.fd], [], [], 0.01)[0]:
        data = os.read(screen.fd, 65536)
        screen.raw += data
        for _ in range(data.count(b"\x1b[6n")):
            screen.send(b"\x1b[1;1R")


def steady_cpu(module: ModuleType, path: str) -> tuple[float, float]:
    """Percent of one core, and bytes per second to the terminal, over SECONDS."""
    with module.screen_of("--socket", path, columns=COLUMNS, rows=ROWS) as screen:
        while b"train.py" not in screen.raw:
            _read(screen)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            _read(screen)
        before, written, start = cpu_seconds(screen.pid), len(screen.raw), time.monotonic()
        while time.monotonic() < start + SECONDS:
            _read(screen)
        elapsed = time.monotonic() - start
        used = 100 * (cpu_seconds(screen.pid) - before) / elapsed
        rate = (len(screen.raw) - written) / elapsed
        screen.send("q")
        screen.wait_exit()
    return used, rate


def mouse_delays(module: ModuleType, path: str) -> list[float]:
    """Seconds from a mouse report of a drag over the charts to the first byte of what is drawn for it."""
    delays = []
    with module.screen_of("--socket", path, columns=COLUMNS, rows=ROWS) as screen:
        while b"train.py" not in screen.raw:
            _read(screen)
        screen.send("\x1b[<0;60;12M")
        for column in range(62, 142):
            end = time.monotonic() + 0.06
            while time.monotonic() < end:
                _read(screen)
            written, sent = len(screen.raw), time.monotonic()
            screen.send(f"\x1b[<32;{column};12M")
            while len(screen.raw) == written and time.monotonic() < sent + 1:
                _read(screen)
            delays.append(time.monotonic() - sent)
        screen.send("\x1b[<0;141;12m")
        screen.send("q")
        screen.wait_exit()
    return sorted(delays)


def main() -> None:
    module = _pty_screen()
    path = os.path.join(tempfile.mkdtemp(), "sampler.sock")
    node = subprocess.Popen([sys.executable, str(TESTS / "fake_node.py"), "--socket", path, "--past", "150"])
    try:
        while not os.path.exists(path):
            time.sleep(0.05)
            if node.poll() is not None:
                raise SystemExit("the fake node did not start")
        times = [start_times(module, path) for _ in range(5)]
        print(f"first full frame      {statistics.median(first for first, _ in times):.2f} s (limit 0.5)")
        print(f"first tree            {statistics.median(tree for _, tree in times):.2f} s")
        used, rate = steady_cpu(module, path)
        print(f"screen, 200x60, 4 Hz  {used:.1f} % (limit 8), {rate / 1e3:.0f} kB/s")
        delays = mouse_delays(module, path)
        p50, p95 = (1e3 * delays[int(len(delays) * share)] for share in (0.5, 0.95))
        print(f"mouse to screen       p50 {p50:.0f} ms, p95 {p95:.0f} ms (limit 50)")
    finally:
        node.kill()
        node.wait()


if __name__ == "__main__":
    main()
