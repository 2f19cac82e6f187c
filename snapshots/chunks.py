"""The layout of a .gpuprof file, and one chunk of it to and from bytes.

    file     = header, span chunk, chunk …, index chunk, trailer
    header   = b"\\x89GPUPROF\\r\\n\\x1a\\n", u16 version, u16 0
    chunk    = b"\\xf6GPCHUNK", u8 kind, u8 encoding, u16 0, u32 stored bytes, u32 raw bytes, u64 start_ns,
               u64 end_ns, u32 crc of the stored body, u32 crc of the chunk header before it, stored body
    trailer  = b"\\xf6GPTRAIL", u64 offset of the index chunk, u32 crc of those 16 bytes

All numbers are little-endian, a crc is CRC-32 (zlib). `kind` is D (data), I (index) or S (span), `encoding`
1: the body is one zstd frame. The span chunk says from when to when the whole file is; its times are 0 until
the file is closed, and are then written over, so that a file that was cut is known from one whose recorder
was killed, and how much of it is missing; older files have none. Its body says nothing.

The raw body of a data chunk is frames as on the wire (u32 length, msgpack map), beginning with a hello: every
chunk is self-contained, with its own compact generation of intern tables, so that any chunk can be lost
without the others. [start_ns, end_ns) is the time in which its rows end; but that of the first chunk begins
with the recording and that of the last one ends with it, whatever rows there are, so that a quiet recording
is as long as it was; the last chunk may have no rows for that. (What a killed recorder leaves ends with its
last row; older files go from row to row.) A reader believes it up to ten seconds away from the rows
(recorded_span.py). The raw body of the index is a msgpack list of [offset, stored bytes, start_ns, end_ns,
samples, readings, GPU work, waits, ranges] per data chunk; a reader passes over what later versions add.

Columns are stored so that they compress: as differences of neighbours (modulo 2^bits), then byte plane by
byte plane (all lowest bytes first), F64 as its bit pattern. Samples are ordered by CPU and time, readings by
series and time, because neighbours then differ least; the reader puts them back in the order of time. GPU
work and waits are stored as chunk_windows.py says. The compressor ends a block of its own every 16 KiB, so
that planes that are hardly alike do not share one code.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zstandard

from gpuprof.snapshots import chunk_windows, codec
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import Frame, Readings, Samples

FILE_MAGIC = b"\x89GPUPROF\r\n\x1a\n"
FILE_VERSION = 1
FILE_HEADER = struct.Struct("<12sHH")
MARKER = b"\xf6GPCHUNK"
TRAILER_MARKER = b"\xf6GPTRAIL"
TRAILER = struct.Struct("<8sQI")
DATA, INDEX, SPAN = ord("D"), ord("I"), ord("S")
ZSTD = 1
MAX_RAW_BYTES = 64 << 20  # of one chunk, unpacked
_HEADER = struct.Struct("<8sBBHIIQQI")
HEADER_BYTES = _HEADER.size + 4
_LENGTH = struct.Struct("<I")
_LEVEL = 12
_BLOCK_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """What stands before the body of a chunk; times in ns."""

    kind: int
    encoding: int
    stored_bytes: int
    raw_bytes: int
    start_ns: int
    end_ns: int
    crc: int


def file_header() -> bytes:
    """Return the first bytes of a file."""
    return FILE_HEADER.pack(FILE_MAGIC, FILE_VERSION, 0)


def span_chunk(start_ns: int = 0, end_ns: int = 0) -> bytes:
    """Return the chunk after the header; its length is always the same."""
    return pack_chunk(SPAN, b"span", start_ns, end_ns)


def trailer(index_offset: int) -> bytes:
    """Return the last bytes of a file that was closed."""
    body = TRAILER.pack(TRAILER_MARKER, index_offset, 0)[:-4]
    return body + _LENGTH.pack(zlib.crc32(body))


def parse_trailer(data: bytes) -> int | None:
    """Return the offset of the index from the last bytes of a file, None when they are no trailer."""
    if len(data) != TRAILER.size:
        return None
    marker, offset, crc = TRAILER.unpack(data)
    return int(offset) if marker == TRAILER_MARKER and crc == zlib.crc32(data[:-4]) else None


def pack_chunk(kind: int, raw: bytes, start_ns: int, end_ns: int) -> bytes:
    """Return a whole chunk around a raw body. ValueError when the body is larger than MAX_RAW_BYTES."""
    if len(raw) > MAX_RAW_BYTES:
        raise ValueError(f"a chunk of {len(raw)} bytes is too large")
    body = _compressed(raw)
    head = _HEADER.pack(MARKER, kind, ZSTD, 0, len(body), len(raw), start_ns, end_ns, zlib.crc32(body))
    return head + _LENGTH.pack(zlib.crc32(head)) + body


def _compressed(raw: bytes) -> bytes:
    packer = zstandard.ZstdCompressor(level=_LEVEL).compressobj(size=len(raw))
    parts: list[bytes] = []
    for at in range(0, len(raw), _BLOCK_BYTES):
        parts.append(packer.compress(raw[at : at + _BLOCK_BYTES]))
        parts.append(packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    parts.append(packer.flush())
    return b"".join(parts)


def parse_header(data: bytes) -> ChunkHeader | None:
    """Return the chunk header in `data` (HEADER_BYTES), None when it is none or damaged."""
    if len(data) != HEADER_BYTES or not data.startswith(MARKER):
        return None
    if _LENGTH.unpack(data[-4:])[0] != zlib.crc32(data[:-4]):
        return None
    _, kind, encoding, _, stored, raw, start_ns, end_ns, crc = _HEADER.unpack(data[:-4])
    return ChunkHeader(kind, encoding, stored, raw, start_ns, end_ns, crc)


def unpack_body(header: ChunkHeader, stored: bytes) -> bytes:
    """Return the raw body of a chunk. FrameError when it is damaged or claims more than it may."""
    if len(stored) != header.stored_bytes or zlib.crc32(stored) != header.crc:
        raise FrameError("its checksum is wrong")
    if header.encoding != ZSTD:
        raise FrameError("it is encoded in a way that this version does not know")
    if header.raw_bytes > MAX_RAW_BYTES:
        raise FrameError(f"it claims to unpack to {header.raw_bytes >> 20} MiB")
    try:
        # the size in the zstd frame itself is what would be allocated, so it has to be the one that was
        # allowed
        if zstandard.get_frame_parameters(stored).content_size != header.raw_bytes:
            raise FrameError("it does not unpack to the size it claims")
        raw = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(stored)
    except (zstandard.ZstdError, MemoryError) as error:
        raise FrameError("it cannot be decompressed") from error
    return bytes(raw)


def pack_frames(frames: Iterable[Frame]) -> bytes:
    """Return frames as the raw body of a data chunk."""
    parts: list[bytes] = []
    for frame in chunk_windows.merged(frames):
        body = codec.encode(_ordered(frame), _planes_of)
        parts += (_LENGTH.pack(len(body)), body)
    return b"".join(parts)


def unpack_frames(raw: bytes) -> Iterator[Frame]:
    """Yield the frames in the raw body of a data chunk, rows in the order of time. FrameError when it is
    damaged.
    """
    at = 0
    while at < len(raw):
        end = at + _LENGTH.size
        if end > len(raw):
            raise FrameError("it ends within a frame")
        at, end = end, end + _LENGTH.unpack_from(raw, at)[0]
        if end > len(raw):
            raise FrameError("it ends within a frame")
        frame = codec.decode(raw[at:end], _column_of_planes)
        if frame is not None:
            yield _in_time(frame)
        at = end


def _ordered(frame: Frame) -> Frame:
    if isinstance(frame, Samples):
        return _taken(frame, np.lexsort((frame.time_ns, frame.cpu)))
    if isinstance(frame, Readings):
        return _taken(frame, np.lexsort((frame.end_ns, frame.series)))
    if isinstance(frame, chunk_windows.Windows):
        return chunk_windows.packed(frame)
    return frame


def _in_time(frame: Frame) -> Frame:
    if isinstance(frame, Samples):
        return _taken(frame, np.argsort(frame.time_ns, kind="stable"))
    if isinstance(frame, Readings):
        return _taken(frame, np.argsort(frame.end_ns, kind="stable"))
    if isinstance(frame, chunk_windows.Windows):
        return chunk_windows.unpacked(frame)
    return frame


def _taken(frame: Samples | Readings, order: Array) -> Frame:
    if isinstance(frame, Samples):
        return replace(
            frame,
            time_ns=frame.time_ns[order],
            cpu=frame.cpu[order],
            thread=frame.thread[order],
            stack=frame.stack[order],
        )
    return Readings(frame.series[order], frame.start_ns[order], frame.end_ns[order], frame.value[order])


def _planes_of(column: Array, dtype: np.dtype[Any]) -> bytes:
    """Return a column as byte planes of the differences of neighbours."""
    bits = np.ascontiguousarray(column, dtype).view(f"<u{dtype.itemsize}")
    steps = bits.copy()
    steps[1:] -= bits[:-1]
    return steps.view(np.uint8).reshape(-1, dtype.itemsize).T.tobytes()


def _column_of_planes(data: bytes, dtype: np.dtype[Any]) -> Array:
    """Return the column of which `data` are the planes. FrameError when it is not a whole number of
    elements.
    """
    planes = codec.column_of_bytes(data, dtype).view(np.uint8).reshape(dtype.itemsize, -1)
    steps = np.ascontiguousarray(planes.T).reshape(-1).view(f"<u{dtype.itemsize}")
    column: Array = np.cumsum(steps, dtype=steps.dtype).view(dtype)
    return column
