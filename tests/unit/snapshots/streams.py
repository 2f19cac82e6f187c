"""What tests of streams between histories have in common: a history on the other side, and readings."""

from __future__ import annotations

from gpuprof.snapshots import wire
from gpuprof.snapshots.frames import (
    MAGIC,
    Frame,
    Hello,
)
from gpuprof.snapshots.history import History


def over_the_wire(frames: list[Frame]) -> list[Frame]:
    return wire.Decoder().feed(MAGIC + b"".join(map(wire.pack, frames)))


def ingested(frames: list[Frame], hello: Hello) -> History:
    history = History(hello, max_bytes=1 << 30, max_age_ns=None)
    for frame in over_the_wire(frames):
        history.ingest(frame)
    return history


def readings_of(history: History) -> list[tuple[str, str | None, int, int, float]]:
    defs, columns = history.readings_between(0, 1 << 60)
    rows = zip(*(columns[name].tolist() for name in ("series", "start_ns", "end_ns", "value")), strict=True)
    return sorted((defs[s].metric, defs[s].gpu, start, end, value) for s, start, end, value in rows)


def fill_readings(history: History, count: int) -> None:
    ids = [
        history.series("power_w", gpu="G0"),
        history.series("proc_cpu_ns", pid=3),
        history.series("temp_c", gpu="G1"),
    ]
    for number in range(count):
        at = 10**12 + number * 1000
        history.add_readings(ids, [at, at + 5, at], [at + 1000, at + 5, at], [number, number * 2.0, 50.5])
