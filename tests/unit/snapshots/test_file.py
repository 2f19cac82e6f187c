"""Snapshot files: round trips, and every way in which a file can be cut, damaged, foreign or refused."""

from __future__ import annotations

import errno
import os
import random
import re
import socket
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard

from gpuprof.snapshots import chunks, file, file_reader, new_file
from gpuprof.snapshots.errors import EXIT_BAD_FILE, FileError, FrameError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import Frame, Hello, Query, Readings, Status
from gpuprof.snapshots.history import History
from gpuprof.snapshots.timerange import wall_text

ALL = Query(1, "cpu", 0, 1 << 60, min_fraction=0.0, max_nodes=1 << 30, by_thread=True)


def readings_of(history: History) -> list[tuple[str, int, int, float]]:
    defs, columns = history.readings_between(0, 1 << 60)
    rows = zip(*(columns[name].tolist() for name in ("series", "start_ns", "end_ns", "value")), strict=True)
    return sorted((defs[series].metric, *row) for series, *row in rows)


def small(planted: Any, row: Any, seconds: int = 5) -> History:
    """Return a history of a sample and a reading in each of so many seconds."""
    series = planted.history.series("power_w", gpu="G")
    for second in range(seconds):
        at = 10**12 + second * 10**9
        planted.add(row(at, f"main work{second}", cpu=second % 3))
        planted.history.add_readings([series], [at], [at + 10**9], [float(second)])
    return planted.history


@pytest.fixture
def snapshot(planted: Any, row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of five chunks of one second each."""
    monkeypatch.setattr(file, "CHUNK_NS", 10**9)
    history = small(planted, row)
    path = tmp_path / "five.gpuprof"
    with SnapshotWriter(path, history.hello) as writer:
        writer.write(history.frames_between(*history.span))
    assert writer.rows_written == (5, 5)
    assert writer.bytes_written == path.stat().st_size
    return path


def offsets(path: Path) -> list[int]:
    """Return where the chunks of a file begin, the index last, without the span chunk."""
    data = path.read_bytes()
    found, at = [], data.find(chunks.MARKER)
    while at >= 0:
        found.append(at)
        at = data.find(chunks.MARKER, at + 1)
    return [at for at in found if data[at + 8] != chunks.SPAN]


def clock(opened: file.Opened, second: float) -> str:
    """Return the time of day of a second of a file that begins as `small` does."""
    return wall_text(opened.history, 10**12 + round(second * 10**9))


def samples(history: History) -> float:
    return float(history.query(ALL).total_weight[0])


# ------------------------------------------------------------------------------------------------ round trips


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("chunk_ns", [10**12, 300_000])
def test_a_file_gives_the_answers_of_the_history_that_it_was_written_from(
    seed: int, chunk_ns: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, random_rows, path_weights, folder = (
        request.getfixturevalue(name) for name in ("planted", "random_rows", "path_weights", "tmp_path")
    )
    monkeypatch.setattr(file, "CHUNK_NS", chunk_ns)
    planted.add(*random_rows(seed, 1500))
    series = [planted.history.series("power_w", gpu=gpu) for gpu in "AB"]
    for number in range(100):
        at = 10**12 + number * 15_000
        planted.history.add_readings(series, [at, at], [at + 40_000, at], [number / 7, float("nan")])
    path = folder / "x.gpuprof"
    with SnapshotWriter(path, planted.history.hello) as writer:
        writer.write(planted.history.frames_between(0, 1 << 60))
    opened = read_snapshot(path)
    assert opened.damage is None
    assert opened.history.damage is None
    assert opened.history.hello.host == "node17"
    assert path_weights(opened.history.query(ALL)) == planted.brute(ALL)
    assert repr(readings_of(opened.history)) == repr(readings_of(planted.history))
    assert opened.history.span == planted.history.span


def test_a_recording_written_as_it_comes(
    planted: Any, row: Any, tmp_path: Path, path_weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "CHUNK_NS", 2 * 10**9)
    history = planted.history
    cursor = history.cursor("rows", 0)
    path = tmp_path / "x.gpuprof"
    writer = SnapshotWriter(path, history.hello)
    writer.write([history.hello])
    sizes = []
    for second in range(9):
        planted.add(row(10**12 + second * 10**9, f"main work{second}", pid=second % 2 + 1))
        history.set_status(Status(second, [], 1, 2, 3, 4))
        writer.write(history.since(cursor))
        sizes.append(writer.bytes_written)
        if second == 4:
            history.roll_generation()
    assert len(set(sizes)) > 3  # chunks are written while it goes on
    growing = read_snapshot(path)
    assert growing.damage is None  # the writer holds its lock
    assert growing.growing == growing.history.growing == "it is still being recorded: 7.0 s so far"
    assert samples(growing.history) >= 6
    torn = tmp_path / "torn"  # what is left when the recorder dies now
    torn.write_bytes(path.read_bytes())
    opened = read_snapshot(torn)
    assert opened.growing is None
    assert opened.damage is not None
    assert re.fullmatch(
        r"it was not closed: the first 7\.0 s are kept \(\S+ to \S+\); what came after them is missing "
        r"\(a recorder that is killed loses 10 s at most\)",
        opened.damage,
    )
    assert samples(opened.history) == samples(growing.history)
    writer.close()
    writer.close()
    opened = read_snapshot(path)
    assert (opened.damage, opened.growing) == (None, None)
    assert writer.span_ns == opened.history.span[1] - opened.history.span[0]
    assert path_weights(opened.history.query(ALL)) == planted.brute(ALL)
    assert opened.history.status is not None
    assert opened.history.status.time_ns == 8


def test_a_file_through_a_descriptor_that_the_caller_closes(planted: Any, row: Any, tmp_path: Path) -> None:
    history = small(planted, row)
    fd = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT, 0o600)
    with SnapshotWriter(fd, history.hello) as writer:
        writer.write(history.frames_between(0, 1 << 60))
    os.close(fd)
    assert samples(read_snapshot(tmp_path / "x").history) == 5


def test_a_recording_of_nothing_is_a_file_that_says_whose_it_is(hello: Hello, tmp_path: Path) -> None:
    with SnapshotWriter(tmp_path / "x", hello):
        pass
    opened = read_snapshot(tmp_path / "x")
    assert opened.damage is None
    assert opened.history.hello.host == "node17"
    assert samples(opened.history) == 0


def test_a_minute_of_16_cpus_is_well_under_two_megabytes(hello: Hello, planted: Any, tmp_path: Path) -> None:
    """Random stacks of 30 frames: worse than any real program."""
    rng = np.random.default_rng(1)
    tables = planted.history.tables
    process = tables.process(planted.process(1))
    threads = [tables.thread(process, tid, "t") for tid in range(16)]
    frames = [tables.frame(tables.function(f"function_{n}", "a.py", "b", 3), n) for n in range(1000)]
    stacks = np.array([tables.stack([frames[n] for n in rng.integers(0, 1000, 30)]) for _ in range(1000)])
    count = 16 * 99 * 60
    times = 10**12 + np.sort(rng.integers(0, 60 * 10**9, count))
    planted.history.add_samples(
        times, rng.integers(0, 16, count), rng.choice(threads, count), rng.choice(stacks, count)
    )
    with SnapshotWriter(tmp_path / "x", hello) as writer:
        writer.write(planted.history.frames_between(*planted.history.span))
    assert writer.bytes_written < 1_400_000


# ---------------------------------------------------------------------------------------------- torn, damaged


def test_a_file_cut_in_its_last_chunk_says_how_much_is_missing(snapshot: Path) -> None:
    data = snapshot.read_bytes()
    snapshot.write_bytes(data[: offsets(snapshot)[4] + 70])
    opened = read_snapshot(snapshot)
    assert opened.damage == (
        f"the file was cut: the first 4.0 s are kept ({clock(opened, 0)} to {clock(opened, 4)}); "
        f"the 1.0 s after them, to {clock(opened, 5)}, are missing, of 5.0 s in all"
    )
    assert samples(opened.history) == 4


def test_a_file_of_a_minute_cut_to_a_tenth_says_that_most_is_missing(
    planted: Any, row: Any, tmp_path: Path
) -> None:
    """Kept is the first chunk, of ten seconds; missing is all the rest, not the length of the chunk that was
    cut.
    """
    history = small(planted, row, 60)
    path = tmp_path / "x"
    with SnapshotWriter(path, history.hello) as writer:
        writer.write(history.frames_between(*history.span))
    path.write_bytes(path.read_bytes()[: offsets(path)[1] + 100])
    opened = read_snapshot(path)
    assert opened.damage is not None
    assert "the first 10.0 s are kept" in opened.damage
    assert "the 50.0 s after them" in opened.damage
    assert opened.damage.endswith("are missing, of 60.0 s in all")


def test_an_older_file_that_was_cut_says_how_much_is_missing_at_least(snapshot: Path) -> None:
    """Without a span chunk, which is known from the header of the chunk that was cut."""
    data = snapshot.read_bytes()
    starts = offsets(snapshot)
    snapshot.write_bytes(data[: chunks.FILE_HEADER.size] + data[starts[0] : starts[4] + 70])
    os.utime(snapshot, (1, 1))
    opened = read_snapshot(snapshot)
    assert opened.damage == (
        f"the file was cut within chunk 5: the first 4.0 s are kept ({clock(opened, 0)} to "
        f"{clock(opened, 4)}); what came after them is missing, 1.0 s or more"
    )


@pytest.mark.parametrize("where", ["end", "within the last chunk", "within the index"])
def test_a_file_that_lost_its_end_only(snapshot: Path, where: str) -> None:
    data = snapshot.read_bytes()
    starts = offsets(snapshot)
    cut = {"end": -1, "within the last chunk": starts[5] - 1, "within the index": starts[5] + 60}[where]
    snapshot.write_bytes(data[:cut])
    opened = read_snapshot(snapshot)
    assert opened.damage is not None
    assert samples(opened.history) == (4 if where == "within the last chunk" else 5)
    if where == "within the index":
        assert opened.damage == "its end mark is missing, and nothing else"


def test_a_short_recording_loses_a_part_of_itself_only(planted: Any, row: Any, tmp_path: Path) -> None:
    """Eight seconds, as they come, and at once: a damaged byte or a cut costs at most half of them."""
    history = small(planted, row, 8)
    for streamed in (True, False):
        path = tmp_path / f"x{streamed}"
        with SnapshotWriter(path, history.hello) as writer:
            if streamed:
                for second in range(8):
                    at = 10**12 + second * 10**9
                    writer.write(history.frames_between(at, at + 10**9))
            else:
                writer.write(history.frames_between(*history.span))
        data = path.read_bytes()
        starts = offsets(path)
        assert len(starts) - 1 >= 3
        for at in range(starts[0] + 60, starts[-1], 97):
            path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
            assert 4 <= samples(read_snapshot(path).history) < 8
        path.write_bytes(data[: starts[-2] + 10])
        assert 4 <= samples(read_snapshot(path).history) < 8


def test_a_recorder_that_is_killed_early_leaves_what_it_had_written(
    planted: Any, row: Any, tmp_path: Path
) -> None:
    """After N seconds at least half of them are in the file, less a second, and all but ten later on."""
    path = tmp_path / "x"
    writer = SnapshotWriter(path, planted.history.hello)
    for second in range(40):
        at = 10**12 + second * 10**9
        planted.add(*(row(at + part * 10**8, "main") for part in range(10)))
        writer.write(planted.history.frames_between(at, at + 10**9))
        if second < 2:
            continue
        left = tmp_path / "left"
        left.write_bytes(path.read_bytes())
        kept = samples(read_snapshot(left).history) / 10
        assert kept >= max((second + 1) / 2 - 1, second + 1 - 11), second
    writer.close()


def test_a_file_in_which_nothing_is_yet(hello: Hello, tmp_path: Path) -> None:
    path = tmp_path / "x"
    fd = new_file.create(str(path), overwrite=False)
    try:
        for _ in range(2):
            with pytest.raises(FileError) as error:
                read_snapshot(path)
            assert "is still being recorded" in error.value.message
            assert "again then" in error.value.hint
            writer = SnapshotWriter(fd, hello, name="x")
        writer.close()
    finally:
        os.close(fd)
    assert read_snapshot(path).growing is None


def test_where_files_have_no_locks_the_age_of_the_file_tells(
    planted: Any, row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = small(planted, row)
    path = tmp_path / "x"
    writer = SnapshotWriter(path, history.hello)
    writer.write(history.frames_between(*history.span))
    monkeypatch.setattr(file_reader, "is_written", lambda _fd: None)
    assert read_snapshot(path).growing == "it is still being recorded: 5.0 s so far"
    os.utime(path, (1, 1))
    opened = read_snapshot(path)
    assert opened.growing is None
    assert opened.damage is not None
    assert "was not closed" in opened.damage
    writer.close()
    assert read_snapshot(path).growing is None


def test_a_damaged_chunk_loses_only_itself(snapshot: Path) -> None:
    data = bytearray(snapshot.read_bytes())
    data[offsets(snapshot)[2] + 100] ^= 0x55
    snapshot.write_bytes(data)
    opened = read_snapshot(snapshot)
    assert opened.damage is not None
    assert f"from 2.0 s to 3.0 s ({clock(opened, 2)} to {clock(opened, 3)}) is missing" in opened.damage
    assert "of 5 is damaged" in opened.damage
    assert opened.damage.endswith("; kept are 4.0 s of 5.0 s")
    assert samples(opened.history) == 4


def test_a_damaged_chunk_header_loses_only_its_chunk(snapshot: Path) -> None:
    data = bytearray(snapshot.read_bytes())
    for at in (offsets(snapshot)[0] + 3, offsets(snapshot)[3] + 12):
        data[at] ^= 0xFF
    snapshot.write_bytes(data)
    opened = read_snapshot(snapshot)
    assert opened.damage is not None
    for start in (0, 3):
        assert f"the part from {start}.0 s to {start + 1}.0 s" in opened.damage
    assert opened.damage.endswith("; kept are 3.0 s of 5.0 s")
    assert samples(opened.history) == 3


def test_bytes_inserted_between_chunks_lose_nothing(snapshot: Path) -> None:
    data = snapshot.read_bytes()
    at = offsets(snapshot)[2]
    snapshot.write_bytes(data[:at] + b"\0" * 5000 + data[at:])
    opened = read_snapshot(snapshot)
    assert opened.damage == "some bytes between or after its chunks are damaged; no chunk is missing"
    assert samples(opened.history) == 5


def test_a_file_cut_at_every_byte_opens_or_says_why_not(snapshot: Path) -> None:
    data = snapshot.read_bytes()
    starts = offsets(snapshot)
    ends = [*starts[1:6]]  # of the five data chunks
    for length in range(len(data)):
        snapshot.write_bytes(data[:length])
        whole = sum(length >= end for end in ends)
        if not whole:
            with pytest.raises(FileError) as error:
                read_snapshot(snapshot)
            assert error.value.hint
            assert error.value.exit_code == EXIT_BAD_FILE
            continue
        opened = read_snapshot(snapshot)
        assert samples(opened.history) == whole
        assert opened.damage


def test_a_byte_flipped_anywhere_is_noticed_and_costs_at_most_its_chunk(snapshot: Path) -> None:
    data = snapshot.read_bytes()
    rng = random.Random(3)
    starts = [*offsets(snapshot), len(data)]
    for at in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[at] ^= rng.randrange(1, 256)
        snapshot.write_bytes(damaged)
        try:
            opened = read_snapshot(snapshot)
        except FileError:
            assert at < 14
            continue
        lost = 5 - samples(opened.history)
        assert lost == (1 if starts[0] <= at < starts[5] else 0), at
        assert opened.damage or at in {14, 15}


def test_random_damage_never_raises_anything_else(snapshot: Path) -> None:
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
        opened.history.query(ALL)


def rewritten(header: bytes, body: bytes) -> bytes:
    return header + struct.pack("<I", zlib.crc32(header)) + body


def hostile_chunk(
    body: bytes, raw_bytes: int, *, kind: int = chunks.DATA, stored: int | None = None
) -> bytes:
    """Return a chunk with right checksums around a body that is up to no good."""
    fields = (
        chunks.MARKER,
        kind,
        1,
        0,
        len(body) if stored is None else stored,
        raw_bytes,
        1,
        2,
        zlib.crc32(body),
    )
    return rewritten(struct.pack("<8sBBHIIQQI", *fields), body)


def frames_chunk(frames: list[Frame]) -> bytes:
    return chunks.pack_chunk(chunks.DATA, chunks.pack_frames(frames), 1, 2)


def test_hostile_chunks_are_left_out_and_named(hello: Hello, tmp_path: Path) -> None:
    bomb = zstandard.ZstdCompressor().compress(b"\0" * (200 << 20))
    no_size = zstandard.ZstdCompressor(write_content_size=False).compress(b"\0" * 1000)
    u64 = np.array([1], np.uint64)
    hostile = {
        "claims to unpack": hostile_chunk(bomb, 200 << 20),
        "size it claims": hostile_chunk(bomb, 1000),
        "does not unpack": hostile_chunk(no_size, 1000),
        "cannot be decompressed": hostile_chunk(b"not zstd at all", 10),
        "within a frame": chunks.pack_chunk(chunks.DATA, b"\xff\xff\xff\xff", 1, 2),
        "begin with a hello": chunks.pack_chunk(chunks.DATA, b"", 1, 2),
        "not valid msgpack": chunks.pack_chunk(chunks.DATA, b"\1\0\0\0\xc1", 1, 2),
        "newer gpuprof": frames_chunk([replace(hello, version=99)]),
        "not defined": frames_chunk([hello, Readings(u64.astype("u4"), u64, u64, u64.astype(float))]),
    }
    good = frames_chunk([hello])
    path = tmp_path / "x"
    for words, chunk in hostile.items():
        path.write_bytes(chunks.file_header() + good + chunk + good)
        opened = read_snapshot(path)
        assert opened.damage is not None
        assert words in opened.damage, words
        path.write_bytes(chunks.file_header() + chunk)
        with pytest.raises(FileError):
            read_snapshot(path)


def test_a_chunk_that_claims_to_be_larger_than_the_file(hello: Hello, tmp_path: Path) -> None:
    good = frames_chunk([hello])
    for stored in (1 << 20, 0xFFFF_FFFF):
        (tmp_path / "x").write_bytes(
            chunks.file_header() + good + hostile_chunk(b"x", 10, stored=stored) + good
        )
        opened = read_snapshot(tmp_path / "x")
        assert opened.damage is not None
        assert "larger than the file" in opened.damage


@pytest.mark.parametrize("index", [5, [1], [["a"] * 6], [[1] * 5], {"a": 1}])
def test_a_hostile_index_loses_nothing(snapshot: Path, index: Any) -> None:
    data = snapshot.read_bytes()[: offsets(snapshot)[5]]
    packed = chunks.pack_chunk(chunks.INDEX, msgpack.packb(index), 0, 0)
    snapshot.write_bytes(data + packed + chunks.trailer(len(data)))
    assert samples(read_snapshot(snapshot).history) == 5


def test_a_file_that_unpacks_to_more_than_is_allowed_is_shown_in_part(
    snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reader, "MAX_FILE_RAW_BYTES", 2000)
    opened = read_snapshot(snapshot)
    assert opened.damage is not None
    assert "unpacks to more" in opened.damage
    assert 0 < samples(opened.history) < 5


def test_kinds_of_chunks_of_a_later_version_are_skipped(snapshot: Path) -> None:
    data = snapshot.read_bytes()
    at = offsets(snapshot)[1]
    later = chunks.pack_chunk(ord("Z"), b"something", 1, 2)
    snapshot.write_bytes(data[:at] + later + data[at:])
    opened = read_snapshot(snapshot)
    assert opened.damage is None
    assert samples(opened.history) == 5


# ------------------------------------------------------------------------------------------- foreign, refused


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x89GPU", "was cut"),
        (chunks.FILE_MAGIC, "was cut"),
        (chunks.file_header(), "nothing in"),
        (b"\x89GPUPROF\n\x1a\n\n" + b"x" * 50, "damaged in a transfer"),
        (chunks.FILE_MAGIC + b"\2\0\0\0", "newer"),
        (b'{"traceEvents": []}', "not a gpuprof snapshot"),
        (b"\x1f\x8b" + b"x" * 50, "not a gpuprof snapshot"),
        (b"SQLite format 3\0", "not a gpuprof snapshot"),
        (b"\0" * 100, "not a gpuprof snapshot"),
    ],
)
def test_what_is_no_snapshot_says_so_with_a_next_step(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x\x1b[2J.gpuprof"
    path.write_bytes(content)
    with pytest.raises(FileError) as error:
        read_snapshot(path)
    assert words in error.value.message
    assert error.value.hint
    assert "\x1b" not in str(error.value)


def test_what_cannot_be_opened_says_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, words in [
        (tmp_path, "is a folder"),
        (tmp_path / "missing", "no file"),
        (tmp_path / "fifo", "not a regular file"),
        (Path("/dev/null"), "not a regular file"),
        (tmp_path / ("x" * 5000), "cannot open"),
    ]:
        with pytest.raises(FileError) as error:
            read_snapshot(path)
        assert words in error.value.message
    with pytest.raises(FileError):
        read_snapshot("a\0b")


def test_a_file_that_exists_is_not_overwritten_unless_told_to(hello: Hello, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"mine")
    with pytest.raises(FileError, match="exists already"):
        SnapshotWriter(path, hello)
    assert path.read_bytes() == b"mine"
    with SnapshotWriter(path, hello, force=True):
        pass
    assert path.stat().st_mode & 0o777 == 0o600
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileError):
        SnapshotWriter(link, hello, force=True)
    assert not (tmp_path / "elsewhere").exists()
    for bad in (tmp_path / "no" / "folder", tmp_path, "a\0b"):
        with pytest.raises(FileError):
            SnapshotWriter(bad, hello, force=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_regular_file_is_not_written_to(tmp_path: Path, overwrite: bool) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("elsewhere")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    for path, what in [
        ("/dev/full", "a device"),
        ("/dev/null", "a device"),
        (str(tmp_path), "a folder"),
        (str(tmp_path / "fifo"), "a pipe"),
        (str(tmp_path / "socket"), "a socket"),
        (str(tmp_path / "link"), "a symbolic link"),
    ]:
        with pytest.raises(FileError) as error:
            new_file.create(path, overwrite=overwrite, instead="--force")
        assert f"is {what}" in error.value.message
        assert "regular file" in error.value.hint
        assert "--force" not in str(error.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["fifo", "link", "socket"]


def test_a_descriptor_is_called_by_the_name_that_it_has(hello: Hello) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(FileError, match=r"cannot write run\.gpuprof: no space"):
        SnapshotWriter(fd, hello, name="run.gpuprof")
    os.close(fd)


def test_a_full_disk_keeps_what_was_written(
    planted: Any, row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "CHUNK_NS", 10**9)
    history = small(planted, row)
    path = tmp_path / "x"
    writer = SnapshotWriter(path, history.hello)
    room = 1200  # bytes: two chunks and a part of the third
    real_write = os.write

    def write(fd: int, data: Any) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real_write(fd, data[: min(room, 100)])
        room -= done
        return done

    monkeypatch.setattr(file.os, "write", write)
    with pytest.raises(FileError) as error:
        writer.write(history.frames_between(*history.span))
    monkeypatch.undo()
    assert "no space is left" in error.value.message
    kept = samples(read_snapshot(path).history)
    assert kept >= 1
    assert error.value.hint.startswith(f"The first {kept:.1f} s are in the file")
    writer.close()  # does not raise again
    with pytest.raises(FileError):
        writer.write([])


def test_a_device_that_is_full_from_the_start(hello: Hello) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(FileError, match="no space is left"):
        SnapshotWriter(fd, hello)
    os.close(fd)


def test_a_stream_that_contradicts_itself_is_not_written(hello: Hello, tmp_path: Path) -> None:
    u64 = np.array([1], np.uint64)
    writer = SnapshotWriter(tmp_path / "x", hello)
    with pytest.raises(FrameError):
        writer.write([hello, Readings(u64.astype("u4"), u64, u64, u64.astype(float))])
    writer.close()
    assert read_snapshot(tmp_path / "x").damage is None


def test_rows_far_apart_do_not_make_a_chunk_for_each_ten_seconds_between(
    hello: Hello, tmp_path: Path
) -> None:
    history = History(hello, max_age_ns=None)
    series = history.series("temp_c", gpu="G")
    history.add_readings([series] * 3, [0, 5, 1 << 61], [7, 5, 1 << 61], [1.0, 2.0, 3.0])
    with SnapshotWriter(tmp_path / "x", hello) as writer:
        writer.write(history.frames_between(0, 1 << 62))
    opened = read_snapshot(tmp_path / "x")
    assert opened.damage is None
    assert readings_of(opened.history) == readings_of(history)
    assert writer.bytes_written < 2000
