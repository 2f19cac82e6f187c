"""Terminals without colours or Unicode, in a real pty: nothing of that kind is ever written to them."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

SGR = re.compile(rb"\x1b\[([0-9;]*)m")


def colour_codes(raw: bytes) -> list[bytes]:
    """SGR sequences that set a colour."""
    return [
        found[0]
        for found in SGR.finditer(raw)
        if any(code and (30 <= int(code) <= 49 or 90 <= int(code) <= 107) for code in found[1].split(b";"))
    ]


@pytest.mark.parametrize(
    "environ",
    [{"NO_COLOR": "1"}, {"TERM": "vt100"}, {"TERM": "xterm-mono"}, {"TERM": "nonsense", "COLORTERM": ""}],
)
def test_without_colours(pty_screen: ModuleType, environ: dict[str, str]) -> None:
    with pty_screen.screen_of("--demo", columns=100, rows=30, environ=environ) as screen:
        screen.wait_for("quit")
        screen.wait_for("train_slow_loader.py")
        screen.send("j")
        screen.pump(0.5)
        screen.send("?")
        screen.wait_for("this page")
        screen.send("q")
        screen.pump(0.3)
        screen.send("q")
        assert screen.wait_exit() == 0
        assert colour_codes(bytes(screen.raw)) == []
        assert b"\x1b[7m" in screen.raw or b";7m" in screen.raw  # the cursor's row, in reverse video
        if environ.get("TERM") == "vt100":
            assert screen.raw.isascii()


def test_with_colours_there_are_some(pty_screen: ModuleType) -> None:
    with pty_screen.screen_of("--demo", columns=100, rows=30) as screen:
        screen.wait_for("train_slow_loader.py")
        assert colour_codes(bytes(screen.raw))
        assert not screen.raw.isascii()
        assert Path(f"/proc/{screen.pid}/comm").read_text() == "gpuprof-tui\n"


def test_without_utf8(pty_screen: ModuleType) -> None:
    environ = {"LANG": "C", "LC_ALL": "C", "LC_CTYPE": "C", "GPUPROF_GLYPHS": ""}
    with pty_screen.screen_of("--demo", columns=100, rows=30, environ=environ) as screen:
        screen.wait_for("quit")
        screen.wait_for("train_slow_loader.py")
        screen.send("3")
        screen.wait_for("GPU 0 idle")
        screen.send("i")
        screen.pump(0.5)
        screen.send("q")
        assert screen.wait_exit() == 0
        assert screen.raw.isascii()
        assert colour_codes(bytes(screen.raw))
