"""What is left out for terminals that cannot show it: decided by the environment, done to what is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.style import Style

from gpuprof.tui import plain
from gpuprof.tui.plain import PlainText

TUI = Path(plain.__file__).parent


@pytest.mark.parametrize(
    ("environ", "known", "expected"),
    [
        ({"TERM": "xterm-256color"}, None, False),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, 256, True),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, 256, False),  # no-color.org: not an empty one
        ({"TERM": "vt100"}, None, True),
        ({"TERM": "vt220", "COLORTERM": "truecolor"}, None, True),
        ({"TERM": "xterm-mono", "COLORTERM": "truecolor"}, None, True),
        ({"TERM": "screen-m"}, None, True),
        ({"TERM": "xterm"}, None, False),
        ({"TERM": "screen"}, None, False),
        ({"TERM": "tmux-256color"}, None, False),
        ({"TERM": "linux"}, None, False),
        ({"TERM": "xterm-kitty"}, None, False),
        ({"TERM": "iterm2-direct"}, None, False),
        ({"TERM": "nonsense"}, None, True),
        ({"TERM": "nonsense", "COLORTERM": "truecolor"}, None, False),
        ({"TERM": "wy50"}, 0, True),
        ({"TERM": "sun-new"}, 8, False),
    ],
)
def test_terminals_without_colours(environ: dict[str, str], known: int | None, expected: bool) -> None:
    assert plain.is_colourless(environ, lambda _term: known) is expected


def test_terminfo_knows_vt100_and_not_everything() -> None:
    """In processes of their own: the first call holds for good."""
    text = "from gpuprof.tui.plain import colours_by_terminfo as ask; import sys; print(ask(sys.argv[1]))"
    for term, answers in (
        ("vt100", ("0", "None")),
        ("xterm-256color", ("256", "None")),
        ("x\x1b/..", ("None",)),
    ):
        said = subprocess.run([sys.executable, "-c", text, term], capture_output=True, text=True, check=True)
        assert said.stdout.strip() in answers, term


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),  # as in most containers
        ({"LANG": "C.UTF-8"}, False),
        ({"LANG": "en_US.utf8"}, False),
        ({"LANG": "C"}, True),
        ({"LANG": "POSIX"}, True),
        ({"LANG": "de_DE.ISO-8859-1"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),
        ({"LANG": "C.UTF-8", "LC_ALL": "C"}, True),
        ({"LANG": "C.UTF-8", "TERM": "vt100"}, True),
    ],
)
def test_locales_without_utf8(environ: dict[str, str], expected: bool) -> None:
    assert plain.is_ascii_only(environ) is expected


def test_the_locale_is_that_of_the_person_not_what_python_made_of_it() -> None:
    text = (
        "import os; from gpuprof.tui import plain; environ = dict(os.environ); plain.note_glyphs(environ); "
        "print(os.environ.get('LC_CTYPE'), environ.get('GPUPROF_GLYPHS'))"
    )
    said = subprocess.run(
        [sys.executable, "-c", text], env={"LANG": "C"}, capture_output=True, text=True, check=True
    )
    assert said.stdout.split()[1] == "ascii"
    said = subprocess.run(
        [sys.executable, "-c", text],
        env={"LANG": "C", "GPUPROF_GLYPHS": "braille"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.split()[1] == "braille"


STYLES = [
    Style(color="#123456", bgcolor="#00aa00", bold=True),
    Style(color="bright_red", bgcolor="red", underline=True),
    Style(color="color(200)", bgcolor="color(28)", italic=True, dim=True),
    Style(color="default", bgcolor="default"),
    Style(reverse=True, bold=True),
    Style(color="red"),
]


@pytest.mark.parametrize("system", list(ColorSystem)[:3])
@pytest.mark.parametrize("style", STYLES)
def test_attributes_stay_and_colours_go(style: Style, system: ColorSystem) -> None:
    """What Rich renders with the colours taken from the style is the oracle."""
    bare = Style(
        bold=style.bold, dim=style.dim, italic=style.italic, underline=style.underline, reverse=style.reverse
    )
    style = style.copy()  # Rich keeps what it rendered first
    expected = bare.render("text", color_system=system).replace("\x1b[0m", "")
    got = PlainText(colourless=True)(style.render("text", color_system=system)).replace("\x1b[0m", "")
    assert got == expected


def test_what_is_marked_is_reversed_and_nothing_else_is_touched() -> None:
    take = PlainText(colourless=True)
    assert take("\x1b[1;97;44mrow\x1b[0m") == "\x1b[1;7mrow\x1b[0m"
    assert take("\x1b[30;100mx") == "\x1b[7mx"
    untouched = "\x1b[?1049h\x1b[2J\x1b[6n\x1b[10;20H\x1b[m é█\x1b]0;t\x07\x1b[<u"
    assert take(untouched) == untouched
    assert PlainText()("\x1b[31m█") == "\x1b[31m█"


def test_ascii_takes_the_same_cells() -> None:
    """Everything that the screen's own sources draw, letters with accents, wide and combining ones."""
    drawn = {
        char for path in TUI.rglob("*.py") for char in path.read_text(encoding="utf-8") if ord(char) > 127
    }
    drawn |= {chr(0x2800 + bits) for bits in range(256)} | set("éß日本語ｱ한e\u0301\u200b\U0001f600Ωж")
    take = PlainText(ascii_only=True)
    for char in sorted(drawn):
        text = take(char)
        assert text.isascii(), char
        assert text.isprintable(), char
        assert len(text) == cell_len(char), (char, text)


def test_hostile_text_stays_bounded() -> None:
    take = PlainText(ascii_only=True)
    everything = "".join(chr(code) for code in range(128, 0x30000) if not 0xD800 <= code < 0xE000)
    assert take(everything).isascii()
    assert len(take._table) <= plain._MAX_KEPT
    assert not re.search(r"[\x00-\x1f]", take(everything))
