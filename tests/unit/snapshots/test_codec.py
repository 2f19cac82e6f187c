"""Frames to bodies and back, and bodies that are not frames."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import msgpack
import numpy as np
import pytest

from gpuprof.snapshots import codec
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import (
    ALL_FRAMES,
    NO_THREAD,
    Frame,
    GpuFacts,
    Gpus,
    GpuWork,
    Hello,
    ProcessDef,
    ProcessDefs,
    Query,
    Readings,
    Samples,
    SourceStatus,
    Status,
    StringDefs,
    Tree,
    Waits,
)


def readings(count: int = 3) -> Readings:
    numbers = np.arange(count)
    return Readings(numbers.astype(np.uint32), numbers.astype(np.uint64), numbers + 5, numbers * 0.5)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return bool(np.array_equal(left, right, equal_nan=left.dtype.kind == "f"))
    if isinstance(left, Frame):
        return type(left) is type(right) and all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in dataclasses.fields(left)
        )
    return bool(left == right)


def work(**more: Any) -> GpuWork:
    u32 = np.array([0, 1], np.uint32)
    return GpuWork(1, np.array([1, 2], np.uint64), np.array([3, 2], np.uint64), u32, u32, u32, u32, **more)


def frames(hello: Hello) -> list[Frame]:
    u32 = np.array([0, 1], np.uint32)
    return [
        hello,
        dataclasses.replace(hello, sudo_line="sudo /x/gpuprof-tui"),
        Gpus("580", None, [GpuFacts("G", 0, "H200", memory_total_bytes=141 << 30, temp_max_c=8.5)], ["G"]),
        Status(5, [SourceStatus("cpu", "ok", samples=9)], 1, 2, 3, 4, bpf_run_ns=7),
        ProcessDefs(2, 0, [ProcessDef(7, 70, "python3", "python3 x", "ada", 1000, 1, container_pid=3)]),
        StringDefs(0, 1, ["a", "é"]),
        readings(),
        readings(0),
        Samples(1, np.array([1, 2], np.uint64), np.array([0, 1], np.uint16), u32, u32),
        work(),
        Query(3, "cpu", -5, 10, pids=[1, 2], by_thread=True, min_fraction=0.5),
        Query(3, "gpu", 0, 10, gpus=["GPU-1", "é"]),
        Query(3, "idle", 0, 10, internals=False),
        Tree(1, "cpu", "samples", 0, 9, ["", "a"], u32, u32, u32, u32, u32, np.array([1, 2], np.uint8),
             np.array([0.5, 1]), np.array([1.5, 1]), truncated=4, hidden=17),
        Tree(1, "gpu", "ns", 0, 9, ["", "a"], u32, u32, u32, u32, u32, np.array([1, 2], np.uint8),
             np.array([0.5, 1]), np.array([1.5, 1]), estimated=np.array([0, 1], np.uint8),
             error=np.array([np.nan, 0.25])),
        work(weight=np.array([0, 2.5], np.float32)),
        work(bytes=np.array([0, 1 << 40], np.uint64)),
        Tree(1, "gpu", "ns", 0, 9, ["", "a"], u32, u32, u32, u32, u32, np.array([1, 2], np.uint8),
             np.array([0.5, 1]), np.array([1.5, 1]), bytes=np.array([8.5, 8.5])),
        Waits(1, np.array([1, 2], np.uint64), np.array([3, 2], np.uint64), u32, u32,
              np.array([NO_THREAD, 1], np.uint32), np.array([1, 3], np.float32), np.array([0, 2], np.uint8)),
    ]  # fmt: skip


def test_every_frame_comes_back_as_it_was(hello: Hello) -> None:
    for frame in frames(hello):
        assert same(frame, codec.decode(codec.encode(frame))), frame.KIND


def test_columns_are_read_only_little_endian_and_not_copied() -> None:
    body = codec.encode(readings())
    assert msgpack.unpackb(body)["end_ns"] == b"".join(n.to_bytes(8, "little") for n in (5, 6, 7))
    back = codec.decode(body)
    assert isinstance(back, Readings)
    assert back.end_ns.dtype == np.dtype("<u8")
    with pytest.raises(ValueError):
        back.end_ns[0] = 1


def test_a_later_column_is_sent_only_where_it_says_something_and_may_be_absent() -> None:
    body = codec.encode(work())
    assert "weight" not in msgpack.unpackb(body)  # as an older version wrote it
    back = codec.decode(body)
    assert isinstance(back, GpuWork)
    assert back.weight.tolist() == [1.0, 1.0]
    assert back.weight.dtype == np.dtype("<f4")
    data = msgpack.unpackb(codec.encode(work(weight=np.array([1, 2], np.float32))))
    assert data["weight"] == np.array([1, 2], "<f4").tobytes()
    for wrong in (b"", b"abcd", "1"):
        with pytest.raises(FrameError):
            codec.decode(msgpack.packb(data | {"weight": wrong}))


def test_unknown_kinds_and_fields_are_skipped(hello: Hello) -> None:
    assert codec.decode(msgpack.packb({"k": "of-a-later-version", "x": 1})) is None
    data = msgpack.unpackb(codec.encode(hello)) | {"later": [1, {"a": b""}]}
    assert same(codec.decode(msgpack.packb(data)), hello)


@pytest.mark.parametrize(
    "change",
    [
        {"host": 5}, {"host": None}, {"host": b"x"}, {"cpu_count": "4"}, {"cpu_count": True},
        {"cpu_count": 4.5}, {"mono_ns": 1 << 63}, {"privileged": 1}, {"sudo_line": 3}, {"k": 5}, {"k": None},
    ],
)  # fmt: skip
def test_an_ill_typed_field_is_an_error(hello: Hello, change: dict[str, Any]) -> None:
    data = msgpack.unpackb(codec.encode(hello)) | change
    with pytest.raises(FrameError):
        codec.decode(msgpack.packb(data))


def test_a_missing_field_is_an_error_unless_it_has_a_default(hello: Hello) -> None:
    data = msgpack.unpackb(codec.encode(hello))
    for name in data:
        if name not in {"k", "sudo_line"}:
            with pytest.raises(FrameError):
                codec.decode(msgpack.packb({key: value for key, value in data.items() if key != name}))


def test_unequal_or_odd_columns_are_an_error() -> None:
    data = msgpack.unpackb(codec.encode(readings()))
    for change in (
        {"value": data["value"][:-8]},
        {"value": data["value"][:-1]},
        {"value": [1.0]},
        {"value": None},
    ):
        with pytest.raises(FrameError):
            codec.decode(msgpack.packb(data | change))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xc1", b"\x90", b"\xff", b"\x81", b"\x80\x80", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x81\xa1k\xc4\x05hello", msgpack.packb({5: 1}),
        msgpack.packb({"k": "strings", "x": [[]] * 300_000}), msgpack.packb(msgpack.ExtType(5, b"x")),
        msgpack.packb({"k": "x" * 100_000}),
    ],
)  # fmt: skip
def test_what_is_no_frame_is_a_frame_error(body: bytes) -> None:
    with pytest.raises(FrameError):
        codec.decode(body)


def test_nested_arrays_do_not_cost_more_than_the_cap() -> None:
    body = msgpack.packb({"k": "strings", "x": [[[] for _ in range(1000)] for _ in range(1000)]})
    with pytest.raises(FrameError, match="too many"):
        codec.decode(body)


def test_strings_are_made_safe_when_decoded(hello: Hello) -> None:
    back = codec.decode(codec.encode(dataclasses.replace(hello, host="a\x1b[2Jb", boot_id="\udcff")))
    assert isinstance(back, Hello)
    assert back.host == "a␛[2Jb"
    assert "\udcff" not in back.boot_id


def test_random_damage_gives_frames_or_frame_errors(hello: Hello) -> None:
    rng = random.Random(11)
    for frame in frames(hello):
        body = codec.encode(frame)
        for _ in range(200):
            damaged = bytearray(body)
            for _ in range(rng.randrange(1, 4)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            try:
                codec.decode(bytes(damaged))
            except FrameError:
                pass


def test_every_frame_class_can_be_sent() -> None:
    assert len({cls.KIND for cls in ALL_FRAMES}) == len(ALL_FRAMES)
    assert {cls.KIND for cls in Frame.__subclasses__()} == {cls.KIND for cls in ALL_FRAMES}
