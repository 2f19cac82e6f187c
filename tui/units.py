"""Numbers for people: values with their unit, labels of an axis, and round limits for a scale."""

from __future__ import annotations

import math

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_NICE = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def number(value: float) -> str:
    """About three significant digits, without an exponent where it can be helped: "0.42", "7.3", "412"."""
    size = abs(value)
    if not math.isfinite(value):
        return "–"
    if size >= 1e6:
        return f"{value:.2g}" if size >= 1e15 else prefixed(value)
    if size >= 99.95 or size == 0:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f}".rstrip("0").rstrip(".") if size >= 0.005 else "0"


def prefixed(value: float) -> str:
    """With an SI prefix: "1.24G", "340M", "12"."""
    size = abs(value)
    if not math.isfinite(value):
        return "–"
    for factor, prefix in _PREFIXES:
        if size >= factor * 0.9995:
            return (number(value / factor) if size < factor * 1e6 else f"{value / factor:.1g}") + prefix
    return number(value)


def with_unit(value: float | None, unit: str) -> str:
    """A value with its unit: "72 %", "38.2 GiB", "1.24 GB/s"; "–" for a missing one."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit in ("B/s", "B", "/s"):
        text = prefixed(value)
        prefix = text[-1] if text[-1].isalpha() else ""
        return f"{text.removesuffix(prefix)} {prefix}{unit}"
    if unit in ("%", "W", "°C", "MHz"):
        digits = 1 if unit in ("%", "W") and 0 < abs(value) < 9.95 else 0
        text = f"{value:.{digits}f}" if abs(value) < 1e6 else number(value)
    else:
        text = number(value)
    return f"{text} {unit}" if unit else text


def tick(value: float, unit: str) -> str:
    """A value for the axis: short, without its unit."""
    return prefixed(value) if unit in ("B/s", "B", "/s") else number(value)


def nice_ceiling(value: float) -> float:
    """The next round number that is not below `value` (> 0).

    1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6 or 8 times a power of ten.
    """
    if not math.isfinite(value) or value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    if not math.isfinite(power) or power == 0:
        return value
    return next((nice * power for nice in _NICE if nice * power >= value * (1 - 1e-9)), value)
