"""What NVML returns, as a value or a typed absence: sentinels, ranges and text."""

from __future__ import annotations

from enum import Enum
from typing import Any

from gpuprof.snapshots.names import clean

_U32_ABSENT = 0xFFFF_FFFF
_U64_ABSENT = 0xFFFF_FFFF_FFFF_FFFF
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


class Absent(Enum):
    """Why there is no value."""

    NOT_SUPPORTED = "not supported"
    NO_PERMISSION = "no permission"
    NOT_FOUND = "nothing there"
    FAILED = "failed this time"


class DeviceLost(Exception):
    """The device has fallen off the bus or needs a reset; its handle must not be used again."""


def field(structure: Any, name: str) -> Any:
    """A field of an NVML structure; absent when missing, or text that is not UTF-8 (pynvml decodes)."""
    try:
        return getattr(structure, name)
    except (AttributeError, UnicodeDecodeError):
        return Absent.NOT_SUPPORTED


def string(value: Any) -> str | Absent:
    """Clean text; an empty one is no value."""
    if isinstance(value, Absent):
        return value
    text = clean(value, 120) if isinstance(value, (str, bytes)) and value else ""
    return text or Absent.FAILED


def number(value: Any) -> int | Absent:
    """An integer as NVML gives it; all-ones in 32 or 64 bits is NVML's N/A."""
    if isinstance(value, Absent):
        return value
    if not isinstance(value, int) or value in (_U32_ABSENT, _U64_ABSENT):
        return Absent.NOT_SUPPORTED
    return value


def whole(value: Any) -> float | Absent:
    """A number that is in our unit already."""
    units = number(value)
    return units if isinstance(units, Absent) else float(units)


def milli(value: Any) -> float | Absent:
    """A number of thousandths (mW, mJ) in whole units."""
    thousandths = number(value)
    return thousandths if isinstance(thousandths, Absent) else thousandths / 1000.0


def percent(value: Any) -> float | Absent:
    """A whole percentage; anything outside 0..100 is no value."""
    value = whole(value)
    return value if isinstance(value, Absent) or 0 <= value <= 100 else Absent.FAILED


def tagged(union: Any, kind: int) -> int | float:
    """The member of an nvmlValue_t that nvmlValueType_t `kind` names; an unknown kind: unsigned int."""
    return getattr(union, _MEMBERS[kind] if 0 <= kind < len(_MEMBERS) else "uiVal")  # type: ignore[no-any-return]
