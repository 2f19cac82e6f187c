"""Frames on a stream that comes in pieces, with other bytes before it, or broken."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from gpuprof.snapshots import codec
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import MAGIC, MAX_FRAME_BYTES, Clock, Frame, Hello, Readings, StringDefs
from gpuprof.snapshots.wire import MAX_PREAMBLE_BYTES, Decoder, pack


def kinds(frames: list[Frame]) -> list[str]:
    return [frame.KIND for frame in frames]


def test_a_stream_in_pieces_of_every_size(hello: Hello) -> None:
    numbers = np.arange(5, dtype=np.uint64)
    readings = Readings(numbers.astype(np.uint32), numbers, numbers, numbers.astype(float))
    stream = MAGIC + pack(hello) + pack(Clock(1, 2)) + pack(readings)
    for size in (1, 2, 3, 7, 64, len(stream)):
        decoder = Decoder()
        frames: list[Frame] = []
        for at in range(0, len(stream), size):
            frames += decoder.feed(stream[at : at + size])
        assert kinds(frames) == ["hello", "clock", "readings"]
        assert decoder.pending_bytes == 0


def test_an_unknown_kind_between_known_ones_is_left_out(hello: Hello) -> None:
    body = b"\x81\xa1k\xa5later"
    stream = MAGIC + pack(hello) + struct.pack("<I", len(body)) + body + pack(Clock(1, 2))
    assert kinds(Decoder().feed(stream)) == ["hello", "clock"]


def test_a_banner_before_the_magic_is_skipped_and_kept(hello: Hello) -> None:
    banner = b"Welcome to node17!\r\nGPUPROF\n"
    stream = banner + MAGIC + pack(hello)
    for size in (1, 5, len(stream)):
        decoder = Decoder(skip_preamble=True)
        frames = [
            frame for at in range(0, len(stream), size) for frame in decoder.feed(stream[at : at + size])
        ]
        assert kinds(frames) == ["hello"]
        assert decoder.preamble == banner
    decoder = Decoder(skip_preamble=True)
    assert decoder.feed(b"x" * MAX_PREAMBLE_BYTES + MAGIC) == []
    assert decoder.started


def test_endless_output_before_the_magic_is_an_error() -> None:
    decoder = Decoder(skip_preamble=True)
    for _ in range(32):
        decoder.feed(b"y\n" * 1024)
    with pytest.raises(FrameError):
        decoder.feed(b"y\n" * 1024)


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1", b"\0", b"GPUPROF2", b"SSH-2.0"])
def test_another_protocol_is_an_error_at_once(start: bytes) -> None:
    with pytest.raises(FrameError):
        Decoder().feed(start)


def test_a_frame_that_claims_too_much_is_an_error_before_it_arrives() -> None:
    with pytest.raises(FrameError):
        Decoder().feed(MAGIC + struct.pack("<I", MAX_FRAME_BYTES + 1))
    with pytest.raises(FrameError):
        Decoder(max_frame_bytes=100).feed(MAGIC + struct.pack("<I", 101))


def test_an_error_stays() -> None:
    decoder = Decoder()
    with pytest.raises(FrameError):
        decoder.feed(MAGIC + struct.pack("<I", 1) + b"\xc1")
    with pytest.raises(FrameError):
        decoder.feed(pack(Clock(1, 2)))


def test_a_frame_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(FrameError):
        codec.encode(StringDefs(0, 1, ["x" * 60_000] * 600))
