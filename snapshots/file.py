"""Snapshot files: written chunk by chunk so that a torn tail loses only the tail, and read back whatever is
left of one.

The layout is described in chunks.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from types import TracebackType
from typing import NoReturn

import msgpack
import numpy as np

from gpuprof.snapshots import chunks
from gpuprof.snapshots.columns import RowLog
from gpuprof.snapshots.errors import FileError
from gpuprof.snapshots.file_reader import Opened, read_snapshot
from gpuprof.snapshots.frames import Frame, GpuWork, Hello, Readings, Samples, Waits
from gpuprof.snapshots.history import History
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.work_frames import Ranges

__all__ = ["Opened", "SnapshotWriter", "read_snapshot"]

CHUNK_NS = 10 * 10**9  # what a recorder that is killed can lose; shorter chunks compress worse
CHUNK_BYTES = 16 << 20  # of rows in memory, before they are compressed
_BUFFER_BYTES = 1 << 30
_MAX_CHUNKS_AT_ONCE = 1000


class SnapshotWriter:
    """Writes frames to a snapshot file, in chunks of about ten seconds. Not thread-safe.

    `target` is a path, or a descriptor that the caller has opened and will close. A path must not exist yet,
    unless
    `force` is set, and is never followed through a symbolic link. FileError when the file cannot be created
    or written; what was written before stays readable, and the message says how much that is.
    """

    def __init__(self, target: int | str | os.PathLike[str], hello: Hello, *, force: bool = False) -> None:
        self._own = not isinstance(target, int)
        self.name = f"descriptor {target}" if isinstance(target, int) else os.fspath(target)
        self._fd = target if isinstance(target, int) else _create(os.fspath(target), force)
        self._history = History(hello, max_bytes=_BUFFER_BYTES, max_age_ns=None)
        self._offset = 0
        self._index: list[tuple[int, ...]] = []
        self._closed = False
        self._write_all(chunks.file_header())

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

    def write(self, frames: Iterable[Frame]) -> None:
        """Take frames of one stream, in its order, and write the chunks that they complete.

        FrameError for frames that contradict each other, FileError when writing fails.
        """
        if self._closed:
            raise FileError(f"{_shown(self.name)} is already closed")
        history = self._history
        for frame in frames:
            history.ingest(frame)
            if sum(log.nbytes for log in self._logs) >= CHUNK_BYTES:
                self._flush()
        start, end = self._covered()
        if end - start >= CHUNK_NS:
            self._flush()

    def close(self) -> None:
        """Write what is left, the index and the trailer. Closing twice does nothing. FileError when writing
        fails.
        """
        if self._closed:
            return
        self._flush(last=True)
        self._finish()
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

    @property
    def _logs(self) -> tuple[RowLog, ...]:
        history = self._history
        return history.samples, history.gpu_work, history.waits, history.ranges, history.readings

    def _covered(self) -> tuple[int, int]:
        """Return the range [start, end) in which the rows in memory end; empty when there are none."""
        found = [ends for log in self._logs if (ends := log.ends()) is not None]
        if not found:
            return self._history.hello.mono_ns, self._history.hello.mono_ns
        return min(start for start, _ in found), max(end for _, end in found) + 1

    def _flush(self, *, last: bool = False) -> None:
        """Write the rows in memory, about ten seconds to a chunk."""
        history = self._history
        start, end = self._covered()
        if start == end:
            if last and not self._index:
                self._write_chunk(start, end)
            return
        count = min(max(round((end - start) / CHUNK_NS), 1), _MAX_CHUNKS_AT_ONCE)
        width = max((end - start) // count, 1)
        times = [rows.columns["time_ns"] for _, rows in history.samples_between(start, end)]
        times += [rows.columns["end_ns"] for _, rows in history.gpu_work_between(start - 1, end)]
        times += [rows.columns["end_ns"] for _, rows in history.waits_between(start - 1, end)]
        times += [rows.columns["end_ns"] for _, rows in history.ranges_between(start - 1, end)]
        times.append(history.readings_between(start - 1, end)[1]["end_ns"])
        slots = {
            int(slot) for time in times for slot in np.unique((time - np.uint64(start)) // np.uint64(width))
        }
        for slot in sorted({min(slot, count - 1) for slot in slots}):
            low = start + slot * width
            self._write_chunk(low, end if slot == count - 1 else low + width)
        history.clear_rows()

    def _write_chunk(self, start_ns: int, end_ns: int) -> None:
        frames = list(self._history.frames_between(start_ns, end_ns, by_end=True))
        samples = sum(len(frame.time_ns) for frame in frames if isinstance(frame, Samples))
        readings = sum(len(frame.value) for frame in frames if isinstance(frame, Readings))
        work = sum(len(frame.start_ns) for frame in frames if isinstance(frame, GpuWork))
        waits = sum(len(frame.start_ns) for frame in frames if isinstance(frame, Waits))
        ranges = sum(len(frame.start_ns) for frame in frames if isinstance(frame, Ranges))
        if not (samples or readings or work or waits or ranges) and end_ns > start_ns:
            return
        chunk = chunks.pack_chunk(chunks.DATA, chunks.pack_frames(frames), start_ns, end_ns)
        offset = self._offset
        self._write_all(chunk)
        self._index.append((offset, len(chunk), start_ns, end_ns, samples, readings, work, waits, ranges))

    def _finish(self) -> None:
        offset = self._offset
        index = chunks.pack_chunk(chunks.INDEX, msgpack.packb(self._index), 0, 0)
        self._write_all(index + chunks.trailer(offset))

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
        if self._own:
            with contextlib.suppress(OSError):
                os.close(self._fd)


_REASONS = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than is allowed",
    errno.EPIPE: "the reader of the pipe has gone",
}


def _create(path: str, force: bool) -> int:
    """Create a new file that only its owner can read: command lines of processes are in it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError, ValueError):  # creating it below says what is wrong
        if force and stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError as error:
        raise FileError(f"{_shown(path)} exists already", "Give another name, or remove it first.") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name cannot be a file name"
        hint = "Does the folder exist?" if isinstance(error, FileNotFoundError) else ""
        raise FileError(f"cannot create {_shown(path)}: {reason}", hint) from error


def _shown(path: str) -> str:
    return clean(path, 200)
