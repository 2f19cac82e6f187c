"""One frame to and from the body of a message: a msgpack map {"k": KIND, field: value, ...} with columns as
bytes.

The encoders and decoders are made from the annotations of the dataclasses of frames.py, once per class:

- int: a signed 64-bit integer; float: a float or an integer; bool; str; `X | None`: absent when None
- list[X]: an array; a nested dataclass: a map
- a column (U8 … F64): little-endian bytes; all columns of one frame have the same number of elements; one
  declared with `later` is left out where all of its elements are as declared

Every string that is decoded is made safe to draw (names.visible), whoever sent it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import ALL_FRAMES, MAX_FRAME_BYTES, Frame
from gpuprof.snapshots.names import visible

MAX_STRING_BYTES = 64 << 10
MAX_ARRAY_LENGTH = 1 << 18
MAX_FIELDS = 64
MAX_CONTAINERS = 1 << 18  # maps and arrays in one frame: one byte of msgpack can cost 64 of memory

Column = NDArray[Any]
PackColumn = Callable[[Column, np.dtype[Any]], bytes]
UnpackColumn = Callable[[bytes, np.dtype[Any]], Column]

_Check = Callable[
    [Any, str], Any
]  # value and the name of the field; returns the value to store or raises FrameError
_MISSING = dataclasses.MISSING
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1


def column_bytes(column: Column, dtype: np.dtype[Any]) -> bytes:
    """Return the elements of `column` as the bytes of little-endian `dtype`."""
    return np.ascontiguousarray(column, dtype=dtype).tobytes()


def column_of_bytes(data: bytes, dtype: np.dtype[Any]) -> Column:
    """Return a read-only array over `data` (no copy). FrameError when it is not a whole number of
    elements.
    """
    if len(data) % dtype.itemsize:
        raise FrameError(f"a column of {len(data)} bytes does not hold whole {dtype.itemsize}-byte elements")
    return np.frombuffer(data, dtype=dtype)


def encode(frame: Frame, pack_column: PackColumn = column_bytes) -> bytes:
    """Return the msgpack body of `frame`. FrameError when it is larger than MAX_FRAME_BYTES or not valid
    itself.
    """
    plan = _plan_of(type(frame))
    out: dict[str, Any] = {"k": frame.KIND}
    for name, dtype, later in plan.columns:
        column = getattr(frame, name)
        if later is None or not np.array_equal(column, np.full(len(column), later), equal_nan=True):
            out[name] = pack_column(column, dtype)
    for name in plan.plain:
        value = getattr(frame, name)
        if value is not None:
            out[name] = value
    for name in plan.nested:
        out[name] = [
            item if isinstance(item, str | int | float) else _flat(item) for item in getattr(frame, name)
        ]
    try:
        body = msgpack.packb(out, unicode_errors="backslashreplace")
    except (TypeError, ValueError, OverflowError) as error:
        raise FrameError(f"cannot encode a {frame.KIND} frame: {error}") from error
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a {frame.KIND} frame of {len(body)} bytes is too large to send")
    return bytes(body)


def decode(body: bytes, unpack_column: UnpackColumn = column_of_bytes) -> Frame | None:
    """Return the frame in a msgpack `body`, None for a kind that is not known here. Columns are read-only
    arrays.

    Raises FrameError, and nothing else, for a body that is not a valid frame.
    """
    data = _unpack(body)
    if not isinstance(data, dict):
        raise FrameError("a frame is not a map")
    kind = data.get("k")
    if not isinstance(kind, str):
        raise FrameError("a frame has no kind")
    plan = _PLANS.get(kind)
    return None if plan is None else plan.build(data, unpack_column)


# ------------------------------------------------------------------------------------------------------ plans


class _Plan:
    """How one frame class is encoded and decoded."""

    def __init__(self, cls: type[Frame]) -> None:
        self.cls = cls
        self.columns: list[tuple[str, np.dtype[Any], Any]] = []  # the last: the value where it is absent
        self.plain: list[str] = []
        self.nested: list[str] = []
        self.checks: list[tuple[str, _Check, Any]] = []
        hints = typing.get_type_hints(cls, include_extras=True)
        for field in dataclasses.fields(cls):
            hint = hints[field.name]
            if typing.get_origin(hint) is Annotated:
                dtype = np.dtype(hint.__metadata__[0])
                self.columns.append((field.name, dtype, field.metadata.get("later")))
                continue
            (self.nested if typing.get_origin(hint) is list else self.plain).append(field.name)
            self.checks.append((field.name, _check_of(hint), _default_of(field)))

    def build(self, data: dict[str, Any], unpack_column: UnpackColumn) -> Frame:
        kind = self.cls.KIND
        values = _checked(data, self.checks, kind)
        length = -1
        for name, dtype, later in self.columns:
            raw = data.get(name)
            if raw is None and later is not None:
                continue
            if type(raw) is not bytes:
                raise FrameError(f"{kind}.{name} is missing or not a column")
            column = unpack_column(raw, dtype)
            if length not in {-1, len(column)}:
                raise FrameError(f"the columns of a {kind} frame have different lengths")
            length = len(column)
            values[name] = column
        return self.cls(**values)


def _checked(data: dict[str, Any], checks: list[tuple[str, _Check, Any]], where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, check, default in checks:
        value = data.get(name, _MISSING)
        if value is not _MISSING:
            values[name] = check(value, name)
        elif default is _MISSING:
            raise FrameError(f"{where}.{name} is missing")
        else:
            values[name] = default() if callable(default) else default
    return values


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not _MISSING:
        return field.default_factory
    # an optional fact is left out when it is not known, so its absence is not an error
    return None if field.default is _MISSING and "None" in str(field.type) else field.default


def _check_of(hint: Any) -> _Check:
    origin = typing.get_origin(hint)
    if origin in {typing.Union, types.UnionType}:
        return _optional(_check_of(next(arg for arg in typing.get_args(hint) if arg is not type(None))))
    if origin is list:
        return _list_of(_check_of(typing.get_args(hint)[0]))
    if dataclasses.is_dataclass(hint):
        return _nested(typing.cast(type, hint))
    return _SIMPLE[hint]


def _int(value: Any, name: str) -> int:
    if type(value) is not int or not _INT_MIN <= value <= _INT_MAX:
        raise FrameError(f"{name} is not an integer of 64 bits")
    return value


def _float(value: Any, name: str) -> float:
    if type(value) is float:
        return value
    return float(_int(value, name))


def _bool(value: Any, name: str) -> bool:
    if type(value) is not bool:
        raise FrameError(f"{name} is not true or false")
    return value


def _str(value: Any, name: str) -> str:
    if type(value) is not str:
        raise FrameError(f"{name} is not a string")
    return visible(value)


_SIMPLE: dict[Any, _Check] = {int: _int, float: _float, bool: _bool, str: _str}


def _optional(check: _Check) -> _Check:
    return lambda value, name: None if value is None else check(value, name)


def _list_of(check: _Check) -> _Check:
    def list_check(value: Any, name: str) -> list[Any]:
        if type(value) is not list:
            raise FrameError(f"{name} is not a list")
        return [check(item, name) for item in value]

    return list_check


def _nested(cls: type) -> _Check:
    hints = typing.get_type_hints(cls)
    checks = [
        (field.name, _check_of(hints[field.name]), _default_of(field)) for field in dataclasses.fields(cls)
    ]

    def nested_check(value: Any, name: str) -> Any:
        if type(value) is not dict:
            raise FrameError(f"{name} is not a map")
        return cls(**_checked(value, checks, name))

    return nested_check


def _flat(item: Any) -> dict[str, Any]:
    """Return a nested dataclass as a map without the fields that are not known."""
    pairs = ((name, getattr(item, name)) for name in item.__dataclass_fields__)
    return {name: value for name, value in pairs if value is not None}


# ---------------------------------------------------------------------------------------------------- msgpack


class _Budget:
    """Counts the maps and arrays of one frame while it is unpacked."""

    def __init__(self) -> None:
        self.left = MAX_CONTAINERS

    def spend(self, value: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise FrameError("a frame holds too many maps and lists")
        return value


def _unpack(body: bytes) -> Any:
    budget = _Budget()
    try:
        return msgpack.unpackb(
            body,
            raw=False,
            strict_map_key=True,
            unicode_errors="backslashreplace",
            object_hook=budget.spend,
            list_hook=budget.spend,
            max_str_len=MAX_STRING_BYTES,
            max_bin_len=MAX_FRAME_BYTES,
            max_array_len=MAX_ARRAY_LENGTH,
            max_map_len=MAX_FIELDS,
            max_ext_len=0,
        )
    except FrameError:
        raise
    except (ValueError, TypeError, RecursionError, MemoryError, msgpack.exceptions.UnpackException) as error:
        raise FrameError(f"a frame is not valid msgpack ({type(error).__name__})") from error


_PLANS: dict[str, _Plan] = {cls.KIND: _Plan(cls) for cls in ALL_FRAMES}


def _plan_of(cls: type[Frame]) -> _Plan:
    plan = _PLANS.get(cls.KIND)
    if plan is None or plan.cls is not cls:
        raise FrameError(f"{cls.__name__} is not a frame that can be sent")
    return plan
