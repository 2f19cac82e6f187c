"""Standard output and error write whatever they are given: what their encoding lacks is replaced."""

from __future__ import annotations

import codecs
import io
import sys
from contextlib import suppress

_HANDLER = "gpuprof.replaced"
_TRIAL = "\u2500 is replaced, however long a line is, and .. is no name.\n" * 3


def prepare() -> None:
    """Have sys.stdout and sys.stderr replace what they cannot say by what stands nearest to it in ASCII,
    whatever PYTHONIOENCODING or the locale say: no output ends in an exception. An encoding that cannot say
    even that gives way to UTF-8.
    """
    codecs.register_error(_HANDLER, _replaced)
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):  # none at all where it was closed, or a test's
            continue
        try:
            _TRIAL.encode(stream.encoding, _HANDLER)
            stream.reconfigure(errors=_HANDLER)
        except (ValueError, LookupError):  # "undefined" and "idna" are such encodings
            stream.reconfigure(encoding="utf-8", errors=_HANDLER)


def say(text: str) -> None:
    """A line about the program itself on standard error; nothing where that is closed."""
    with suppress(OSError):
        shown = "".join(char if char.isprintable() else "?" for char in text)
        print(f"gpuprof-tui: {shown}", file=sys.stderr, flush=True)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    try:
        from gpuprof.tui.plain import in_ascii  # only here: most output never needs it
    except (ImportError, OSError):  # root was given up, and the program's files are not for everyone
        return "?" * len(text), error.end
    return in_ascii(text), error.end
