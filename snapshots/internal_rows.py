"""Which rows of a tree say nothing to whoever wrote the program: how it is run, started, and put to sleep.

- Native code of CPython, where there is a Python frame above or below: CPython runs Python code through its
  own C functions (_PyEval_EvalFrameDefault, _PyObject_MakeTpCall ...), and the Python line says it all.
- How libc starts a program or a thread: the outermost native frames, _start to __libc_start_call_main and
  clone3 to start_thread, of which a stripped libc has no names.
- How a program comes to a wait: the frames of the kernel, and nameless ones of libc, between it and the row
  that names the wait; and the glue by which any system call enters the kernel.
"""

from __future__ import annotations

import re

import numpy as np

from gpuprof.snapshots.frames import FrameKind, Tree
from gpuprof.snapshots.preorder import Bools, Ints, marked_above, marked_below

# File names of the interpreter: python3.12, python3.13t, python3-dbg, libpython3.12.so.1.0
_INTERPRETER = re.compile(r"(lib)?python(\d[\d.]*[dmtu]*(-\w+)?)?(\.so(\.[\d.]+)?)?( \(deleted\))?")
# Names of the C API and of what is behind it, which a program that embeds Python holds in its own binary.
_API_NAME = re.compile(r"_?Py([A-Z][A-Za-z0-9]*)?_")
_LIBC = re.compile(r"(libc|libpthread|ld-linux-x86-64|ld-musl-x86_64)[-.\d]*\.so[.\d]*( \(deleted\))?")
_START = re.compile(
    r"_start(_c)?|__libc_start_main(_impl)?|__libc_start_call_main|(__)?clone3?|(thread_)?start(_thread)?"
)
_ENTRY = re.compile(
    r"entry_SYSCALL_64(_after_hwframe|_fastpath)?|do_syscall_64|x64_sys_call|ret_from_fork(_asm)?"
)
_CODE = (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.JIT, FrameKind.KERNEL_SPACE)


def internal_rows(tree: Tree, parent: Ints, end: Ints) -> Bools:
    """A mask of those rows. `parent`: of the tree, as int64; `end`: of each row's subtree (preorder_ends)."""
    python = tree.kind == FrameKind.PYTHON
    hidden = _interpreter(tree) & ((marked_above(python, end) > 0) | (marked_below(python, end) > 0))
    called = end > np.arange(len(parent)) + 1  # has rows below it
    kernel, native = tree.kind == FrameKind.KERNEL_SPACE, tree.kind == FrameKind.NATIVE
    nameless = native & _of_libc(tree) & _unnamed(tree)
    candidate = nameless | _named(tree, FrameKind.NATIVE, _START)
    hidden |= (_outermost(tree, parent, candidate) | _named(tree, FrameKind.KERNEL_SPACE, _ENTRY)) & called
    program = (marked_above(native, end) > 0) | (marked_above(python, end) > 0)
    hidden |= (kernel | nameless) & program & (marked_below(tree.kind == FrameKind.WAIT, end) > 0)
    hidden[0] = False
    return hidden


def _interpreter(tree: Tree) -> Bools:
    """Rows that are native code of the interpreter."""
    count = len(tree.strings)
    is_interpreter, is_library, is_api = (np.zeros(count, np.bool_) for _ in range(3))
    native = tree.kind == FrameKind.NATIVE
    for number in np.unique(tree.binary[native]).tolist():
        text = tree.strings[number]
        is_interpreter[number] = _INTERPRETER.fullmatch(text) is not None
        is_library[number] = ".so" in text or not text
    named = native & ~is_library[tree.binary]
    for number in np.unique(tree.name[named]).tolist():
        is_api[number] = _API_NAME.match(tree.strings[number]) is not None
    result: Bools = native & (is_interpreter[tree.binary] | (named & is_api[tree.name]))
    return result


def _of_libc(tree: Tree) -> Bools:
    found = np.zeros(len(tree.strings), np.bool_)
    for number in np.unique(tree.binary[tree.kind == FrameKind.NATIVE]).tolist():
        found[number] = _LIBC.fullmatch(tree.strings[number]) is not None
    result: Bools = found[tree.binary]
    return result


def _unnamed(tree: Tree) -> Bools:
    """Rows that have an address in their file for a name."""
    found = np.zeros(len(tree.strings), np.bool_)
    for number in np.unique(tree.name[tree.kind == FrameKind.NATIVE]).tolist():
        found[number] = "!0x" in tree.strings[number]
    result: Bools = found[tree.name]
    return result


def _outermost(tree: Tree, parent: Ints, candidate: Bools) -> Bools:
    """The candidates with nothing but candidates between them and the beginning of their stack."""
    outermost = candidate & ~np.isin(tree.kind[parent], _CODE)
    while not np.array_equal(further := outermost | (candidate & outermost[parent]), outermost):
        outermost = further
    return outermost


def _named(tree: Tree, kind: FrameKind, pattern: re.Pattern[str]) -> Bools:
    """Rows of a kind whose whole name matches."""
    rows = tree.kind == kind
    matches = np.zeros(len(tree.strings), np.bool_)
    for number in np.unique(tree.name[rows]).tolist():
        matches[number] = pattern.fullmatch(tree.strings[number]) is not None
    result: Bools = rows & matches[tree.name]
    return result
