"""The merge of native and Python frames, on hand-written stacks (innermost first)."""

from __future__ import annotations

import pytest

from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.merge import Group, merge
from gpuprof.snapshots.frames import FrameKind

PYTHON = "libpython3.11.so.1.0"


class Names:
    """Frames by name: "py:..." are Python's, "?..." unnamed interpreter code."""

    def __init__(self) -> None:
        self.ids = FrameIds()

    def frames(self, *names: str) -> list[int]:
        return [self._frame(name) for name in names]

    def _frame(self, name: str) -> int:
        if name.startswith("py:"):
            return self.ids.get(name[3:], "w.py", PYTHON, FrameKind.PYTHON, line=1)
        return self.ids.native(name, PYTHON, known=not name.startswith("?"))

    def merge(
        self, native: list[str], groups: list[tuple[list[str], int | None]], *, by_host: bool, complete: bool
    ) -> list[str]:
        merged = merge(
            self.frames(*native),
            self.ids.roles,
            [Group(tuple(self.frames(*(f"py:{name}" for name in names))), host) for names, host in groups],
            by_host=by_host,
            native_complete=complete,
        )
        self.outer = None if merged.outer is None else [self.ids.describe(frame)[0] for frame in merged.outer]
        return [self.ids.describe(frame)[0] for frame in merged.frames]


EVAL = "_PyEval_EvalFrameDefault"
NATIVE = [
    "memcpy",
    "list_sort",
    EVAL,
    "_PyEval_Vector",
    "map_next",
    EVAL,
    "PyEval_EvalCode",
    "main",
    "_start",
]


@pytest.fixture
def names() -> Names:
    return Names()


def test_groups_replace_the_loops_in_order(names: Names) -> None:
    groups = [(["key", "inner"], None), (["outer", "<module>"], None)]
    assert names.merge(NATIVE, groups, by_host=False, complete=True) == [
        "memcpy",
        "list_sort",
        "key",
        "inner",
        "_PyEval_Vector",
        "map_next",
        "outer",
        "<module>",
        "PyEval_EvalCode",
        "main",
        "_start",
    ]
    assert names.outer == ["PyEval_EvalCode", "main", "_start"]


def test_a_loop_that_is_not_linked_yet_is_at_the_leaf(names: Names) -> None:
    native = [EVAL, "_PyEval_Vector", *NATIVE[1:]]
    groups = [(["key"], None), (["<module>"], None)]
    assert names.merge(native, groups, by_host=False, complete=True) == [
        "_PyEval_Vector",
        "list_sort",
        "key",
        "_PyEval_Vector",
        "map_next",
        "<module>",
        "PyEval_EvalCode",
        "main",
        "_start",
    ]


def test_a_loop_that_has_just_returned_is_still_linked(names: Names) -> None:
    groups = [(["gone"], None), (["key"], None), (["<module>"], None)]
    assert names.merge(NATIVE, groups, by_host=False, complete=True) == [
        "memcpy",
        "list_sort",
        "gone",
        "key",
        "_PyEval_Vector",
        "map_next",
        "<module>",
        "PyEval_EvalCode",
        "main",
        "_start",
    ]


def test_python_goes_on_below_a_break(names: Names) -> None:
    groups = [(["key"], None), (["outer"], None), (["<module>"], None)]
    assert names.merge(NATIVE[:4], groups, by_host=False, complete=False) == [
        "memcpy",
        "list_sort",
        "key",
        "_PyEval_Vector",
        "outer",
        "<module>",
    ]
    assert names.outer is None


def test_a_break_at_the_leaf_keeps_all_python_frames(names: Names) -> None:
    groups = [(["step"], None), (["<module>"], None)]
    assert names.merge(["sgemm_kernel"], groups, by_host=False, complete=False) == [
        "sgemm_kernel",
        "step",
        "<module>",
    ]


def test_no_python_frames_leave_the_loop_visible(names: Names) -> None:
    assert names.merge(NATIVE, [], by_host=False, complete=True) == NATIVE


def test_groups_stand_at_their_hosts(names: Names) -> None:
    groups = [(["key"], 2), (["outer", "<module>"], 5)]
    assert names.merge(NATIVE, groups, by_host=True, complete=True) == [
        "memcpy",
        "list_sort",
        "key",
        "_PyEval_Vector",
        "map_next",
        "outer",
        "<module>",
        "PyEval_EvalCode",
        "main",
        "_start",
    ]


def test_a_tail_call_interpreter(names: Names) -> None:
    # The loop is inlined into _PyEval_Vector and PyEval_EvalCode; some parts have no name.
    native = [
        "long_add",
        "_TAIL_CALL_BINARY_OP",
        "_PyEval_Vector",
        "map_next",
        "?0x1234",
        "PyEval_EvalCode",
        "_start",
    ]
    groups = [(["key"], 2), (["<module>"], 5)]
    assert names.merge(native, groups, by_host=True, complete=True) == [
        "long_add",
        "key",
        "_PyEval_Vector",
        "map_next",
        "<module>",
        "PyEval_EvalCode",
        "_start",
    ]


def test_unnamed_interpreter_code_elsewhere_stays(names: Names) -> None:
    native = ["?0x99", "list_sort", EVAL, "_start"]
    assert names.merge(native, [(["<module>"], 2)], by_host=True, complete=True) == [
        "?0x99",
        "list_sort",
        "<module>",
        "_start",
    ]


def test_hosts_beyond_the_break(names: Names) -> None:
    groups = [(["key"], 2), (["outer"], None), (["<module>"], None)]
    assert names.merge(NATIVE[:4], groups, by_host=True, complete=False) == [
        "memcpy",
        "list_sort",
        "key",
        "_PyEval_Vector",
        "outer",
        "<module>",
    ]


def test_an_empty_group_hides_its_loop_only(names: Names) -> None:
    assert names.merge([EVAL, "main", "_start"], [([], None)], by_host=False, complete=True) == [
        "main",
        "_start",
    ]
