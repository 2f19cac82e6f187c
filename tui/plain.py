"""What a terminal cannot show is left out or replaced on its way there: colours, and characters beyond ASCII.

Whether it can is decided before textual is imported, from TERM, NO_COLOR (no-color.org) and the locale. The
replacement is the last step before bytes are written, so that nothing that draws has to know of it.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field

_KNOWN_COLOURLESS = re.compile(r"^(vt[1-4]\d\d?|vt52|dumb)\b(?!.*color)|-(m|mono|nocolor)$")
_KNOWN_COLOURFUL = re.compile(
    r"color|direct|^(alacritty|ansi|contour|cygwin|eterm|foot|ghostty|gnome|iterm|kitty|konsole|linux|mlterm|"
    r"putty|rio|rxvt|screen|st|terminator|tmux|vte|wezterm|xterm|zellij)(-|$)"
)
_OLD_TERMINAL = re.compile(r"^vt\d")
_LOCALE = ("LC_ALL", "LC_CTYPE", "LANG")
_SGR = re.compile(r"\x1b\[([0-9;:]*)m")
_REVERSE = "7"
_MAX_KEPT = 4096
# In sixteen colours these backgrounds mark what is selected or under the cursor (palette.ANSI16).
_MARKING = frozenset({"44", "100", "104"})


def is_colourless(environ: Mapping[str, str], terminfo: Callable[[str], int | None] | None = None) -> bool:
    """Whether no colours may be sent. `terminfo`: number of colours of a terminal, None when it is not
    known."""
    term = environ.get("TERM", "").lower()
    if environ.get("NO_COLOR") or _KNOWN_COLOURLESS.search(term):
        return True
    if environ.get("COLORTERM") or _KNOWN_COLOURFUL.search(term):
        return False
    colours = (terminfo or colours_by_terminfo)(term)
    return colours is None or colours < 8


def is_ascii_only(environ: Mapping[str, str]) -> bool:
    """Whether the locale, or the age of the terminal, rules out all but ASCII. A locale that is not set at
    all, as in most containers, rules out nothing."""
    chosen = next((environ[name] for name in _LOCALE if environ.get(name)), "UTF-8")
    utf8 = "utf8" in chosen.lower().replace("-", "")
    return not utf8 or _OLD_TERMINAL.search(environ.get("TERM", "").lower()) is not None


def colours_by_terminfo(term: str) -> int | None:
    """How many colours terminfo(5) says that a terminal has; None when it does not know it."""
    try:
        import _curses

        _curses.setupterm(term, 1)
        return max(_curses.tigetnum("colors"), 0)
    except Exception:  # noqa: BLE001  (_curses.error is no name before the import)
        return None


def first_environ(path: str = "/proc/self/environ") -> dict[str, str]:
    """The environment that this process was started with: Python changes LC_CTYPE from C to C.UTF-8 for
    itself (PEP 538), which says nothing about the terminal."""
    try:
        with open(path, "rb") as file:
            pairs = (item.partition(b"=") for item in file.read(1 << 20).split(b"\0"))
            return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}
    except OSError:
        return {}


def note_glyphs(environ: MutableMapping[str, str], started_with: Mapping[str, str] | None = None) -> None:
    """Have this process and its children draw in ASCII where nothing else can be shown; what GPUPROF_GLYPHS
    says already holds."""
    if not environ.get("GPUPROF_GLYPHS", "").strip() and is_ascii_only(
        first_environ() if started_with is None else started_with
    ):
        environ["GPUPROF_GLYPHS"] = "ascii"


class _AsciiTable(dict[int, str]):
    """For str.translate: every character to as many ASCII characters as it takes cells."""

    def __init__(self) -> None:
        super().__init__({code: chr(code) for code in range(128)})
        for characters, replacement in _REPLACED.items():
            self.update(dict.fromkeys(map(ord, characters), replacement))

    def __missing__(self, code: int) -> str:
        found = _in_ascii(chr(code))
        if len(self) < _MAX_KEPT:  # names are strangers'
            self[code] = found
        return found


_REPLACED = {
    "█▉▊▋▓■▆▇▅▙▛▜▟": "#",
    "▌▍▐▀▄▖▗▘▝": "=",
    "▎▏▕│┃║├┤┼╎┊": "|",
    "▒▃": "+",
    "░▂": ":",
    "▁·…": ".",
    "─━═╌┄╴╶–—−‐‑‒┈⁃": "-",
    "┴┬┌┐└┘╭╮╰╯╔╗╚╝╞╡": "+",
    "●◉◆": "*",
    "◌◐◑◒◓◔◕○◦": "o",
    "▾▼↓▿": "v",
    "▴▲↑": "^",
    "▸▶→›»": ">",
    "◂◀←‹«": "<",
    "‖": "|",
    "✗✘×": "x",
    "✓": "v",
    "±≈": "~",
    "µμ": "u",
    "°\xa0": " ",
    "‘’′": "'",
    "“”": '"',
}  # fmt: skip


def _in_ascii(character: str) -> str:
    """Braille by how full it is, a letter with an accent by the letter, anything else as question marks."""
    code = ord(character)
    if 0x2800 <= code <= 0x28FF:
        return " .::-=+*#"[(code - 0x2800).bit_count()]
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Mn", "Me"):
        return ""
    cells = 2 if unicodedata.east_asian_width(character) in "WF" else 1
    plain = "".join(char for char in unicodedata.normalize("NFKD", character) if char.isascii())
    return plain if len(plain) == cells and plain.isprintable() else "?" * cells


@dataclass(frozen=True)
class PlainText:
    """Takes out of what is written what the terminal cannot show."""

    colourless: bool = False
    ascii_only: bool = False
    _table: _AsciiTable = field(default_factory=_AsciiTable, repr=False, compare=False)

    def __call__(self, text: str) -> str:
        if self.colourless and "\x1b[" in text:
            text = _SGR.sub(_without_colours, text)
        if self.ascii_only and not text.isascii():
            text = text.translate(self._table)
        return text


def _without_colours(sgr: re.Match[str]) -> str:
    """Select Graphic Rendition (ECMA-48 8.3.117) without its colours; a background that marks something
    becomes reverse video."""
    codes = sgr[1].replace(":", ";").split(";")
    kept: list[str] = []
    place = 0
    while place < len(codes):
        code = codes[place]
        number = int(code or 0)
        if number in (38, 48, 58):  # with an index (5;n) or three parts (2;r;g;b)
            place += {"5": 3, "2": 5}.get(codes[place + 1] if place + 1 < len(codes) else "", 1)
            continue
        if code in _MARKING:
            kept.append(_REVERSE)
        elif not (30 <= number <= 49 or 90 <= number <= 107 or number == 59):
            kept.append(code)
        place += 1
    return f"\x1b[{';'.join(kept)}m" if kept or not sgr[1] else ""


def in_ascii(text: str) -> str:
    """A text as a terminal shows it that knows ASCII only."""
    return text.translate(_AsciiTable())


def prepare(environ: MutableMapping[str, str]) -> PlainText | None:
    """Decide what must not be sent, and have textual (which is yet to be imported) help; None: anything may
    be."""
    note_glyphs(environ)
    colourless = is_colourless(environ)
    if colourless:
        environ["TEXTUAL_COLOR_SYSTEM"] = "standard"  # so that what is marked has one of _MARKING behind it
        environ.pop("NO_COLOR", None)  # textual's way of honouring it is to send greys
    ascii_only = environ.get("GPUPROF_GLYPHS", "").strip().lower() == "ascii"
    return PlainText(colourless=colourless, ascii_only=ascii_only) if colourless or ascii_only else None
