"""Trees without the interpreter's frames: small ones by hand, and random ones against a slow walk."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import FrameKind, Tree
from gpuprof.snapshots.simplify import without_internals

PY, C, K = FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.KERNEL_SPACE
Path = tuple[tuple[str, str, int], ...]
Row = tuple[Any, ...]  # depth, name, own weight, kind, binary, and of some the file


def tree_of(rows: list[Row], **fields: Any) -> Tree:
    strings = [""]
    parents: list[int] = []
    path: list[int] = []
    names, binaries, files = [], [], []
    for place, (depth, name, _, _, binary, *file) in enumerate(rows):
        del path[depth:]
        parents.append(path[-1] if path else 0)
        path.append(place)
        for text, column in ((name, names), (binary, binaries), (file[0] if file else "", files)):
            if text not in strings:
                strings.append(text)
            column.append(strings.index(text))
    own = [float(row[2]) for row in rows]
    total = list(own)
    for place in range(len(rows) - 1, 0, -1):
        total[parents[place]] += total[place]
    zero = np.zeros(len(rows), np.uint32)
    settings = {"summary": "as it was", "truncated": 3, **fields}
    return Tree(
        7, "cpu", "samples", 1, 2, strings, np.array(parents, np.uint32), np.array(names, np.uint32),
        np.array(files, np.uint32), np.array(binaries, np.uint32), zero,
        np.array([row[3] for row in rows], np.uint8), np.array(own),
        np.array(total), **settings,
    )  # fmt: skip


def shown(tree: Tree) -> list[tuple[int, str, float, float]]:
    return [(row.depth, row.name, row.self_weight, row.total_weight) for row in trees.rows(tree)]


ROOT: list[Row] = [(0, "", 0, 0, ""), (1, "python3 (7)", 0, 1, "")]


def test_frames_between_outside_and_below_python_frames_go() -> None:
    tree = tree_of(
        [
            *ROOT,
            (2, "_start", 0, C, "python3.12"),
            (3, "__libc_start_main", 0, C, "libc.so.6"),
            (4, "Py_RunMain", 1, C, "python3.12"),
            (5, "main", 2, PY, "python3.12"),
            (6, "_PyObject_MakeTpCall", 0, C, "python3.12"),
            (7, "step", 10, PY, "python3.12"),
            (8, "long_to_decimal_string", 4, C, "python3.12"),
            (9, "malloc", 3, C, "libc.so.6"),
            (6, "python3.12!0x5a36d0", 5, C, "python3.12"),
            (7, "step", 20, PY, "python3.12"),
            (8, "PyArray_ToList", 6, C, "_multiarray_umath.cpython-312-x86_64-linux-gnu.so"),
            (9, "PyLong_FromLong", 7, C, "python3.12"),
            (10, "asm_exc_page_fault", 8, K, "[kernel]"),
        ]
    )
    done = without_internals(tree)
    assert shown(done.tree) == [
        (0, "", 0, 66),
        (1, "python3 (7)", 1, 66),
        (2, "main", 7, 65),
        (3, "step", 34, 58),
        (4, "PyArray_ToList", 13, 21),
        (5, "asm_exc_page_fault", 8, 8),
        (4, "malloc", 3, 3),
    ]
    assert done.hidden == 7
    assert (done.tree.id, done.tree.summary, done.tree.truncated) == (7, "as it was", 3)
    assert (done.tree.start_ns, done.tree.end_ns, done.tree.unit) == (1, 2, "samples")


BOOT, PATHS = "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"


def test_the_way_from_an_import_to_the_code_of_the_module_goes() -> None:
    tree = tree_of(
        [
            *ROOT,
            (2, "_run_module_as_main", 0, PY, "", "<frozen runpy>"),
            (3, "_run_code", 0, PY, "", "<frozen runpy>"),
            (4, "<module>", 1, PY, "", "train.py"),
            (5, "_find_and_load", 2, PY, "", BOOT),
            (6, "_find_and_load_unlocked", 4, PY, "", BOOT),
            (7, "_load_unlocked", 8, PY, "", BOOT),
            (8, "SourceLoader.exec_module", 16, PY, "", PATHS),
            (9, "SourceLoader.get_code", 32, PY, "", PATHS),
            (9, "_call_with_frames_removed", 0, PY, "", BOOT),
            (10, "PyEval_EvalCode", 64, C, "python3.12"),
            (11, "<module>", 128, PY, "", "torch/__init__.py"),
            (7, "find_spec", 256, PY, "", PATHS),
            (8, "stat", 512, C, "libc.so.6"),
        ]
    )
    found = without_internals(tree)
    assert shown(found.tree) == [
        (0, "", 0, 1023),
        (1, "python3 (7)", 0, 1023),
        (2, "<module>", 1 + 2 + 4 + 8 + 16 + 64, 1023),
        (3, "find_spec", 256, 768),
        (4, "stat", 512, 512),
        (3, "<module>", 128, 128),
        (3, "SourceLoader.get_code", 32, 32),
    ]


def test_how_a_program_and_a_thread_start_goes_and_a_sample_in_it_stays() -> None:
    tree = tree_of(
        [
            *ROOT,
            (2, "_start", 0, C, "app"),
            (3, "__libc_start_main", 0, C, "libc.so.6"),
            (4, "libc.so.6!0x2a150", 2, C, "libc.so.6"),
            (5, "main", 10, C, "app"),
            (6, "libc.so.6!0x9000", 5, C, "libc.so.6"),
            (7, "memcpy", 1, C, "libc.so.6"),
            (2, "libc.so.6!0x129ec5", 0, C, "libc.so.6"),
            (3, "libc.so.6!0x9c800", 0, C, "libc.so.6"),
            (4, "worker", 4, C, "app"),
            (2, "libc.so.6!0x77", 3, C, "libc.so.6"),
            (2, "app!0x5", 1, C, "app"),
            (3, "start_thread", 0, C, "app"),
            (4, "f", 1, C, "app"),
        ]
    )
    assert shown(without_internals(tree).tree)[1:] == [
        (1, "python3 (7)", 2, 27),
        (2, "main", 10, 16),
        (3, "libc.so.6!0x9000", 5, 6),
        (4, "memcpy", 1, 1),
        (2, "worker", 4, 4),
        (2, "libc.so.6!0x77", 3, 3),
        (2, "app!0x5", 1, 2),
        (3, "start_thread", 0, 1),
        (4, "f", 1, 1),
    ]


def test_the_way_into_a_wait_goes_unless_only_the_kernel_waits() -> None:
    wait = FrameKind.WAIT
    tree = tree_of(
        [
            *ROOT,
            (2, "get", 0, PY, ""),
            (3, "pthread_cond_wait", 0, C, "libc.so.6"),
            (4, "libc.so.6!0x98d70", 0, C, "libc.so.6"),
            (5, "entry_SYSCALL_64_after_hwframe", 0, K, "[kernel]"),
            (6, "futex_wait", 0, K, "[kernel]"),
            (7, "schedule", 0, K, "[kernel]"),
            (8, "futex", 4, wait, ""),
            (9, "woken by x", 0, wait, ""),
            (10, "_start", 0, C, "x"),
            (11, "wake", 6, C, "x"),
            (12, "do_syscall_64", 0, K, "[kernel]"),
            (13, "futex_wake", 1, K, "[kernel]"),
            (1, "kworker (9)", 0, 1, ""),
            (2, "ret_from_fork", 0, K, "[kernel]"),
            (3, "worker_thread", 0, K, "[kernel]"),
            (4, "sleep", 9, wait, ""),
        ]
    )
    assert shown(without_internals(tree).tree)[2:] == [
        (2, "get", 0, 11),
        (3, "pthread_cond_wait", 0, 11),
        (4, "futex", 4, 11),
        (5, "woken by x", 0, 7),
        (6, "wake", 6, 7),
        (7, "futex_wake", 1, 1),
        (1, "kworker (9)", 0, 9),
        (2, "worker_thread", 0, 9),
        (3, "sleep", 9, 9),
    ]


def test_a_thread_without_python_keeps_everything() -> None:
    tree = tree_of([*ROOT, (2, "Py_Initialize", 4, C, "python3.11"), (3, "malloc", 1, C, "libc.so.6")])
    done = without_internals(tree)
    assert done.tree is tree
    assert done.hidden == 0


def test_a_path_without_python_beside_one_with_it_keeps_what_is_its_own() -> None:
    tree = tree_of(
        [
            *ROOT,
            (2, "Py_RunMain", 0, C, "python3.11"),
            (3, "Py_FinalizeEx", 2, C, "python3.11"),
            (3, "f", 5, PY, ""),
        ]
    )
    assert shown(without_internals(tree).tree)[2:] == [(2, "f", 5, 5), (2, "Py_FinalizeEx", 2, 2)]


@pytest.mark.parametrize(
    ("name", "binary", "goes"),
    [
        ("f", "python3.12", True),
        ("f", "python3", True),
        ("f", "python", True),
        ("f", "python3.13t", True),
        ("f", "python3.11-dbg", True),
        ("f", "libpython3.12.so.1.0", True),
        ("f", "libpython3.so", True),
        ("f", "python3.12 (deleted)", True),
        ("_PyEval_EvalFrameDefault", "blender", True),
        ("Py_NewReference", "uwsgi", True),
        ("PyArray_ToList", "_multiarray_umath.cpython-312-x86_64-linux-gnu.so", False),
        ("_PyObject_Call", "", False),
        ("f", "libtorch_python.so", False),
        ("f", "pythonic", False),
        ("f", "libpython_clib.so", False),
        ("Pyramid", "game", False),
        ("f", "blender", False),
    ],
)
def test_what_is_the_interpreter(name: str, binary: str, goes: bool) -> None:
    tree = tree_of([*ROOT, (2, "g", 1, PY, ""), (3, name, 1, C, binary)])
    assert bool(without_internals(tree).hidden) == goes


def test_small_siblings_that_meet_are_summed() -> None:
    tree = tree_of(
        [
            *ROOT,
            (2, "f", 0, PY, ""),
            (3, "PyObject_Call", 0, C, "python3.11"),
            (4, "other (3)", 5, FrameKind.OTHER, ""),
            (3, "g", 30, PY, ""),
            (3, "other (2)", 9, FrameKind.OTHER, ""),
        ]
    )
    assert shown(without_internals(tree).tree)[3:] == [(3, "g", 30, 30), (3, "other (5)", 14, 14)]


def test_a_tree_whose_sampler_has_hidden_rows_is_left_as_it_is() -> None:
    rows: list[Row] = [*ROOT, (2, "f", 0, PY, ""), (3, "PyObject_Call", 1, C, "python3.11")]
    for hidden, known in ((5, 5), (0, 0), (-3, 0)):
        tree = tree_of(rows, hidden=hidden)
        done = without_internals(tree)
        assert done.tree is tree
        assert done.hidden == known
    assert without_internals(tree_of(rows)).hidden == 1


def test_an_error_that_is_not_known_stays_unknown_where_rows_meet() -> None:
    rows: list[Row] = [
        *ROOT,
        (2, "f", 0, PY, ""),
        (3, "PyObject_Call", 0, C, "python3.11"),
        (4, "g", 5, PY, ""),
        (4, "h", 4, PY, ""),
        (3, "g", 30, PY, ""),
        (3, "h", 20, PY, ""),
    ]
    estimated = np.array([0, 0, 0, 0, 1, 1, 1, 1], np.uint8)
    error = np.array([np.nan] * 4 + [3.0, 3.0, np.nan, 4.0])
    done = {
        row.name: row
        for row in trees.rows(without_internals(tree_of(rows, estimated=estimated, error=error)).tree)
    }
    assert (done["g"].total_weight, done["g"].estimated, done["g"].error) == (35, True, None)
    assert (done["h"].total_weight, done["h"].estimated, done["h"].error) == (24, True, 5.0)
    assert not done["f"].estimated


def slowly(tree: Tree) -> dict[Path, float]:
    """Own weight by path of shown rows, by a walk from every row to the root."""
    rows = list(trees.rows(tree))
    found: dict[Path, float] = {}
    parent = tree.parent.tolist()
    below = [False] * len(rows)
    for place in range(len(rows) - 1, 0, -1):
        below[parent[place]] |= below[place] or rows[place].kind is PY
    for row in rows:
        path, place = [], row.index
        chain = [place]
        while place:
            place = parent[place]
            chain.append(place)
        for position, at in enumerate(chain):
            above = any(rows[up].kind is PY for up in chain[position + 1 :])
            internal = rows[at].kind is C and rows[at].binary == "python3.12"
            if not (internal and (above or below[at])):
                path.append((rows[at].name, rows[at].binary, int(rows[at].kind)))
        key = tuple(reversed(path))
        found[key] = found.get(key, 0) + row.self_weight
    return found


@pytest.mark.parametrize("seed", range(30))
def test_random_trees_keep_every_weight_under_its_path(seed: int) -> None:
    rng = random.Random(seed)
    rows: list[Row] = list(ROOT)
    for _ in range(rng.randrange(1, 120)):
        depth = rng.randint(2, rows[-1][0] + 1)
        kind, binary = rng.choice([(PY, "python3.12"), (C, "python3.12"), (C, "python3.12"), (C, "libx.so")])
        rows.append((depth, rng.choice("abc"), rng.randrange(4), kind, binary))
    tree = tree_of(rows)
    done = without_internals(tree).tree
    path: list[tuple[str, str, int]] = []
    got: dict[Path, float] = {}
    for row in trees.rows(done):
        del path[row.depth :]
        path.append((row.name, row.binary, int(row.kind)))
        if done is not tree:
            assert tuple(path) not in got
        got[tuple(path)] = got.get(tuple(path), 0) + row.self_weight
    wanted = slowly(tree)
    assert {key: weight for key, weight in got.items() if weight} == {
        key: weight for key, weight in wanted.items() if weight
    }
    children = np.bincount(done.parent[1:], done.total_weight[1:], len(done.parent))
    assert np.array_equal(children + done.self_weight, done.total_weight)


def test_columns_that_are_no_tree_are_refused() -> None:
    tree = tree_of([*ROOT, (2, "g", 1, PY, ""), (3, "f", 1, C, "python3")])
    tree.parent[2] = 3
    with pytest.raises(FrameError):
        without_internals(tree)
    with pytest.raises(FrameError):
        without_internals(_without_strings())
    with pytest.raises(FrameError):
        without_internals(_cut_short())


def _without_strings() -> Tree:
    tree = tree_of(ROOT)
    tree.strings.clear()
    return tree


def _cut_short() -> Tree:
    tree = tree_of(ROOT)
    return replace(tree, kind=tree.kind[:1])


def test_a_deep_and_wide_tree_is_quick() -> None:
    rows: list[Row] = list(ROOT)
    for _ in range(60):
        for depth in range(2, 200):
            rows.append((depth, f"f{depth % 7}", 1, C if depth % 2 else PY, "python3.12"))
    tree = tree_of(rows)
    start = time.thread_time()
    done = without_internals(tree)
    assert time.thread_time() - start < 2.0
    assert done.tree.total_weight[0] == tree.total_weight[0]
    assert len(done.tree.parent) == 2 + 99
