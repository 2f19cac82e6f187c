"""The BPF unwinder, compiled as an ordinary library, over recorded stacks: without a kernel."""

from __future__ import annotations

import importlib
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent / "unwinder"
RECORDINGS = sorted((HERE / "recordings").glob("*.json.gz"))
NAMES = [path.name.removesuffix(".json.gz") for path in RECORDINGS]
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
SCANNED, FRAME_POINTER = 1, 8


@pytest.fixture(scope="module")
def recording() -> Iterator[ModuleType]:
    sys.path.insert(0, str(HERE))
    yield importlib.import_module("recording")
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def unwinder(recording: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return importlib.import_module("user_unwinder").UserUnwinder(tmp_path_factory.mktemp("unwinder"))


@pytest.mark.parametrize("path", RECORDINGS, ids=NAMES)
def test_recorded_stack(path: Path, recording: ModuleType, unwinder: Any) -> None:
    recorded = recording.Recording.load(path)
    walk = recorded.walk(unwinder)
    assert walk.stop.name == recorded.stop
    assert int(walk.flags) == recorded.flags
    assert walk.counters == [pc for pc, _, _ in recorded.frames]
    expected = [sp for _, sp, _ in recorded.frames]
    assert walk.stack_pointers == expected
    assert [word for word, _ in walk.python] == [word for word, _ in recorded.python_codes]


def test_what_the_recordings_show(recording: ModuleType) -> None:
    """What is right was told by gdb, or is known from the program."""
    found = {name: recording.Recording.load(path) for name, path in zip(NAMES, RECORDINGS, strict=True)}
    assert [name for name, each in found.items() if each.judge != "gdb"] == ["assembly", "generated"]
    names = [name for _, _, name in found["signal"].frames]
    assert names[:3] == ["burn", "on_signal", "__restore_rt"]
    assert names[-5:-2] == ["signalled", "main", "__libc_start_call_main"]
    assert found["assembly"].flags == SCANNED
    assert found["generated"].flags == FRAME_POINTER
    python = [name for name in NAMES if name.startswith("python")]
    assert len(python) >= 2
    for name in python:
        chain = [function for _, function in found[name].python_codes if function != "(shim)"]
        plain = [function.rpartition(".")[2] for function in chain]
        assert plain == ["inner", *["numbers"] * 4, "method", "main", "<module>"], name


@pytest.mark.parametrize("path", RECORDINGS, ids=NAMES)
def test_no_recording_names_a_path(path: Path, recording: ModuleType) -> None:
    recorded = recording.Recording.load(path)
    assert not any("/" in mapping.name for mapping in recorded.mappings)
    assert not any("/" in name for _, _, name in recorded.frames if "(" not in name)
    for _, data in recorded.memory:
        assert recording.without_paths(data) == data


@pytest.mark.parametrize("path", RECORDINGS, ids=NAMES)
def test_a_stack_that_ends_early(path: Path, recording: ModuleType, unwinder: Any) -> None:
    """Where memory is missing the walk keeps what it has: a beginning of the stack, never another one."""
    recorded = recording.Recording.load(path)
    whole = recorded.walk(unwinder)
    sp = recorded.start["sp"]
    (stack,) = [data for start, data in recorded.memory if start <= sp < start + len(data)]
    base = next(start for start, data in recorded.memory if data is stack)
    needed = whole.stack_pointers[-1] - sp - 8  # the last return address that is read begins there
    for length in range(8, needed, max(8, needed // 40 & -8)):
        memory = [(at, data[: sp - base + length] if data is stack else data) for at, data in recorded.memory]
        walk = replace(recorded, memory=memory).walk(unwinder)
        guessed = int(walk.flags) & SCANNED
        assert walk.stop.name != "ROOT" or guessed, length
        if not guessed:
            assert walk.counters == whole.counters[: len(walk.counters)], length


@pytest.mark.parametrize("path", RECORDINGS, ids=NAMES)
def test_hostile_memory(path: Path, recording: ModuleType, unwinder: Any) -> None:
    """Whatever a process writes onto its stack and into its Python frames, a walk ends, within its bounds
    (the library is built with the sanitizer for undefined behaviour).
    """
    recorded = recording.Recording.load(path)
    rng = random.Random(path.name)
    interesting = [start for start, data in recorded.memory] + [m.start + 5 for m in recorded.mappings]
    for _ in range(60):
        memory = []
        for start, data in recorded.memory:
            changed = bytearray(data)
            for _ in range(rng.choice((0, 1, 4, len(data) // 16))):
                at = rng.randrange(max(len(changed) - 8, 1)) & -8
                word = rng.choice((0, 1 << 63, (1 << 64) - 1, rng.getrandbits(64), rng.choice(interesting)))
                if at + 8 <= len(changed):
                    changed[at : at + 8] = word.to_bytes(8, "little")
            memory.append((start, bytes(changed)))
        start = dict(recorded.start)
        if rng.random() < 0.3:
            start[rng.choice(("pc", "sp", "bp", "fsbase"))] = rng.getrandbits(rng.choice((20, 47, 64)))
        walk = replace(recorded, memory=memory, start=start).walk(unwinder)
        assert 1 <= len(walk.counters) <= 128
        assert len(walk.python) <= 256
