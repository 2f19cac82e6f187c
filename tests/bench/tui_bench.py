"""What the charts cost: python tests/bench/tui_bench.py [--seconds 10] [--rounds 2].

Both programs run in a real pty of 200 by 60 cells whose output is read as it comes: eight charts with 600
readings per line at 4 drawings a second, and a bare line widget that redraws as many lines, each one segment,
as often. Printed are the share of one core that each takes, their ratio, and the time from the bytes of a
mouse movement to the end of the output that it causes while a range is dragged.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import os
import pty
import select
import statistics
import struct
import sys
import termios
import time
from pathlib import Path
from types import ModuleType

COLUMNS, ROWS, HZ = 200, 60, 4.0
WARM_UP_S = 2.0


class Terminal:
    """A child of this script in a pty, with what it wrote counted."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(sys.executable, [sys.executable, __file__, *arguments])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.received = 0

    def read(self, timeout: float) -> bytes | None:
        """Bytes that arrive within `timeout` seconds; b"" when none do, None at the end."""
        if not select.select([self.fd], [], [], timeout)[0]:
            return b""
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:
            return None
        self.received += len(data)
        return data or None

    def drain(self, quiet: float) -> float:
        """Read until nothing comes for `quiet` seconds; the time of the last bytes."""
        last = time.perf_counter()
        while self.read(quiet):
            last = time.perf_counter()
        return last

    def finish(self) -> None:
        """Read to the end, and reap."""
        while self.read(30) is not None:
            pass
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def measure_cpu(program: str, seconds: float) -> tuple[float, float]:
    """(percent of one core, kB of output a second) of a program once it has started."""
    report_read, report_write = os.pipe()
    os.set_inheritable(report_write, True)
    terminal = Terminal("--child", program, "--seconds", str(seconds), "--report", str(report_write))
    os.close(report_write)
    terminal.finish()
    with os.fdopen(report_read) as report:
        percent = float(report.read() or "nan")
    return percent, terminal.received / 1000 / (seconds + WARM_UP_S)


def measure_latency(moves: int) -> list[float]:
    """Milliseconds from each mouse movement of a drag to the end of the output that it causes."""
    terminal = Terminal("--child", "still", "--seconds", "600", "--report", "-1")
    deadline = time.monotonic() + 10
    while terminal.received < 20_000 and time.monotonic() < deadline:
        terminal.read(0.1)
    terminal.drain(0.5)
    os.write(terminal.fd, b"\x1b[<0;60;10M")
    terminal.drain(0.1)
    times = []
    for move in range(moves):
        column = 62 + (move * 7) % 90
        start = time.perf_counter()
        os.write(terminal.fd, f"\x1b[<32;{column};{10 + move % 20}M".encode())
        if terminal.read(1.0):
            times.append((terminal.drain(0.02) - start) * 1000)
        time.sleep(0.01 + 0.005 * (move % 5))  # not in step with the screen's own timer
    os.write(terminal.fd, b"\x1b[<0;100;10mq")
    terminal.finish()
    return times


def _demo() -> ModuleType:
    path = Path(__file__).resolve().parent.parent / "tui" / "chart_demo.py"
    spec = importlib.util.spec_from_file_location("chart_demo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_child(program: str, seconds: float, report: int) -> None:
    """One of the programs, which exits by itself and writes its CPU share to the descriptor."""
    from rich.segment import Segment
    from rich.style import Style
    from textual.app import App, ComposeResult
    from textual.geometry import Region
    from textual.strip import Strip
    from textual.widget import Widget

    class Measured(App[None]):
        def on_mount(self) -> None:
            self.set_timer(WARM_UP_S, self.begin)
            self.set_timer(WARM_UP_S + seconds, self.end)

        def begin(self) -> None:
            self.cpu, self.wall = time.process_time(), time.monotonic()

        def end(self) -> None:
            share = (time.process_time() - self.cpu) / (time.monotonic() - self.wall)
            if report >= 0:
                os.write(report, f"{share * 100:.3f}".encode())
            self.exit()

    class BareLines(Widget):
        ALLOW_SELECT = False
        texts = tuple(
            "".join(chr(0x2800 + (x * 7 + y * 13) % 256) for x in range(COLUMNS)) for y in range(2 * ROWS)
        )
        tick = 0

        def render_line(self, y: int) -> Strip:
            style = Style(color="#56b4ff", bgcolor="#121212")
            return Strip([Segment(self.texts[(y + self.tick) % len(self.texts)], style)], COLUMNS)

        def step(self) -> None:
            self.tick += 1
            self.refresh(Region(0, 0, self.size.width, self.size.height))

    class Bare(Measured):
        def compose(self) -> ComposeResult:
            yield BareLines()

        def on_mount(self) -> None:
            self.set_interval(1 / HZ, self.query_one(BareLines).step)

    demo = _demo()

    class Charts(Measured, demo.ChartDemo):  # type: ignore[misc, name-defined]
        pass

    if program == "bare":
        Bare().run()
    else:
        Charts(still=program == "still", dense=True).run()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--child", choices=("bare", "charts", "still"))
    parser.add_argument("--report", type=int, default=-1)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments.child, arguments.seconds, arguments.report)
        return
    shares: dict[str, list[float]] = {"bare": [], "charts": []}
    for _ in range(arguments.rounds):
        for program, values in shares.items():
            percent, rate = measure_cpu(program, arguments.seconds)
            values.append(percent)
            print(f"{program:8} {percent:6.2f} % of a core   {rate:7.1f} kB/s of output")
    bare, charts = (statistics.median(shares[name]) for name in ("bare", "charts"))
    met = charts <= 8 or charts <= 1.7 * bare
    print(
        f"charts / bare line widget: {charts / bare:.2f}   (target: 8 % or 1.7: {'met' if met else 'missed'})"
    )
    times = sorted(measure_latency(arguments.moves))
    if times:
        p95 = times[min(int(len(times) * 0.95), len(times) - 1)]
        print(
            f"mouse to screen: median {statistics.median(times):.1f} ms, p95 {p95:.1f} ms, "
            f"worst {times[-1]:.1f} ms, {len(times)} of {arguments.moves} movements "
            f"(target: p95 50 ms: {'met' if p95 <= 50 else 'missed'})"
        )


if __name__ == "__main__":
    main()
