"""Ranges of time as a person writes and reads them: seconds from the start, or wall-clock times of this
machine's zone.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gpuprof.snapshots.errors import EXIT_USAGE, GpuprofError
from gpuprof.snapshots.frames import Clock, Hello
from gpuprof.snapshots.names import clean

if TYPE_CHECKING:
    from gpuprof.snapshots.history import History

_HINT = (
    "A range is A..B: seconds from the start (3.5..7), or times of day (14:02:11.2..14:02:14.9); "
    "one end may be left out."
)
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?")
_DAY_NS = 86_400 * 10**9


def parse_range(text: str, history: History) -> tuple[int, int]:
    """Return the range [start, end) in monotonic ns that `text` names within what `history` holds.

    GpuprofError for what is no range, and for a range in which there is nothing.
    """
    first, last = history.span
    begin, dots, end = text.strip().partition("..")
    if not dots:
        raise _usage(f"“{clean(text, 60)}” is not a range" if text.strip() else "the range is empty text")
    start_ns = _instant(begin.strip(), history) if begin.strip() else first
    end_ns = _instant(end.strip(), history) if end.strip() else max(last, start_ns + 1)
    if end_ns == start_ns:
        raise _usage(f"the range {clean(text, 60)} is empty: it ends where it starts")
    if end_ns < start_ns:
        raise _usage(f"the range {clean(text, 60)} ends before it starts")
    if end_ns <= first or start_ns >= last:
        held = f"0..{(last - first) / 1e9:.1f}, or {wall_text(history, first)}..{wall_text(history, last)}"
        raise GpuprofError(
            f"the range {clean(text, 60)} lies outside of what was recorded", f"There is {held}.", EXIT_USAGE
        )
    return max(start_ns, first), min(end_ns, last)


def _instant(text: str, history: History) -> int:
    first, last = history.span
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds):
        if seconds < 0:
            raise _usage(f"{clean(text, 60)} s lies before the start of the file, which is 0")
        return first + round(min(max(seconds, -1e9), 1e9) * 1e9)
    match = _TIME_OF_DAY.fullmatch(text)
    if match:
        return _time_of_day(match, history, first, last)
    try:
        moment = datetime.fromisoformat(_plain_iso(text))
        return _mono(history, _ns_of(moment))
    except (ValueError, OverflowError, OSError) as error:
        raise _usage(f"“{clean(text, 60)}” is not a time") from error


def _plain_iso(text: str) -> str:
    """Return an ISO time as Python 3.10 reads it: a zone as +00:00, and a fraction of six digits."""
    text = text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text
    return re.sub(r"\.(\d{1,9})", lambda match: "." + match[1].ljust(6, "0")[:6], text)


def _time_of_day(match: re.Match[str], history: History, first: int, last: int) -> int:
    """Return the instant of a time of day on the day that lies in the recording, which may pass midnight."""
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise _usage(f"{match[0]} is not a time of day")
    fraction = int((match[4] or "").ljust(9, "0"))
    midnight = _local(history.wall_ns(first)).replace(hour=0, minute=0, second=0, microsecond=0)
    moment = midnight.replace(hour=hour, minute=minute, second=second)
    found = [_mono(history, _ns_of(moment + timedelta(days=day)) + fraction) for day in (0, 1, -1)]
    return min(found, key=lambda ns: max(first - ns, ns - last, 0))


def _usage(message: str) -> GpuprofError:
    return GpuprofError(message, _HINT, EXIT_USAGE)


def _ns_of(moment: datetime) -> int:
    """Return ns since 1970; a moment without a zone is in the zone of this machine."""
    whole = moment.astimezone().replace(microsecond=0)
    return round(whole.timestamp()) * 10**9 + moment.microsecond * 1000


def _mono(history: History, wall_ns: int) -> int:
    """Return the monotonic instant of a wall-clock time, by the pair that was current then."""
    pairs: list[Hello | Clock] = [history.hello, *history.clocks]
    pair = next((pair for pair in reversed(pairs) if pair.wall_ns <= wall_ns), pairs[0])
    return pair.mono_ns + wall_ns - pair.wall_ns


def _local(wall_ns: int) -> datetime:
    limited = min(max(wall_ns // 10**9, 0), 253_000_000_000)
    return datetime.fromtimestamp(limited).astimezone()


def duration_text(ns: int) -> str:
    """Return a length of time in the unit that suits it, to three digits: 2.10 s, 312 ms, 45.0 µs, 7 ns."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        value = ns / size
        if value >= 0.9995:
            return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"
    return f"{ns} ns" if ns else "0 s"


def wall_text(history: History, mono_ns: int, *, date: bool = False) -> str:
    """Return the local time of day of a monotonic instant, to the millisecond, with the date before it where
    asked.
    """
    wall_ns = history.wall_ns(mono_ns)
    moment = _local(wall_ns)
    return moment.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S") + f".{wall_ns // 10**6 % 1000:03d}"


def wall_iso(history: History, mono_ns: int) -> str:
    """Return a monotonic instant in ISO 8601, to the microsecond, with the offset of this machine's zone."""
    wall_ns = history.wall_ns(mono_ns)
    moment = _local(wall_ns).replace(microsecond=wall_ns // 1000 % 10**6)
    return moment.isoformat(timespec="microseconds")
