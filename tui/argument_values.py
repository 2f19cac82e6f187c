"""What the values of options may be; each raises argparse.ArgumentTypeError with what to write instead."""

from __future__ import annotations

import argparse
import math


def duration(text: str) -> float:
    """Seconds of "90", "90s", "1.5m" or "2h"."""
    factor = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:], 0.0)
    try:
        value = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 7 * 24 * 3600:  # false for nan, too
        raise argparse.ArgumentTypeError(f"{text!r} is no time of up to 7 days; write 60s, 5m or 2h")
    return value


def milliseconds(text: str) -> str:
    try:
        value = float(text.removesuffix("ms"))
    except ValueError:
        value = math.nan
    if not 0 <= value <= 4000:  # false for nan, too
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 4000 ms")
    return text


def share(text: str) -> str:
    from gpuprof.snapshots.overhead import parse_budget

    parse_budget(text)
    return text


def percent(text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 <= value <= 100:  # false for nan, too
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 100 percent")
    return value


def depth(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rows, such as 80")
    return value


def pid(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= value < 1 << 22:
        raise argparse.ArgumentTypeError(f"{text!r} is no process id")
    return value


def hz(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= 999:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1 and 999")
    return value
