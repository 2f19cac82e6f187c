"""Which rows of a tree say nothing to whoever wrote the program: how it is run, started, and put to sleep.

- Native code of CPython, where there is a Python frame above or below: CPython runs Python code through its
  own C functions (_PyEval_EvalFrameDefault, _PyObject_MakeTpCall ...), and the Python line says it all.
- How Python comes from an import, or from `python -m`, to the code of the module: frames of its own frozen
  modules above another module's. Tracebacks leave them out too. Where the import itself takes the time
  (finding files, reading them), they stay.
- How libc starts a program or a thread: the outermost native frames, _start to __libc_start_call_main and
  clone3 to start_thread, of which a stripped libc has no names.
- How a program comes to a wait: the frames of the kernel, and nameless ones of libc, between it and the row
  that names the wait; and the glue by which any system call enters the kernel.
"""

from __future__ import annotations

import re
from enum import IntFlag
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.preorder import Bools

if TYPE_CHECKING:
    from gpuprof.snapshots.tree_nodes import Nodes

# File names of the interpreter: python3.12, python3.13t, python3-dbg, libpython3.12.so.1.0
_INTERPRETER = re.compile(r"(lib)?python(\d[\d.]*[dmtu]*(-\w+)?)?(\.so(\.[\d.]+)?)?( \(deleted\))?")
# Names of the C API and of what is behind it, which a program that embeds Python holds in its own binary.
_API_NAME = re.compile(r"_?Py([A-Z][A-Za-z0-9]*)?_")
_LIBC = re.compile(r"(libc|libpthread|ld-linux-x86-64|ld-musl-x86_64)[-.\d]*\.so[.\d]*( \(deleted\))?")
_START = re.compile(
    r"_start(_c)?|__libc_start_main(_impl)?|__libc_start_call_main|(__)?clone3?|(thread_)?start(_thread)?"
)
_LOADING = re.compile(r"<frozen (importlib\._bootstrap(_external)?|runpy|zipimport)>")
_ENTRY = re.compile(
    r"entry_SYSCALL_64(_after_hwframe|_fastpath)?|do_syscall_64|x64_sys_call|ret_from_fork(_asm)?"
)
_CODE = (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.JIT, FrameKind.KERNEL_SPACE)


class _Says(IntFlag):
    """What the label of a row says of it."""

    CODE = 1
    PYTHON = 2
    NATIVE = 4
    KERNEL = 8
    WAIT = 16
    INTERPRETER = 32  # native code of it
    NAMELESS = 64  # native code of libc with an address for a name
    START = 128  # native code that starts a program or a thread
    ENTRY = 256  # how any system call enters the kernel
    LOADING = 512  # Python code that loads modules
    MODULE = 1024  # Python code that does not


def internal_rows(nodes: Nodes) -> Bools:
    """Return a mask of those rows. The levels of `nodes` follow each other."""
    used = np.unique(nodes.label)
    says = np.zeros(len(nodes.labels), np.int64)
    for number in used.tolist():
        name, file, binary, _, kind = nodes.labels[number]
        says[number] = _says(name, file, binary, kind)
    row = says[nodes.label]

    def said(what: _Says) -> Bools:
        found: Bools = (row & what) != 0
        return found

    candidate = said(_Says.NAMELESS | _Says.START)
    above = np.zeros(len(row), np.int64)  # what the rows above say
    below = np.zeros(len(row), np.int64)
    outermost = np.zeros(len(row), np.bool_)  # nothing but candidates up to the beginning of its stack
    called = np.zeros(len(row), np.bool_)  # has rows below it
    called[nodes.parent[1:]] = True
    bounds = np.searchsorted(nodes.depth, np.arange(int(nodes.depth[-1]) + 2)).tolist()
    levels = list(pairwise(bounds[1:]))
    for low, high in levels:
        parent = nodes.parent[low:high]
        above[low:high] = above[parent] | row[parent]
        outermost[low:high] = candidate[low:high] & (outermost[parent] | ((row[parent] & _Says.CODE) == 0))
    for low, high in reversed(levels):
        parent, mine = nodes.parent[low:high], below[low:high] | row[low:high]
        for what in (_Says.PYTHON, _Says.MODULE, _Says.WAIT):
            below[parent[(mine & what) != 0]] |= what
    hidden: Bools = said(_Says.INTERPRETER) & (((above | below) & _Says.PYTHON) != 0)
    hidden |= said(_Says.LOADING) & ((below & _Says.MODULE) != 0)
    hidden |= (outermost | said(_Says.ENTRY)) & called
    of_program = (above & (_Says.NATIVE | _Says.PYTHON)) != 0
    hidden |= said(_Says.KERNEL | _Says.NAMELESS) & of_program & ((below & _Says.WAIT) != 0)
    hidden[0] = False
    return hidden


@lru_cache(1 << 16)
def _says(name: str, file: str, binary: str, kind: int) -> int:
    says = _Says.CODE if kind in _CODE else _Says(0)
    if kind == FrameKind.PYTHON:
        says |= _Says.PYTHON | (_Says.LOADING if _LOADING.fullmatch(file) else _Says.MODULE)
    elif kind == FrameKind.WAIT:
        says |= _Says.WAIT
    elif kind == FrameKind.KERNEL_SPACE:
        says |= _Says.KERNEL | (_Says.ENTRY if _ENTRY.fullmatch(name) else 0)
    elif kind == FrameKind.NATIVE:
        is_library = ".so" in binary or not binary
        says |= _Says.NATIVE
        if _INTERPRETER.fullmatch(binary) or (not is_library and _API_NAME.match(name)):
            says |= _Says.INTERPRETER
        if "!0x" in name and _LIBC.fullmatch(binary):  # an address in its file
            says |= _Says.NAMELESS
        if _START.fullmatch(name):
            says |= _Says.START
    return int(says)
