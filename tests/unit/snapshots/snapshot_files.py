"""Snapshot files as the tests make and look at them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

from gpuprof.snapshots import chunks, file
from gpuprof.snapshots.frames import Frame, Query
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
