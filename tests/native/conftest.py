"""Fixtures of the injection library's tests: what is built once, programs, listeners."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """The module injected.py."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    spec = importlib.util.spec_from_file_location("injected", Path(__file__).with_name("injected.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["injected"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def built(kit: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library as it is shipped, and the mocks."""
    return kit.build(tmp_path_factory.mktemp("inject"))


@pytest.fixture
def start(kit: ModuleType, built: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """start(script="", **env) -> a Program; more than one may run."""
    programs: list[Any] = []

    def start_one(script: str = "", *, which: Any = built, **env: str) -> Any:
        program = kit.Program(which, tmp_path / str(len(programs)), script=script, **env)
        programs.append(program)
        return program

    yield start_one
    for program in programs:
        program.close()


@pytest.fixture
def listen(kit: ModuleType) -> Iterator[Callable[..., Any]]:
    """listen(program) -> a Listener, attached unless lock=False or wait=False."""
    listeners: list[Any] = []

    def listen_to(program: Any, *, lock: bool = True, wait: bool = True) -> Any:
        listener = kit.Listener(program, lock=lock)
        listeners.append(listener)
        if lock and wait:
            listener.reach("recording")
        return listener

    yield listen_to
    for listener in listeners:
        listener.close()
