"""Names from outside (processes, threads, symbols, files) made safe to draw: one line, no control bytes,
known width.
"""

from __future__ import annotations

import re
import unicodedata

NONE = "(none)"
ELLIPSIS = "…"
_MAX_COMBINING = (
    2  # marks in a row on one cell: enough for every living script, too few to paint over other lines
)


MAX_FULL_NAME = 2048  # characters of a kernel's name in full


def short_path(path: str) -> str:
    """Return the name of a file, with its folder where only that tells which one it is: "re/__init__.py"."""
    folder, _, name = path.rpartition("/")
    return "/".join(path.split("/")[-2:]) if folder and name in {"__init__.py", "__main__.py"} else name


_BEFORE_UNIT = re.compile(r"(?<=\d) (?=([mµn]?s|min|h|%|[kKMGT]?i?B(/s)?|W|MHz|°C)(?![\w%]))")
_NO_BREAK = "\u00a0"


def bound(text: str) -> str:
    """Return a sentence whose numbers do not part from their units where it is broken into lines; `unbound`
    gives each line its plain blanks back.
    """
    return _BEFORE_UNIT.sub(_NO_BREAK, text)


def unbound(line: str) -> str:
    """Return a line of what `bound` has returned as it was."""
    return line.replace(_NO_BREAK, " ")


def clean(raw: str | bytes, limit: int = 512) -> str:
    """Return `raw` as text that is safe to draw and at most `limit` characters long.

    Bytes are decoded as UTF-8, and what is not UTF-8 shows as `\\xff`. Control bytes show as their Unicode
    pictures (␛), bidirectional and other invisible characters as ⟨U+202E⟩, an empty name as "(none)".
    Cleaning twice changes nothing. Never raises.
    """
    raw = raw[: 4 * limit + 8]  # a UTF-8 character has at most 4 bytes: what lies beyond cannot be seen
    text = visible(raw)
    if not text:
        return NONE
    if len(text) > limit:
        text = text[: max(limit - 1, 0)] + ELLIPSIS
    return text


def visible(raw: str | bytes) -> str:
    """Return `raw` with every control, bidirectional and invisible character shown as text; empty stays
    empty.
    """
    text = raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else raw
    if text.isascii() and text.isprintable():
        return text if not text.isspace() else "␠" * len(text)
    if text.isspace() and text.strip(" ") == "":
        return "␠" * len(text)
    parts: list[str] = []
    marks = _MAX_COMBINING  # a mark at the very start would land on whatever is drawn to the left of the name
    for char in text:
        if unicodedata.combining(char) or unicodedata.category(char) in {"Mn", "Me"}:
            marks += 1
            parts.append(char if marks <= _MAX_COMBINING and not _is_selector(char) else _shown(char))
        else:
            marks = 0
            parts.append(char if char.isprintable() else _shown(char))
    return "".join(parts)


def _is_selector(char: str) -> bool:
    """Tell whether `char` is a variation selector, which changes the width of its base in some terminals
    only.
    """
    return "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"


def _shown(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that os.fsdecode could not decode
        return f"\\x{code - 0xDC00:02x}"
    return f"⟨U+{code:04X}⟩"


def width(text: str) -> int:
    """Return the number of terminal cells of a clean text: East Asian wide characters take two, marks
    none.
    """
    if text.isascii():
        return len(text)
    return sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if char < "\u0300":
        return 1
    if unicodedata.east_asian_width(char) in "WF":
        return 2
    return 0 if unicodedata.category(char) in {"Mn", "Me", "Cf"} or "\u1160" <= char <= "\u11ff" else 1


def fit(text: str, cells: int) -> str:
    """Return a clean `text` cut to at most `cells` terminal cells, the last one an ellipsis where something
    was cut.
    """
    if cells <= 0:
        return ""
    if len(text) * 2 <= cells or width(text) <= cells:
        return text
    used = 0
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > cells - 1:
            return text[:index] + ELLIPSIS
    return text
