"""How much copies have moved, and how fast, in words."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def bytes_text(count: float) -> str:
    """Return a number of bytes (or bytes per second) with about three digits: "4.19 MB", "512 B"."""
    unit = 0
    while count >= 999.5 and unit < len(_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    digits = 0 if not unit or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:.{digits}f} {_UNITS[unit]}"


def moved_text(moved: float, took_ns: float) -> str:
    """Return what copies that took so long together have moved, and their mean bandwidth: "1.05 GB at 25.3
    GB/s"; "" for nothing.
    """
    if moved <= 0:
        return ""
    return bytes_text(moved) + (f" at {bytes_text(moved / took_ns * 1e9)}/s" if took_ns > 0 else "")
