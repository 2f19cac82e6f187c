"""Snapshot files that were damaged, or written by somebody who is up to no good."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard

from gpuprof.snapshots import chunks, file_reader
from gpuprof.snapshots.errors import FileError
from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import Hello, Readings


def test_a_damaged_chunk_loses_only_itself(files: Any, snapshot: Path) -> None:
    data = bytearray(snapshot.read_bytes())
    data[files.offsets(snapshot)[2] + 100] ^= 0x55
    snapshot.write_bytes(data)
    opened = read_snapshot(snapshot)
    assert opened.damage is not None
    assert (
        f"from 2.0 s to 3.0 s ({files.clock(opened, 2)} to {files.clock(opened, 3)}) is missing"
        in opened.damage
    )
    assert "of 5 is damaged" in opened.damage
    assert opened.damage.endswith("; kept are 4.0 s of 5.0 s")
    assert files.samples(opened.history) == 4


def test_a_damaged_chunk_header_loses_only_its_chunk(files: Any, snapshot: Path) -> None:
    data = bytearray(snapshot.read_bytes())
    for at in (files.offsets(snapshot)[0] + 3, files.offsets(snapshot)[3] + 12):
        data[at] ^= 0xFF
    snapshot.write_bytes(data)
    opened = read_snapshot(snapshot)
    assert opened.damage is not None
    for start in (0, 3):
        assert f"the part from {start}.0 s to {start + 1}.0 s" in opened.damage
    assert opened.damage.endswith("; kept are 3.0 s of 5.0 s")
    assert files.samples(opened.history) == 3


def test_bytes_inserted_between_chunks_lose_nothing(files: Any, snapshot: Path) -> None:
    data = snapshot.read_bytes()
    at = files.offsets(snapshot)[2]
    snapshot.write_bytes(data[:at] + b"\0" * 5000 + data[at:])
    opened = read_snapshot(snapshot)
    assert opened.damage == "some bytes between or after its chunks are damaged; no chunk is missing"
    assert files.samples(opened.history) == 5


def test_files_that_were_joined_are_read_up_to_the_second(files: Any, snapshot: Path) -> None:
    data = snapshot.read_bytes()
    snapshot.write_bytes(data + data)
    opened = read_snapshot(snapshot)
    size = f"{len(data) / 1e6:.2f} MB"
    follows = f"another snapshot follows in the same file ({size}), which is not read: open it by itself"
    assert opened.damage == follows
    assert files.samples(opened.history) == 5
    assert len(files.readings_of(opened.history)) == 5
    # The first was cut: within a chunk, between two chunks, and within its end mark.
    for cut, kept in ((files.offsets(snapshot)[2] + 50, 2), (files.offsets(snapshot)[2], 2)):
        snapshot.write_bytes(data[:cut] + data)
        opened = read_snapshot(snapshot)
        assert opened.damage is not None
        assert opened.damage.endswith(follows)
        assert f"the first {kept}.0 s are kept" in opened.damage
        assert files.samples(opened.history) == kept
        snapshot.write_bytes(data + data)
    snapshot.write_bytes(data[:-5] + data)
    opened = read_snapshot(snapshot)
    assert opened.damage is not None
    assert opened.damage.endswith(follows)
    assert files.samples(opened.history) == 5


def test_a_chunk_that_is_there_twice_is_counted_once(files: Any, snapshot: Path) -> None:
    data = snapshot.read_bytes()
    first, second, third, *_ = files.offsets(snapshot)
    snapshot.write_bytes(data[:second] + data[first:third] + data[third:])
    opened = read_snapshot(snapshot)
    assert opened.damage == "1 of its chunks are there more than once, and are counted once"
    assert files.samples(opened.history) == 5
    snapshot.write_bytes(data + data[first:third])  # after the end mark, too
    opened = read_snapshot(snapshot)
    assert opened.damage == "2 of its chunks are there more than once, and are counted once"
    assert files.samples(opened.history) == 5


def test_one_byte_after_the_end_is_noticed(files: Any, snapshot: Path) -> None:
    snapshot.write_bytes(snapshot.read_bytes() + b"\n")
    opened = read_snapshot(snapshot)
    assert opened.damage == "some bytes between or after its chunks are damaged; no chunk is missing"
    assert files.samples(opened.history) == 5


def test_a_byte_flipped_anywhere_is_noticed_and_costs_at_most_its_chunk(files: Any, snapshot: Path) -> None:
    data = snapshot.read_bytes()
    rng = random.Random(3)
    starts = [*files.offsets(snapshot), len(data)]
    for at in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[at] ^= rng.randrange(1, 256)
        snapshot.write_bytes(damaged)
        try:
            opened = read_snapshot(snapshot)
        except FileError:
            assert at < 14
            continue
        lost = 5 - files.samples(opened.history)
        assert lost == (1 if starts[0] <= at < starts[5] else 0), at
        assert opened.damage or at in {14, 15}


def test_random_damage_never_raises_anything_else(files: Any, snapshot: Path) -> None:
    data = snapshot.read_bytes()
    rng = random.Random(4)
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 8)):
            at = rng.randrange(16, len(damaged))
            if rng.random() < 0.3:
                del damaged[at : at + rng.randrange(1, 200)]
            else:
                damaged[at:at] = rng.randbytes(rng.randrange(1, 50))
        snapshot.write_bytes(damaged)
        try:
            opened = read_snapshot(snapshot)
        except FileError:
            continue
        assert opened.damage
        opened.history.query(files.ALL)


def test_hostile_chunks_are_left_out_and_named(files: Any, hello: Hello, tmp_path: Path) -> None:
    bomb = zstandard.ZstdCompressor().compress(b"\0" * (200 << 20))
    no_size = zstandard.ZstdCompressor(write_content_size=False).compress(b"\0" * 1000)
    u64 = np.array([1], np.uint64)
    hostile = {
        "claims to unpack": files.hostile_chunk(bomb, 200 << 20),
        "size it claims": files.hostile_chunk(bomb, 1000),
        "does not unpack": files.hostile_chunk(no_size, 1000),
        "cannot be decompressed": files.hostile_chunk(b"not zstd at all", 10),
        "within a frame": chunks.pack_chunk(chunks.DATA, b"\xff\xff\xff\xff", 1, 2),
        "begin with a hello": chunks.pack_chunk(chunks.DATA, b"", 1, 2),
        "not valid msgpack": chunks.pack_chunk(chunks.DATA, b"\1\0\0\0\xc1", 1, 2),
        "newer gpuprof": files.frames_chunk([replace(hello, version=99)]),
        "not defined": files.frames_chunk([hello, Readings(u64.astype("u4"), u64, u64, u64.astype(float))]),
    }
    good = files.frames_chunk([hello])
    path = tmp_path / "x"
    for words, chunk in hostile.items():
        path.write_bytes(chunks.file_header() + good + chunk + good)
        opened = read_snapshot(path)
        assert opened.damage is not None
        assert words in opened.damage, words
        path.write_bytes(chunks.file_header() + chunk)
        with pytest.raises(FileError):
            read_snapshot(path)


def test_a_chunk_that_claims_to_be_larger_than_the_file(files: Any, hello: Hello, tmp_path: Path) -> None:
    good = files.frames_chunk([hello])
    for stored in (1 << 20, 0xFFFF_FFFF):
        (tmp_path / "x").write_bytes(
            chunks.file_header() + good + files.hostile_chunk(b"x", 10, stored=stored) + good
        )
        opened = read_snapshot(tmp_path / "x")
        assert opened.damage is not None
        assert "larger than the file" in opened.damage


@pytest.mark.parametrize("index", [5, [1], [["a"] * 6], [[1] * 5], {"a": 1}])
def test_a_hostile_index_loses_nothing(files: Any, snapshot: Path, index: Any) -> None:
    data = snapshot.read_bytes()[: files.offsets(snapshot)[5]]
    packed = chunks.pack_chunk(chunks.INDEX, msgpack.packb(index), 0, 0)
    snapshot.write_bytes(data + packed + chunks.trailer(len(data)))
    assert files.samples(read_snapshot(snapshot).history) == 5


def test_a_file_that_unpacks_to_more_than_is_allowed_is_shown_in_part(
    files: Any, snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reader, "MAX_FILE_RAW_BYTES", 2000)
    opened = read_snapshot(snapshot)
    assert opened.damage is not None
    assert "unpacks to more" in opened.damage
    assert 0 < files.samples(opened.history) < 5
