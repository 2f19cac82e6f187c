"""The resolver that works on columns against a slow one that does a record at a time, on random batches."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuprof.bpf.records import HEADER, Batch, RecordFlag, StopReason, batch_of
from gpuprof.sampler.frame_ids import FrameIds, Role
from gpuprof.sampler.merge import UNKNOWN_DISTANCE, Group, merge
from gpuprof.sampler.process_stacks import NO_FRAME, NO_FRAME_ENTRY, SHIM, SHIM_OWNER, ProcessStacks
from gpuprof.sampler.stack_resolver import StackResolver
from gpuprof.snapshots.frames import FrameKind, ProcessDef

PC = (1 << 47) - 1
GUESSED = 1 << 47
ROLES = {3: Role.EVAL, 4: Role.INNER, 5: Role.SIGNAL_RETURN}  # of functions, by their last bits


def find_hosts(
    addresses: Sequence[int], sp0: int, distances: Sequence[int], native_complete: bool
) -> tuple[int | None, ...]:
    """Index of the native frame in whose part of the stack each address lies; None where it is not known.

    `distances`: of each frame's stack pointer above the previous frame's, in words. A frame holds what lies
    between its own stack pointer and its caller's; of the last frame that is known only when the walk is
    complete.
    """
    pointers = []
    pointer = sp0
    for distance in distances:
        if distance == UNKNOWN_DISTANCE:
            break
        pointer += distance * 8
        pointers.append(pointer)
    end = len(pointers) - (not native_complete or len(pointers) < len(distances))
    indices = (bisect_right(pointers, address) - 1 for address in addresses)
    return tuple(index if 0 <= index < end else None for index in indices)


class Process(ProcessStacks):
    """Sixteen addresses are one function; every eighth function is special. `salt` changes all the names."""

    def __init__(self, pid: int, ids: FrameIds, version: tuple[int, int] | None) -> None:
        self.salt = 0
        definition = ProcessDef(pid=pid, start_ns=0, name="", cmdline="", user="", uid=0, ppid=0)
        super().__init__(definition, ids, None)  # type: ignore[arg-type]
        self.python: Any = (
            SimpleNamespace(version=version, has_shim_frames=version >= (3, 12)) if version else None
        )

    def name_native(self, address: int) -> int:
        function = address >> 4
        role = ROLES.get(function & 7)
        return self._ids.get(
            f"{self.pid}.{self.salt}.{function}.{role}", "", "", FrameKind.NATIVE, role=role or Role.NONE
        )

    def resolve_native(self, addresses: Sequence[int]) -> list[int]:
        assert list(addresses) == sorted(addresses)
        return [self.name_native(address) for address in addresses]

    def resolve_code(self, word: int, detail: int) -> int:
        owner, version = word >> 56, self.python.version if self.python else (3, 12)
        ends = version <= (3, 10) or (version == (3, 11) and owner != 0)
        if word & 7 == 7:
            return NO_FRAME_ENTRY if ends else NO_FRAME
        name = f"py{self.pid}.{self.salt}.{word & 0xFFFF_FFFF_FFFF}.{detail >> 32 & 0xFFFFFF}"
        return self._ids.get(name, "", "", FrameKind.PYTHON, line=detail & 0xFFFF) << 1 | ends

    def forget(self) -> None:
        """As when it has other mappings and other code objects."""
        self.salt += 1
        self.forget_native()
        self.code_number = 0


class Follower:
    """Processes by pid."""

    def __init__(self, processes: Iterable[Process]) -> None:
        self.processes = {process.pid: process for process in processes}

    def get(self, pid: int, *_: Any, **__: Any) -> Process:
        return self.processes[pid]

    def all(self) -> list[Process]:
        return list(self.processes.values())


class Reference:
    """One record after the other, without any cache but the outer frames."""

    def __init__(self, ids: FrameIds, follower: Follower) -> None:
        self.ids = ids
        self.follower = follower
        self.outer: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def resolve(self, batch: Batch, size: int) -> list[tuple[tuple[int, ...], bool]]:
        found: dict[int, tuple[tuple[int, ...], bool]] = {}
        for low in range(0, len(batch), size):
            part = range(low, min(low + size, len(batch)))
            # What complete stacks show helps all broken ones that are looked at together.
            for broken in (False, True):
                for at in part:
                    if (batch.n_python[at] > 0 and batch.stop[at] not in (0, 7)) == broken:
                        found[at] = self.one(batch, at)
        return [found[at] for at in range(len(batch))]

    def one(self, batch: Batch, at: int) -> tuple[tuple[int, ...], bool]:
        process = self.follower.get(int(batch.pid[at]))
        first = int(batch.first[at])
        words = batch.words[first:].tolist()
        n_kernel, n_user, n_python = int(batch.n_kernel[at]), int(batch.n_user[at]), int(batch.n_python[at])
        kernel = [
            self.ids.get("[kernel code]", "", "[kernel]", FrameKind.KERNEL_SPACE) for _ in range(n_kernel)
        ]
        user, pairs = words[n_kernel : n_kernel + n_user], words[n_kernel + n_user :][: 2 * n_python]
        native: list[int] = []
        for n, word in enumerate(user):
            exact = n == 0
            if n:  # it called the frame before, unless that is where a signal handler returns to
                inner = process.name_native((user[n - 1] & PC) - (n > 1) & PC)
                exact = self.ids.roles[inner] == Role.SIGNAL_RETURN
            native.append(process.name_native((word & PC) - (not exact) & PC))
        marked = [
            self.ids.with_guessed_caller(frame) if n + 1 < n_user and user[n + 1] & GUESSED else frame
            for n, frame in enumerate(native)
        ]
        walked = int(batch.stop[at]) in (StopReason.ROOT, StopReason.KERNEL_THREAD)
        shims_known = process.python is None or process.python.version >= (3, 12)
        codes, shims = [], []
        for word, detail in zip(pairs[::2], pairs[1::2], strict=True):
            shim = shims_known and word >> 56 == SHIM_OWNER
            codes.append(SHIM if shim else process.resolve_code(word, detail))
            if shim:
                shims.append(word & (1 << 48) - 1)
        hosts = iter(find_hosts(shims, int(batch.sp0[at]), [word >> 48 for word in user], walked))
        by_host = process.python is not None and process.python.has_shim_frames
        groups: list[Group] = []
        frames: list[int] = []
        for code in codes:
            if code >= 0:
                frames.append(code >> 1)
            if code == SHIM:
                groups.append(Group(tuple(frames), next(hosts)))
                frames = []
            elif not by_host and (code == NO_FRAME_ENTRY or (code >= 0 and code & 1)):
                groups.append(Group(tuple(frames)))
                frames = []
        if frames:
            groups.append(Group(tuple(frames)))
        merged = merge(marked, self.ids.roles, groups, by_host=by_host, native_complete=walked)
        stack = kernel + merged.frames
        lost = int(batch.flags[at]) & RecordFlag.PYTHON_NOT_FOUND != 0
        lost = lost and sum(self.ids.roles[frame] == Role.EVAL for frame in marked) > len(groups)
        complete = walked or (n_python > 0 and not int(batch.flags[at]) & RecordFlag.PYTHON_TRUNCATED)
        anchor = (process.pid, int(batch.tid[at]), pairs[-2]) if pairs else None
        if not complete:
            reason = StopReason(int(batch.stop[at])).words
            stack.append(self.ids.get(f"[truncated: {reason}]", "", "", FrameKind.UNKNOWN))
        elif lost:
            words = "[truncated: the thread's Python frames were not found]"
            stack.append(self.ids.get(words, "", "", FrameKind.UNKNOWN))
        elif not walked and anchor in self.outer:
            stack.extend(self.outer[anchor])
        if walked and anchor is not None and merged.outer is not None:
            self.outer[anchor] = merged.outer
        return tuple(reversed(stack)), complete and not lost


def random_record(rng: random.Random, pid: int) -> bytes:
    n_kernel = rng.choice([0, 0, 1, 3])
    n_user = rng.choice([0, 1, 2, 5, 9])
    n_python = rng.choice([0, 0, 1, 3, 5])
    header = np.zeros(1, HEADER)
    header["pid"], header["tid"], header["comm"] = pid, pid + rng.randrange(2), rng.choice([b"a", b"b"])
    header["time_ns"] = rng.randrange(1 << 40)
    header["n_kernel"], header["n_user"], header["n_python"] = n_kernel, n_user, n_python
    header["stop"] = rng.choice([0, 0, 0, 7, 2, 3])
    header["flags"] = rng.choice([0, 0, 1, 2, 3, 8, 32, 34])
    header["header_words"] = HEADER.itemsize // 8
    sp0 = rng.choice([0, 4096, (1 << 47) - 64])
    header["sp0"] = sp0
    words = [rng.choice([0xFFFFFFFF81000000, 0]) + rng.randrange(100) for _ in range(n_kernel)]
    for _ in range(n_user):
        words.append(
            rng.randrange(1, 16 * 24)
            | rng.choice([0, 1, 2, 9, 0xFFFF]) << 48
            | rng.choice([0, 0, 0, GUESSED])
        )
    for _ in range(n_python):
        owner = rng.choice([0, 0, 1, SHIM_OWNER])
        code = sp0 + 8 * rng.randrange(-2, 30) if owner == SHIM_OWNER else rng.randrange(10)
        words += [max(code, 0) | owner << 56, rng.randrange(3) | rng.randrange(2) << 32]
    if any(word & GUESSED for word in words[n_kernel : n_kernel + n_user]):
        header["flags"] |= np.uint8(RecordFlag.SCANNED)
    return header.tobytes() + np.array(words, np.uint64).tobytes()


def vary(rng: random.Random, record: bytes) -> bytes:
    """A record that differs in one thing, which may or may not change its stack."""
    words = np.frombuffer(record, np.uint64).copy()
    header = words[: HEADER.itemsize // 8].view(HEADER)
    first_python = HEADER.itemsize // 8 + int(header["n_kernel"][0]) + int(header["n_user"][0])
    shims = [at for at in range(first_python, len(words), 2) if int(words[at]) >> 56 == SHIM_OWNER]
    what = rng.randrange(6)
    if what == 0:
        header["flags"] ^= np.uint8(rng.choice([2, 32]))
    elif what == 1:
        header["stop"] = rng.choice([0, 2, 3])
    elif what == 2:
        header["sp0"] += np.uint64(8 * rng.randrange(4))
    elif what == 3:
        header["tid"] = header["pid"] + rng.randrange(2)
    elif what == 4 and shims:
        words[rng.choice(shims)] += np.uint64(8 * rng.randrange(12))
    elif first_python > HEADER.itemsize // 8:
        at = rng.randrange(HEADER.itemsize // 8, first_python)
        words[at] ^= np.uint64(rng.choice([1, 16, GUESSED, 1 << 48]))
        header["flags"] |= np.uint8(RecordFlag.SCANNED)
    return words.tobytes()


@pytest.mark.parametrize("seed", range(4))
def test_random_batches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, size = random.Random(seed), 50
    # Small bounds, so that everything overflows, is swept, and begins anew.
    monkeypatch.setattr("gpuprof.sampler.stack_resolver.CHUNK_RECORDS", size)
    monkeypatch.setattr("gpuprof.sampler.stack_resolver.MAX_MERGED", 40 if seed % 2 else 4000)
    monkeypatch.setattr("gpuprof.sampler.stack_resolver.MAX_OUTERS", 50 if seed % 2 else 600)
    monkeypatch.setattr("gpuprof.sampler.known_frames.MAX_ADDRESSES", 1 << 10)
    monkeypatch.setattr("gpuprof.sampler.known_frames.MAX_CODES", 1 << 6)
    monkeypatch.setattr("gpuprof.sampler.known_frames.MAX_NUMBER", 24)
    monkeypatch.setattr("gpuprof.sampler.kallsyms.PATH", "/nonexistent")
    ids = FrameIds()
    versions = [None, (3, 9), (3, 11), (3, 12), (3, 13)]
    processes = [Process(1000 + n, ids, version) for n, version in enumerate(versions)]
    follower = Follower(processes)
    resolver = StackResolver(ids, follower)  # type: ignore[arg-type]
    monkeypatch.setattr(resolver, "_kernel_symbols", None)
    unknown = SimpleNamespace(
        lookup=lambda _: ("[kernel code]", "[kernel]"), starts=lambda found: np.zeros(len(found), np.uint64)
    )
    monkeypatch.setattr(resolver._known, "_kernel", unknown)
    reference = Reference(ids, follower)
    pids = [process.pid for process in processes]
    known_ones = [random_record(rng, rng.choice(pids)) for _ in range(60)]
    for _ in range(30):
        records = [
            vary(rng, rng.choice(known_ones)) if rng.random() < 0.9 else random_record(rng, rng.choice(pids))
            for _ in range(rng.choice([1, 7, 120]))
        ]
        starts = np.cumsum([0, *(len(record) // 8 for record in records)])[:-1]
        batch = batch_of(np.frombuffer(b"".join(records), np.uint64), starts.astype(np.int64))
        resolved = resolver.resolve(batch)
        expected = reference.resolve(batch, size)
        assert [process.pid for process in resolved.processes] == batch.pid.tolist()
        for at, (stack, (frames, complete)) in enumerate(zip(resolved.stacks, expected, strict=True)):
            assert (stack.frames, stack.complete) == (frames, complete), at
        assert resolved.truncated == sum(not complete for _, complete in expected)
        threads = resolved.threads
        for at, thread in enumerate(threads.of_record.tolist()):
            one = threads.first[thread]
            assert batch.tid[one] == batch.tid[at]
            assert batch.comm[one] == batch.comm[at]
            assert threads.processes[thread] is resolved.processes[at]
        if rng.random() < 0.5:
            rng.choice(processes).forget()
    assert resolver.nbytes < 1 << 20


def test_find_hosts() -> None:
    sp0, distances = 1000, [0, 10, 20]  # frames at 1000, 1080, 1240
    addresses = [999, 1000, 1079, 1080, 1240]
    assert find_hosts(addresses, sp0, distances, True) == (None, 0, 0, 1, 2)
    assert find_hosts(addresses, sp0, distances, False) == (None, 0, 0, 1, None)  # its extent is not known
    assert find_hosts([1000, 1100], sp0, [0, 10, 0xFFFF, 4], True) == (0, None)  # nor what is behind a leap
    assert find_hosts([1000], sp0, [], True) == (None,)
