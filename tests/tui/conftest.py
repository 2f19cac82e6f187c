"""Fixtures of the screen's tests: trees made by hand, a fake node, and the real screen in a pseudo-
terminal."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots.frames import FrameKind, Tree

HERE = Path(__file__).parent
# Tests are not imported from a package: what they share (pilot_screen.py) is found by its folder.
sys.path.append(str(HERE))
# The names of a hostile process, as shared/cases/names has them, for machines without that folder.
HOSTILE_NAMES = [
    "python3", "[/x]", "[bold red]x", "a\x1b]0;owned\x07b", "tab\there", "nul\x00byte", "new\nline", "café",
    "\udcff\udcfe\udcfd", "\u202edesrever", " ", "", "-rf", "x" * 300,
    "\x1b[2J\x1b[31mred", "\x9b31m", "\u200b\u200d", "日本語のプロセス", "e\u0301" * 40, "\U0001f600 smile",
]  # fmt: skip


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gpuprof_tests_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    if spec.name not in sys.modules:
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return sys.modules[spec.name]


Row = tuple[int, str, float]  # depth, name, own weight


def tree_of(rows: list[tuple[Any, ...]], **fields: Any) -> Tree:
    """A Tree from preorder rows (depth, name, own weight[, kind, file, line, binary]); totals are added up
    here."""
    strings = [""]
    number: dict[str, int] = {"": 0}

    def intern(text: str) -> int:
        if text not in number:
            number[text] = len(strings)
            strings.append(text)
        return number[text]

    parents: list[int] = []
    path: list[int] = []
    columns: dict[str, list[Any]] = {key: [] for key in ("name", "own", "kind", "file", "line", "binary")}
    for place, (depth, name, own, *rest) in enumerate(rows):
        kind, file, line, binary = [*rest, *(FrameKind.NATIVE, "", 0, "")[len(rest) :]]
        del path[depth:]
        parents.append(path[-1] if path else 0)
        path.append(place)
        for key, value in (
            ("name", intern(name)),
            ("own", own),
            ("kind", int(kind)),
            ("file", intern(file)),
            ("line", line),
            ("binary", intern(binary)),
        ):
            columns[key].append(value)
    total = [float(own) for own in columns["own"]]
    for place in range(len(rows) - 1, 0, -1):
        total[parents[place]] += total[place]
    settings = {"id": 1, "tree": "cpu", "unit": "samples", "start_ns": 0, "end_ns": 10**9, **fields}
    return Tree(
        strings=strings,
        parent=np.array(parents, np.uint32),
        name=np.array(columns["name"], np.uint32),
        file=np.array(columns["file"], np.uint32),
        binary=np.array(columns["binary"], np.uint32),
        line=np.array(columns["line"], np.uint32),
        kind=np.array(columns["kind"], np.uint8),
        self_weight=np.array(columns["own"], np.float64),
        total_weight=np.array(total, np.float64),
        **settings,
    )


@pytest.fixture
def make_tree() -> Callable[..., Tree]:
    return tree_of


@pytest.fixture
def hostile_names() -> list[str]:
    shared = HERE.parents[2] / "shared/cases/names/hostile.json"
    names = list(HOSTILE_NAMES)
    if shared.exists():
        names += [
            raw.encode("latin-1").decode("utf-8", "surrogateescape")
            for raw in json.loads(shared.read_text())["names"]
        ]
    return names


@pytest.fixture
def fake_node() -> ModuleType:
    return _load("fake_node")


@pytest.fixture
def pty_screen() -> ModuleType:
    return _load("pty_screen")


@pytest.fixture(autouse=True)
def _keep_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toasts go by themselves: a test on a busy machine may not come to see them."""
    from gpuprof.tui.app import GpuprofApp

    notify = GpuprofApp.notify

    def notify_and_keep(app: Any, message: str, **options: Any) -> None:
        app.__dict__.setdefault("all_said", []).append(message)
        notify(app, message, **options)

    monkeypatch.setattr(GpuprofApp, "notify", notify_and_keep)


Listening = Callable[[Any], AbstractContextManager[str]]


@pytest.fixture
def listening(tmp_path: Path) -> Listening:
    """With `listening(node) as path` a fake node with 40 s of past grows, and listens on a socket there."""

    @contextmanager
    def listen(node: Any) -> Iterator[str]:
        now = time.monotonic_ns()
        node.fill(now - 40 * 10**9, now)
        path = str(tmp_path / "sampler.sock")
        server = node.listener(path)
        threading.Thread(target=node.run, daemon=True).start()
        try:
            yield path
        finally:
            node.stop()
            server.close()

    return listen


@pytest.fixture
def node_socket(fake_node: ModuleType, listening: Listening) -> Iterator[tuple[Any, str]]:
    """A fake node with 40 s of past that grows and listens: (node, path of its socket)."""
    node = fake_node.FakeNode(2)
    with listening(node) as path:
        yield node, path


@pytest.fixture
def live(node_socket: tuple[Any, str]) -> Any:
    """The screen, which reads that node over its socket."""
    from gpuprof.tui.app import GpuprofApp
    from gpuprof.tui.transports import SocketTransport

    return GpuprofApp(SocketTransport(path=node_socket[1]))
