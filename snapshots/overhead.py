"""The budget of recording GPU work, as a person writes it: `--gpu-overhead`."""

from __future__ import annotations

import math

DEFAULT = "1%"
MOST_PERCENT = 50.0


def parse_budget(text: str) -> int:
    """Millionths of the launching threads' time for "1%", "0.5 %" or "2"; 0, no limit, for "off".

    ArgumentTypeError for anything else, and for what lies outside (0, 50] percent.
    """
    words = text.strip().lower()
    if words == "off":
        return 0
    try:
        percent = float(words.rstrip("%").strip())
    except ValueError:
        percent = math.nan
    if not 0 < percent <= MOST_PERCENT:  # false for nan, too
        import argparse  # which the screen need not load

        raise argparse.ArgumentTypeError(f"{text!r} is no share: write 1%, 0.5% (at most 50%), or off")
    return max(1, round(percent * 10_000))


def percent(value: float, *, space: str = " ") -> str:
    """A percentage with two figures that count."""
    return f"{value:.2g}{space}%" if value < 10 else f"{value:.0f}{space}%"
