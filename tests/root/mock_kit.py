"""Programs on the mock driver, by tests/native/injected.py, and a wait, for tests of the sampler."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

NATIVE = Path(__file__).parents[1] / "native"
TIMEOUT_S = 60.0


@lru_cache(maxsize=1)
def load_kit() -> Any:
    spec = importlib.util.spec_from_file_location("injected", NATIVE / "injected.py")
    assert spec is not None
    assert spec.loader is not None
    kit = importlib.util.module_from_spec(spec)
    sys.modules["injected"] = kit  # dataclasses look their module up
    spec.loader.exec_module(kit)
    return kit


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
