"""However many processes, files, programs and functions come and go, what is kept of them is bounded."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from noted_tables import NotedTables

from gpuprof.bpf.messages import MappingMessage
from gpuprof.bpf.records import ControlMessage, MessageReason
from gpuprof.sampler import kernel_told, known_processes, python_code, stack_resolver, symbols
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.kernel_told import FileNames
from gpuprof.sampler.maps import read_maps
from gpuprof.sampler.own_version import UNKNOWN, own_version
from gpuprof.sampler.process_follower import ProcessFollower
from gpuprof.sampler.python_code import CodeReader
from gpuprof.sampler.python_runtime import find_python
from gpuprof.sampler.stack_resolver import FORGET_NS, MergedStack, StackResolver
from gpuprof.sampler.symbol_store import SymbolStore
from gpuprof.sampler.symbols import BinarySymbols
from gpuprof.snapshots import stack_tree
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.tables import Tables

SECOND_NS = 10**9


def test_execs_are_remembered_for_a_bounded_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_processes, "MAX_EXECS", 100)
    follower = ProcessFollower(NotedTables(), FrameIds(), SymbolStore())  # type: ignore[arg-type]
    pids = range(1 << 23, (1 << 23) + 300)
    follower.handle([ControlMessage(pid, MessageReason.EXEC, pid) for pid in pids])
    assert follower._known._began == {pid: pid for pid in pids[-100:]}
    follower.handle([ControlMessage(pids[-100], MessageReason.EXEC, 1)])  # once more: it is the newest now
    follower.handle([ControlMessage(pids[0], MessageReason.EXEC, 2)])
    assert len(follower._known._began) == 100
    assert follower._known._began[pids[-100]] == 1
    assert pids[-99] not in follower._known._began


def test_a_parent_that_is_gone_does_not_keep_old_frame_ids() -> None:
    follower = ProcessFollower(NotedTables(), FrameIds(), SymbolStore())  # type: ignore[arg-type]
    parent = follower.get(1 << 23, 10**10, SECOND_NS, uid=0, comm=b"x")
    follower._known._forked[5] = parent, 0
    follower._known._gone.clear()
    ids = FrameIds()
    follower.reset(ids)
    assert parent._ids is ids


def test_names_of_files_told_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_told, "MAX_FILES", 50)
    monkeypatch.setattr(kernel_told, "_ask", lambda message: ("file", f"/f{message.key[1]}", False, "f"))
    files, most = FileNames(), 0
    for inode in range(500):
        message = MappingMessage(7, 1, 2, 0x1000, 0x2000, 0, ("fd:01", inode, 0), True)
        assert files.mapping(message).path == f"/f{inode}"
        most = max(most, len(files._known))
    assert most == 50


def test_names_of_the_functions_of_a_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbols, "MAX_NAMED", 20)
    libc = next(m for m in read_maps(os.getpid()) if m.name == "libc.so.6" and m.executable)
    assert libc.path is not None

    def opened() -> BinarySymbols:
        return BinarySymbols(os.open(libc.path or "", os.O_RDONLY), libc.name)

    one, fresh = opened(), opened()
    one.lookup(0)  # read it
    addresses = [one._table.start(n) for n in range(0, min(len(one._table), 1200), 4)]
    assert len(addresses) > 100
    for address in addresses:
        assert len(one._by_start) <= 20
        assert one.lookup(address).name == one.lookup(address).name
    monkeypatch.setattr(symbols, "MAX_NAMED", 1 << 20)
    assert [one.lookup(address).name for address in addresses] == [
        fresh.lookup(address).name for address in addresses
    ]
    one.close()
    fresh.close()


def told(code: Any) -> list[tuple[int, bytes]]:
    """A message's parts that say nothing true, but for the address of the code object."""
    return [(id(code), bytes(224)), (id(code) + 1000, b"name"), (id(code) + 2000, b"file")]


def test_copies_of_code_objects_are_kept_until_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_code, "_MAX_COPIES", 30)
    layout = find_python(os.getpid(), read_maps(os.getpid()))
    assert layout is not None
    reader = CodeReader(os.getpid(), layout)
    codes = [told.__code__.replace(co_firstlineno=n + 1) for n in range(100)]
    for code in codes:
        reader.remember(told(code))
        assert len(reader._copies) <= 30
    assert list(reader._copies) == [id(code) for code in codes[-30:]]  # the oldest go first
    for code in codes[-10:]:
        assert reader.get(id(code), code.co_firstlineno) is not None
    assert list(reader._copies) == [id(code) for code in codes[-30:-10]]
    reader.remember([])
    reader.close()


def test_functions_of_the_same_file_share_its_path() -> None:
    layout = find_python(os.getpid(), read_maps(os.getpid()))
    assert layout is not None
    readers = [CodeReader(os.getpid(), layout) for _ in range(2)]
    functions = (told, test_functions_of_the_same_file_share_its_path)
    found = [[reader.get(id(f.__code__), f.__code__.co_firstlineno) for f in functions] for reader in readers]
    (first, other), again = found
    assert first is not None
    assert other is not None
    assert first.file is other.file
    assert again[0] is first  # as in a process that runs the same
    for reader in readers:
        reader.close()


def resolver() -> StackResolver:
    return StackResolver(FrameIds(), SimpleNamespace(all=list))  # type: ignore[arg-type]


def test_stacks_that_are_not_seen_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deep ones count by their size: with 1000 frames a few hundred are as much as thousands of others."""
    monkeypatch.setattr(stack_resolver, "MAX_MERGED_BYTES", 1 << 20)
    stacks = resolver()
    monkeypatch.setattr(stacks, "_merge", lambda *_: MergedStack(bytes(4000), True, None))
    for n in range(3000):
        keys = [n.to_bytes(16, "little"), b"the same one ..."]
        stacks._find(None, keys, [0, 1])  # type: ignore[arg-type]
        assert stacks._merged.nbytes <= 2 * (1 << 20) + 8000
    assert len(stacks._merged) <= 2 * ((1 << 20) // 4280 + 1)
    assert stacks._merged.get(b"the same one ...") is not None
    stacks.tidy(SECOND_NS)
    stacks._merged.get(b"the same one ...")
    stacks.tidy(SECOND_NS + FORGET_NS)
    assert list(stacks._merged) == [b"the same one ..."]
    stacks.tidy(SECOND_NS + 2 * FORGET_NS)
    stacks.tidy(SECOND_NS + 3 * FORGET_NS)
    assert len(stacks._merged) == 0


def test_equal_outer_frames_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_resolver, "MAX_OUTERS", 10)
    stacks = resolver()
    first = stacks._share(tuple(map(int, ("1000", "2000"))))
    assert stacks._share(tuple(map(int, ("1000", "2000")))) is first  # another tuple, with the same frames
    for n in range(100):
        assert stacks._share((n, 5)) == (n, 5)
        assert len(stacks._shared) <= 10
    assert stacks._share(None) is None


def test_prefixes_of_deep_stacks_are_bounded_by_their_size() -> None:
    tables = Tables(0)
    frames = [tables.frame(tables.function(f"f{n}", "", "", FrameKind.NATIVE)) for n in range(1000)]
    rng = np.random.default_rng(5)
    stacks = [rng.permutation(frames).tolist() for _ in range(40)]
    found = [tables.stack(stack) for stack in stacks]
    assert tables.stacks._prefixes.nbytes <= 2 * (stack_tree._PREFIXES_BYTES + 5000)
    assert [tables.stack(stack) for stack in stacks] == found
    view = tables.view()
    for node, stack in zip(found, stacks, strict=True):
        path: list[int] = []
        while node:
            path.append(int(view.frame[node]))
            node = int(view.parent[node])  # noqa: PLW2901
        assert path[::-1] == stack
    held = sum(sys.getsizeof(key) for key in tables.stacks._prefixes)
    assert held <= tables.stacks._prefixes.nbytes <= 2 * held  # it says what it takes
    tables.freeze()
    assert tables.stacks._prefixes.nbytes == 0


def test_the_version_is_in_the_name_of_the_installers_record(tmp_path: Path) -> None:
    from importlib import metadata

    assert own_version() == metadata.version("gpuprof-tui")
    empty, one = tmp_path / "empty", tmp_path / "one"
    empty.mkdir()
    (one / "other-3.1.dist-info").mkdir(parents=True)
    (one / "gpuprof_tui-1.2.3rc1.dist-info").mkdir()
    assert own_version([str(tmp_path / "none"), str(empty), str(one)]) == "1.2.3rc1"
    assert own_version([str(empty)]) == UNKNOWN
