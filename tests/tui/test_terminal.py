"""Input bytes and pacing, without a terminal; the pseudo-terminal tests are in test_app_pty.py."""

from __future__ import annotations

import os

import pytest

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.tui.terminal import InputFilter, Pacer, TerminalFile, check_terminal


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"abc", "abc"),
        ("é日".encode(), "é日"),
        (b"\x1b[M\x20\x21\x21", "\x1b[<0;1;1M"),  # press of button 0 at 1, 1
        (b"\x1b[M\x20\x95\xa0", "\x1b[<0;117;128M"),  # past column 95: no UTF-8
        (b"\x1b[M\x23\xff\x30", "\x1b[<0;223;16m"),  # release
        (b"\x1b[M\x60\x85\x22", "\x1b[<64;101;2M"),  # wheel up
        (b"a\xff\xfeb", "ab"),
        (b"\x1b[A", "\x1b[A"),
        (b"\x1b", "\x1b"),
    ],
)
def test_input(data: bytes, text: str) -> None:
    assert InputFilter().feed(data) == text


def test_input_in_pieces_is_the_same() -> None:
    data = "é".encode() + b"\x1b[M\x20\x95\xa0" + b"\xffq" + b"\x1b[M\x23\xc3\xa9"
    pieces = InputFilter()
    assert "".join(pieces.feed(data[place : place + 1]) for place in range(len(data))) == InputFilter().feed(
        data
    )


def test_pacer_waits_only_for_a_terminal_that_answers() -> None:
    pacer = Pacer()
    pacer.wrote(1000)
    assert pacer.wants_probe(0.0)
    assert pacer.ready(0.1)  # it has never answered: it may not know how
    pacer.answered()
    pacer.wrote(1000)
    assert pacer.wants_probe(1.0)
    assert not pacer.ready(1.1)
    assert not pacer.wants_probe(1.2)  # one at a time
    pacer.answered()
    assert pacer.ready(1.3)
    pacer.wrote(10)
    assert not pacer.wants_probe(1.4)  # a small redraw is not waited for
    pacer.wrote(1000)
    assert pacer.wants_probe(2.0)
    assert pacer.ready(20.0)  # the answer was lost


def test_output_to_a_reader_that_is_gone_is_dropped() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    output = TerminalFile(writing)
    output.queued = 5
    output.write("12345")
    assert output.gone
    assert output.queued == 0
    output.write("more")
    os.close(writing)


def test_no_terminal_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: False)
    with pytest.raises(GpuprofError) as caught:
        check_terminal()
    assert "record" in caught.value.hint
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    for term in ("dumb", ""):
        monkeypatch.setenv("TERM", term)
        with pytest.raises(GpuprofError, match="TERM"):
            check_terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    check_terminal()
