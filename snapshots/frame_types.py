"""What frames are made of: their base, column types, and the kinds of a row."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

U8 = Annotated[NDArray[np.uint8], "<u1"]
U16 = Annotated[NDArray[np.uint16], "<u2"]
U32 = Annotated[NDArray[np.uint32], "<u4"]
U64 = Annotated[NDArray[np.uint64], "<u8"]
F32 = Annotated[NDArray[np.float32], "<f4"]
F64 = Annotated[NDArray[np.float64], "<f8"]


class FrameKind(IntEnum):
    """What a row of a tree or a frame of a stack is. The names, lower case and with dashes, are those of
    `report --json`.
    """

    ROOT = 0
    PROCESS = 1
    THREAD = 2
    PYTHON = 3
    NATIVE = 4
    JIT = 5
    KERNEL_SPACE = 6
    GPU_KERNEL = 7
    GPU_COPY = 8
    WAIT = 9
    OTHER = 10
    UNKNOWN = 11
    GPU_COMM = 12  # kernels that wait for other devices, such as NCCL's
    NVTX = 13  # a range that the program has named

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


class WaitKind(IntEnum):
    """Why a thread did not run."""

    BLOCKED = 0  # off-CPU, waiting for something
    RUNNABLE = 1  # off-CPU, ready but not scheduled
    SYNC = 2  # inside a synchronizing call of CUDA: may spin on the CPU, and hold BLOCKED rows of its thread


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Base of all frames; KIND is the `k` on the wire."""

    KIND: ClassVar[str] = ""


def later(value: float, dtype: str) -> Any:
    """Declare a column that came with a later version of a frame: absent, every row of it is `value`."""
    return field(default=None, metadata={"later": np.array(value, dtype)})


def fill_later(frame: Frame, like: str) -> None:
    """Give the columns of `later` that are absent their value, as often as column `like` has rows."""
    for item in fields(frame):
        value = item.metadata.get("later")
        if value is not None and getattr(frame, item.name) is None:
            object.__setattr__(frame, item.name, np.full(len(getattr(frame, like)), value))
