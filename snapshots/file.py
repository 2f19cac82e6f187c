"""Snapshot files: written chunk by chunk so that a torn tail loses only the tail, and read back whatever is
left of one.

The layout is described in chunks.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from types import TracebackType
from typing import NoReturn

import msgpack
import numpy as np

from gpuprof.snapshots import chunks, file_lock
from gpuprof.snapshots.errors import FileError
from gpuprof.snapshots.file_reader import Opened, read_snapshot
from gpuprof.snapshots.frames import Frame, GpuWork, Hello, Readings, Samples, Status, Waits
from gpuprof.snapshots.history import History
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.new_file import create
from gpuprof.snapshots.recorded_span import span_of
from gpuprof.snapshots.work_frames import Ranges

__all__ = ["Opened", "SnapshotWriter", "read_snapshot"]

CHUNK_NS = 10 * 10**9  # what a recorder that is killed can lose; shorter chunks compress worse
FIRST_CHUNK_NS = 10**9  # of a recording, each further one twice as long: what is young is not lost whole
CHUNK_BYTES = 16 << 20  # of rows in memory, before they are compressed
_BUFFER_BYTES = 1 << 30
_MAX_CHUNKS_AT_ONCE = 1000
_MAX_U64 = (1 << 64) - 1
_SOME = 4  # so that one damaged chunk does not take all of a short file


class SnapshotWriter:
    """Writes frames to a snapshot file, in chunks of one second at first and about ten later. Not
    thread-safe.

    `target` is a path, or a descriptor that the caller has opened and will close, and `name` then what
    messages call it. A path must not exist yet, unless `force` is set, and is never followed through a
    symbolic link. FileError when the file cannot be created or written; what was written before stays
    readable, and the message says how much that is. While it is written it is locked (file_lock.py).
    """

    def __init__(
        self,
        target: int | str | os.PathLike[str],
        hello: Hello,
        *,
        force: bool = False,
        name: str | None = None,
    ) -> None:
        self._own = not isinstance(target, int)
        self.name = name or (f"descriptor {target}" if isinstance(target, int) else os.fspath(target))
        self._fd = target if isinstance(target, int) else create(os.fspath(target), overwrite=force)
        self._history = History(hello, max_bytes=_BUFFER_BYTES, max_age_ns=None)
        self._offset = 0
        self._index: list[tuple[int, ...]] = []
        self._chunk_ns = min(FIRST_CHUNK_NS, CHUNK_NS)  # length of the next chunk
        self._closed = False
        self._start_ns: int | None = None  # of the recording, where that is known
        self._end_ns: int | None = None
        self._told: Status | None = None  # the last status that is in the file
        self._rows: tuple[int, int] | None = None  # [start, end) of all rows in the file
        file_lock.mark_written(self._fd)
        self._write_all(chunks.file_header() + chunks.span_chunk())

    @property
    def span_ns(self) -> int:
        """Length of what is in the file so far, as whoever reads it finds it (History.span)."""
        start, end = self._span()
        return end - start

    @property
    def bytes_written(self) -> int:
        """Length of the file so far."""
        return self._offset

    @property
    def rows_written(self) -> tuple[int, int]:
        """Number of samples and of readings in the file so far."""
        return sum(entry[4] for entry in self._index), sum(entry[5] for entry in self._index)

    @property
    def gpu_rows_written(self) -> int:
        """Number of rows of GPU work in the file so far."""
        return sum(entry[6] for entry in self._index)

    @property
    def wait_rows_written(self) -> int:
        """Number of waits in the file so far."""
        return sum(entry[7] for entry in self._index)

    def recorded(self, start_ns: int, end_ns: int | None = None) -> None:
        """Say from when to when it is recorded, on the clock of the stream, whatever rows come of it.

        `end_ns`: None while it goes on. The beginning goes into the first chunk and the end into the last,
        as they are known when these are written; without them a file is as long as its rows are.
        """
        self._start_ns = min(max(start_ns, 0), _MAX_U64)
        self._end_ns = None if end_ns is None else min(max(end_ns, self._start_ns), _MAX_U64)

    def write(self, frames: Iterable[Frame]) -> None:
        """Take frames of one stream, in its order, and write the chunks that they complete.

        FrameError for frames that contradict each other, FileError when writing fails.
        """
        if self._closed:
            raise FileError(f"{_shown(self.name)} is already closed")
        history = self._history
        for frame in frames:
            history.ingest(frame)
            if sum(log.nbytes for log in self._history.logs) >= CHUNK_BYTES:
                self._flush()
        start, end = self._covered()
        if end - start >= self._chunk_ns:
            self._flush()

    def close(self) -> None:
        """Write what is left, the index and the trailer. Closing twice does nothing. FileError when writing
        fails.
        """
        if self._closed:
            return
        self._flush(last=True)
        self._finish()
        self._write_span()
        try:
            os.fsync(self._fd)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.EROFS, errno.ENOTSUP}:  # a pipe or a device
                self._fail(error)
        self._release()

    def __enter__(self) -> SnapshotWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ----------------------------------------------------------------------------------------------- internal

    def _covered(self) -> tuple[int, int]:
        """Return the range [start, end) in which the rows in memory end; empty when there are none."""
        found = [ends for log in self._history.logs if (ends := log.ends()) is not None]
        if not found:
            return self._history.hello.mono_ns, self._history.hello.mono_ns
        return min(start for start, _ in found), max(end for _, end in found) + 1

    def _flush(self, *, last: bool = False) -> None:
        """Write the rows in memory, in chunks that grow to about ten seconds."""
        history = self._history
        start, end = self._covered()
        if start == end:
            if last:
                self._write_end_without_rows()
            return
        edges = np.array(self._edges(start, end), np.uint64)
        times = [rows.columns["time_ns"] for _, rows in history.samples_between(start, end)]
        times += [rows.columns["end_ns"] for _, rows in history.gpu_work_between(start - 1, end)]
        times += [rows.columns["end_ns"] for _, rows in history.waits_between(start - 1, end)]
        times += [rows.columns["end_ns"] for _, rows in history.ranges_between(start - 1, end)]
        times.append(history.readings_between(start - 1, end)[1]["end_ns"])
        found = {int(slot) for time in times for slot in np.unique(np.searchsorted(edges, time, "right"))}
        slots = sorted(found.intersection(range(1, len(edges))))
        for slot in slots:
            low, high = int(edges[slot - 1]), int(edges[slot])
            if not self._index and self._start_ns is not None:
                low = min(low, self._start_ns)
            if last and slot == slots[-1] and self._end_ns is not None:
                high = max(high, self._end_ns)
            self._write_chunk(low, high)
        history.clear_rows()

    def _write_end_without_rows(self) -> None:
        """Write a chunk without rows: of a recording that has none, or from its last row to its end."""
        if self._index:
            start, end = max(entry[3] for entry in self._index), self._end_ns
            if end is None or end <= start:
                if self._history.status is self._told:
                    return
                end = start  # what was said last, such as why the end lacks something, is in the file, too
        else:
            start = self._history.hello.mono_ns if self._start_ns is None else self._start_ns
            end = max(self._end_ns or 0, start)
        self._write_chunk(start, end, even_empty=True)

    def _span(self) -> tuple[int, int]:
        """Return the range [start, end) of the file so far, as whoever reads it finds it."""
        start = min((entry[2] for entry in self._index), default=0)
        end = max((entry[3] for entry in self._index), default=0)
        hello_ns = self._history.hello.mono_ns
        return span_of(self._rows, (start, end)) or (hello_ns, hello_ns)

    def _edges(self, start: int, end: int) -> list[int]:
        """Return where the chunks of [start, end) begin, and `end`: one chunk of rows that come as time goes
        by, some of rows that come all at once, such as those of a history that is saved.
        """
        length, count = end - start, 1
        if length > 1.5 * self._chunk_ns:
            count = min(max(round(length / CHUNK_NS), 1), _MAX_CHUNKS_AT_ONCE)
            small = sum(log.nbytes for log in self._history.logs) < CHUNK_BYTES // 4
            if count == 1 and small and not self._index:
                count = min(_SOME, round(length / min(FIRST_CHUNK_NS, CHUNK_NS)))
        width = max(length // count, 1)
        self._chunk_ns = min(2 * self._chunk_ns, CHUNK_NS)
        return [*(start + width * number for number in range(count)), end]

    def _write_chunk(self, start_ns: int, end_ns: int, *, even_empty: bool = False) -> None:
        frames = list(self._history.frames_between(start_ns, end_ns, by_end=True))
        told = self._history.status
        samples = sum(len(frame.time_ns) for frame in frames if isinstance(frame, Samples))
        readings = sum(len(frame.value) for frame in frames if isinstance(frame, Readings))
        work = sum(len(frame.start_ns) for frame in frames if isinstance(frame, GpuWork))
        waits = sum(len(frame.start_ns) for frame in frames if isinstance(frame, Waits))
        ranges = sum(len(frame.start_ns) for frame in frames if isinstance(frame, Ranges))
        if not (samples or readings or work or waits or ranges or even_empty):
            return
        if self._end_ns is not None and end_ns == self._end_ns + 1:  # rows that were cut end with it
            end_ns = self._end_ns
        chunk = chunks.pack_chunk(chunks.DATA, chunks.pack_frames(frames), start_ns, end_ns)
        offset = self._offset
        self._write_all(chunk)
        self._told = told
        self._index.append((offset, len(chunk), start_ns, end_ns, samples, readings, work, waits, ranges))
        rows = [self._rows] if self._rows is not None else []
        rows += [extent for frame in frames if (extent := _extent(frame)) is not None]
        if rows:
            self._rows = min(low for low, _ in rows), max(high for _, high in rows)

    def _finish(self) -> None:
        offset = self._offset
        index = chunks.pack_chunk(chunks.INDEX, msgpack.packb(self._index), 0, 0)
        self._write_all(index + chunks.trailer(offset))

    def _write_span(self) -> None:
        """Write over the span chunk what the file holds now. A pipe has no place to go back to."""
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, chunks.span_chunk(*self._span()), chunks.FILE_HEADER.size)

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self._fail(error)
        self._offset += len(data)

    def _fail(self, error: OSError) -> NoReturn:
        """Leave the file as it was after the last whole chunk, and say what is kept."""
        with contextlib.suppress(OSError):  # of a pipe the torn end stays, and is skipped by the reader
            os.ftruncate(self._fd, self._offset)
        self._release()
        reason = _REASONS.get(error.errno or 0, error.strerror or "unknown error")
        if not self._index:
            raise FileError(f"cannot write {_shown(self.name)}: {reason}", "Nothing was kept.") from error
        seconds = (self._index[-1][3] - self._index[0][2]) / 1e9
        raise FileError(
            f"cannot write all of {_shown(self.name)}: {reason}",
            f"The first {seconds:.1f} s are in the file, and can be opened.",
        ) from error

    def _release(self) -> None:
        self._closed = True
        file_lock.mark_complete(self._fd)
        if self._own:
            with contextlib.suppress(OSError):
                os.close(self._fd)


_REASONS = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than is allowed",
    errno.EPIPE: "the reader of the pipe has gone",
}


def _extent(frame: Frame) -> tuple[int, int] | None:
    """Return the range [start, end) of the rows of a frame, None where it has none."""
    if isinstance(frame, Samples):
        start, end = frame.time_ns, frame.time_ns
    elif isinstance(frame, Readings | GpuWork | Waits | Ranges):
        start, end = frame.start_ns, frame.end_ns
    else:
        return None
    return (int(start.min()), int(end.max()) + 1) if len(start) else None


def _shown(path: str) -> str:
    return clean(path, 200)
