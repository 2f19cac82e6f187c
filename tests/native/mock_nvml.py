"""Builds mock_nvml.c and scripts it from the same process; see the C file for the lines it understands."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("mock_nvml.c")


def build(folder: Path, *flags: str, name: str = "libnvidia-ml.so.1", soname: str | None = None) -> Path:
    """Compile the mock into `folder`; a soname other than NVML's keeps it from other dlopen calls."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / name
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-pthread", *flags]
    command += [f"-Wl,-soname,{soname or name}", "-o", str(target), str(SOURCE), "-lm"]
    subprocess.run(command, check=True, timeout=60)
    return target


class MockNvml:
    """The loaded mock: mock("set 0 temperature 70")."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.mock_nvml_command.restype = None
        self.library.mock_nvml_calls.restype = ctypes.c_long
        self.library.mock_nvml_calls_after_loss.restype = ctypes.c_long

    def __call__(self, *lines: str) -> None:
        for line in lines:
            self.library.mock_nvml_command(line.encode())

    def calls(self, gpu: int, function: str = "*") -> int:
        return int(self.library.mock_nvml_calls(gpu, function.encode()))

    def calls_after_loss(self) -> int:
        return int(self.library.mock_nvml_calls_after_loss())


@contextmanager
def in_pynvml(library: ctypes.CDLL) -> Iterator[Any]:
    """Make pynvml of this process use `library`, and forget it afterwards."""
    import pynvml

    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = library
    try:
        yield pynvml
    finally:
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib = None
