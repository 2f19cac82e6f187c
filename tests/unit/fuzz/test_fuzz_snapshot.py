"""Hostile snapshot files and streams: chunks whose checksums are right and whose frames are not."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest

from gpuprof.snapshots import chunks
from gpuprof.snapshots.errors import FileError, FrameError, GpuprofError
from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import MAGIC, Query
from gpuprof.snapshots.wire import Decoder

FILES, STREAMS = 30, 300
PEAK_BYTES = 300 << 20  # what one case may take at most: a chunk claims up to 64 MB
RECORDED = Path(read_snapshot.__code__.co_filename).parent / "recorded" / "matmul-naive-h200.gpuprof"
LENGTH = struct.Struct("<I")


@pytest.fixture(scope="module")
def frames() -> list[Any]:
    """The frames of the first chunk of a recording, as msgpack maps."""
    data = RECORDED.read_bytes()
    at = len(chunks.file_header())
    header = chunks.parse_header(data[at : at + chunks.HEADER_BYTES])
    assert header is not None
    start = at + chunks.HEADER_BYTES
    raw = chunks.unpack_body(header, data[start : start + header.stored_bytes])
    found = []
    while raw:
        (size,) = LENGTH.unpack_from(raw)
        found.append(msgpack.unpackb(raw[4 : 4 + size], strict_map_key=False))
        raw = raw[4 + size :]
    assert len(found) > 3
    return found


def changed(value: Any, rng: random.Random, depth: int = 0) -> Any:
    """A value with something in it that does not belong there."""
    if isinstance(value, dict) and value and rng.random() < 0.95:
        key = rng.choice(list(value))
        copy = dict(value)
        if rng.random() < 0.1:
            del copy[key]
        elif rng.random() < 0.05:
            copy[rng.choice(("x", "kind", 7))] = rng.choice(list(value.values()))
        else:
            copy[key] = changed(value[key], rng, depth + 1)
        return copy
    if isinstance(value, list) and value and rng.random() < 0.9:
        copied = list(value)
        at = rng.randrange(len(copied))
        if rng.random() < 0.2:
            del copied[at:]
        else:
            copied[at] = changed(copied[at], rng, depth + 1)
        return copied
    if isinstance(value, bytes) and value and rng.random() < 0.8:
        data = bytearray(value)
        for _ in range(rng.choice((1, 1, 8))):
            data[rng.randrange(len(data))] = rng.choice((0, 0xFF, rng.randrange(256)))
        return bytes(data[: rng.choice((len(data), len(data), len(data) - 1, len(data) // 2))])
    if isinstance(value, int) and rng.random() < 0.7:
        next_one = min(value + 1, (1 << 64) - 1)
        return rng.choice((0, 1, -1, next_one, 0xFFFF, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1, -(1 << 63)))
    odd: list[Any] = [None, True, -1, 1 << 40, 1.5, float("nan"), float("inf"), "", "\x1b[2J", "x" * 5000]
    odd += [b"", b"\xff" * 9, [], {}]
    return rng.choice(odd)


def packed(value: Any) -> bytes:
    body: bytes = msgpack.packb(value, use_bin_type=True)
    return LENGTH.pack(len(body)) + body


def hostile(frames: list[Any], rng: random.Random) -> list[Any]:
    found = list(frames)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(found))
        match rng.randrange(8):
            case 0:
                del found[at]
            case 1:
                found.insert(rng.randrange(len(found)), found[at])
            case 2:
                other = rng.randrange(len(found))
                found[at], found[other] = found[other], found[at]
            case _:
                found[at] = changed(found[at], rng)
        if not found:
            break
    return found


def use(path: Path) -> str:
    """Open a file and ask it everything; what became of it."""
    try:
        opened = read_snapshot(path)
    except FileError:
        return "refused"
    history = opened.history
    for tree in ("cpu", "gpu", "idle", "offcpu"):
        with suppress(GpuprofError):  # it has nothing of that kind
            history.query(Query(1, tree, 0, 1 << 62))
            history.query(Query(2, tree, 0, 1 << 62, by_thread=True, min_fraction=0.0, max_nodes=1 << 20))
    history.readings_between(0, 1 << 62)
    return "readable"


def test_hostile_chunks(frames: list[Any], fuzz: Any, tmp_path: Path) -> None:
    outcomes = set()
    path = tmp_path / "hostile.gpuprof"
    for seed in fuzz.seeds(FILES):
        rng = random.Random(seed)
        bodies = [b"".join(map(packed, hostile(frames, rng)))]
        if rng.random() < 0.3:
            bodies.append(b"".join(map(packed, frames)))
        parts = [chunks.pack_chunk(chunks.DATA, body, 0, 1 << 62) for body in bodies]
        if rng.random() < 0.1:
            parts[0] = fuzz.mutate(parts[0], rng)
        path.write_bytes(chunks.file_header() + b"".join(parts) + chunks.trailer(rng.getrandbits(20)))
        with fuzz.watched(seed):
            if seed % 10 == 0:
                assert fuzz.peak_of(lambda: use(path)) < PEAK_BYTES
            else:
                outcomes.add(use(path))
    assert outcomes == {"refused", "readable"}


def test_hostile_streams(frames: list[Any], fuzz: Any) -> None:
    """Whatever comes over a socket is frames, or a FrameError that stays one."""
    original = MAGIC + b"".join(map(packed, frames[:6]))
    ways: list[Callable[[random.Random], bytes]] = [
        lambda rng: fuzz.mutate(original, rng),
        lambda rng: MAGIC + b"".join(map(packed, hostile(frames[:6], rng))),
        lambda rng: (
            MAGIC + LENGTH.pack(rng.choice((5, 1 << 20, 0xFFFFFFFF))) + rng.randbytes(rng.randrange(60))
        ),
        lambda rng: MAGIC + packed([[]] * 10) + b"\x91" * 5000,
        lambda rng: MAGIC + LENGTH.pack(3000) + bytes((rng.choice((0x91, 0x81, 0xDD, 0xDF)),)) * 3000,
    ]
    outcomes = set()
    for seed in fuzz.seeds(STREAMS):
        rng = random.Random(seed)
        data = rng.choice(ways)(rng)
        decoder = Decoder()
        with fuzz.watched(seed):
            try:
                while data:
                    size = rng.choice((1, 7, 100, 1 << 20))
                    decoder.feed(data[:size])
                    data = data[size:]
                outcomes.add("fed")
            except FrameError:
                outcomes.add("refused")
                with pytest.raises(FrameError):
                    decoder.feed(b"")
    assert outcomes == {"fed", "refused"}
