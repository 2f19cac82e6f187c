"""Reads a snapshot file back into a history: all of it, or whatever is left of it with a sentence about what
is not.

Nothing in the file is believed: sizes are bounded before anything is allocated, every chunk is checked, and
after a damaged one reading goes on at the next chunk marker.
"""

from __future__ import annotations

import itertools
import os
import stat
import time
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgpack

from gpuprof.snapshots import chunks
from gpuprof.snapshots.chunks import ChunkHeader
from gpuprof.snapshots.errors import FileError, FrameError
from gpuprof.snapshots.file_damage import Findings, damage, nothing_left
from gpuprof.snapshots.file_lock import is_written
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.gaps import MAX_NS
from gpuprof.snapshots.history import History
from gpuprof.snapshots.ingest import check_version
from gpuprof.snapshots.names import clean

MAX_FILE_RAW_BYTES = 1 << 30  # of all chunks together, unpacked
MAX_CHUNKS = 1 << 20
_HISTORY_BYTES = 4 << 30  # a file is shown whole; MAX_FILE_RAW_BYTES is what bounds it
_SCAN_BYTES = 1 << 20
_NO_CHUNK_BYTES = chunks.FILE_HEADER.size  # of a file that has no chunk
_RECENT_SECONDS = 15.0  # the longest time between two chunks, and some more

_FOREIGN = (
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"PERFILE2", "data of perf record"),
    (b"SQLite format 3", "an SQLite database"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x7fELF", "a program"),
    (b"{", "JSON"),
    (b"[", "JSON"),
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A snapshot: its history, and in words what of it could not be read (None: nothing is missing), and that
    it is still being written (None: it is not).
    """

    history: History
    damage: str | None
    growing: str | None = None


def read_snapshot(path: str | os.PathLike[str]) -> Opened:
    """Read a snapshot file, or what there is of one that is still being written. FileError when it is not one
    or nothing in it can be read; damage is reported in words.
    """
    name = clean(os.fspath(path), 200)
    with _opened(os.fspath(path), name) as file:
        locked = is_written(file.fileno())  # before it is read: what comes later is not missed
        found = os.fstat(file.fileno())
        if locked and found.st_size <= _NO_CHUNK_BYTES:
            raise _too_early(name)
        _check_header(file, name, found.st_size)
        findings = Findings()
        try:
            _read_chunks(file, findings)
        except OSError as error:
            raise FileError(f"cannot read {name}: {error.strerror}") from error
    growing = not findings.was_closed and (locked or (locked is None and _is_recent(found.st_mtime)))
    history = findings.history
    if history is None:
        if growing:
            raise _too_early(name)
        raise FileError(f"nothing in {name} can be read", nothing_left(findings))
    covered = [(start, end) for start, end in findings.read if start < end]
    if covered:  # the first chunk begins where the recording does, and the last one ends there
        history.recorded = min(start for start, _ in covered), max(end for _, end in covered)
    history.is_recording = True
    history.damage = damage(findings, growing=growing)
    if growing:
        so_far = (history.span[1] - history.span[0]) / 1e9
        history.growing = f"it is still being recorded: {so_far:.1f} s so far"
    return Opened(history, history.damage, history.growing)


def _too_early(name: str) -> FileError:
    return FileError(
        f"{name} is still being recorded, and nothing is in it yet",
        "Its first part is written after about a second: try again then.",
    )


def _is_recent(mtime_s: float) -> bool:
    """Tell whether a file was written to so lately that its recorder may be about to do so again."""
    return abs(time.time() - mtime_s) < _RECENT_SECONDS


def _opened(path: str, name: str) -> BinaryIO:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError as error:
        raise FileError(f"there is no file {name}", "Is the name right?") from error
    except PermissionError as error:
        raise FileError(f"{name} may not be read by you", "Ask its owner, or copy it as root.") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "that is not a file name"
        raise FileError(f"cannot open {name}: {reason}") from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise FileError(f"{name} is {what}", "Give the name of a .gpuprof file.")
    return os.fdopen(fd, "rb")


def _check_header(file: BinaryIO, name: str, size: int) -> None:
    if not size:
        raise FileError(
            f"{name} is empty", "The recording was ended before anything was written, or the copy failed."
        )
    head = file.read(chunks.FILE_HEADER.size)
    if head[:12] != chunks.FILE_MAGIC:
        if chunks.FILE_MAGIC.startswith(head):
            raise FileError(
                f"{name} was cut after {size} bytes", "Nothing is left of it: record or copy it again."
            )
        if b"GPUPROF" in head[:12]:
            hint = "It was copied as text, which changes line ends: copy it again in binary mode."
            raise FileError(f"{name} was damaged in a transfer", hint)
        what = next((what for magic, what in _FOREIGN if head.lstrip().startswith(magic)), "")
        hint = f"It looks like {what}." if what else "It may be another program's, or damaged at its start."
        raise FileError(f"{name} is not a gpuprof snapshot", hint)
    if len(head) < chunks.FILE_HEADER.size:
        raise FileError(
            f"{name} was cut after {size} bytes", "Nothing is left of it: record or copy it again."
        )
    _, version, _ = chunks.FILE_HEADER.unpack(head)
    if version > chunks.FILE_VERSION:
        raise FileError(f"{name} was written by a newer gpuprof-tui", "Update gpuprof-tui here to read it.")


# ----------------------------------------------------------------------------------------------------- chunks


def _read_chunks(file: BinaryIO, findings: Findings) -> None:
    for _ in range(MAX_CHUNKS):
        at = file.tell()
        head = file.read(chunks.HEADER_BYTES)
        if not head:
            return
        header = chunks.parse_header(head)
        if header is None:
            if head.startswith(chunks.FILE_MAGIC):  # cat a b > c: two recordings at once would be neither
                if findings.history is None and not findings.lost:  # nothing was before it
                    file.seek(at + chunks.FILE_HEADER.size)
                    continue
                findings.another_bytes = os.fstat(file.fileno()).st_size - at
                return
            if chunks.parse_trailer(head[: chunks.TRAILER.size]) is not None:
                findings.closed = True
                file.seek(at + chunks.TRAILER.size)
                continue
            findings.skipped_bytes += 1
            if not _seek_marker(file, at + 1, findings):
                return
            findings.skipped_bytes += file.tell() - at - 1
            continue
        stored = file.read(header.stored_bytes) if header.stored_bytes <= chunks.MAX_RAW_BYTES else b""
        if len(stored) < header.stored_bytes:
            findings.cut = header
            file.seek(at + chunks.HEADER_BYTES)
            if not _seek_marker(file, at + chunks.HEADER_BYTES, findings):
                return
            findings.lost.append((header.start_ns, header.end_ns, "it is larger than the file"))
            findings.cut = None
            continue
        used = findings.history.bytes_used if findings.history else 0
        if findings.raw_bytes + header.raw_bytes > MAX_FILE_RAW_BYTES or used > _HISTORY_BYTES // 2:
            findings.too_large = True
            return
        try:
            _take_chunk(header, stored, findings)
        except FrameError as error:
            if header.kind == chunks.DATA:
                findings.lost.append((header.start_ns, header.end_ns, error.message))
            else:
                findings.skipped_bytes += header.stored_bytes
            # the length may be what is wrong: should no chunk follow here, look for one from the marker on
            after = file.tell()
            if not file.read(1).startswith(chunks.MARKER[:1]):
                _seek_marker(file, at + 1, findings)
            else:
                file.seek(after)


def _take_chunk(header: ChunkHeader, stored: bytes, findings: Findings) -> None:
    raw = chunks.unpack_body(header, stored)
    if header.kind == chunks.INDEX:
        findings.index = _parse_index(raw)
        return
    if header.kind == chunks.SPAN and header.start_ns <= header.end_ns < MAX_NS:
        findings.span = header.start_ns, header.end_ns
    if header.kind != chunks.DATA:
        return  # of a later version
    if header in findings.headers:
        findings.repeated += 1
        return
    findings.raw_bytes += header.raw_bytes
    frames = chunks.unpack_frames(raw)
    hello = next(frames, None)
    if not isinstance(hello, Hello):
        raise FrameError("it does not begin with a hello")
    check_version(hello)
    history = findings.history
    if history is None:
        history = History(hello, max_bytes=_HISTORY_BYTES, max_age_ns=None)
    for frame in itertools.chain([hello], frames):
        history.ingest(frame)
    findings.history = history  # only now: a first chunk that cannot be used leaves nothing behind
    findings.headers.add(header)
    findings.read.append((header.start_ns, header.end_ns))


def _seek_marker(file: BinaryIO, at: int, findings: Findings) -> bool:
    """Move to the next chunk marker, to the trailer or to the header of another file, from `at` on; False
    (at the end) when there is none.
    """
    markers = chunks.MARKER, chunks.TRAILER_MARKER, chunks.FILE_MAGIC
    keep = max(map(len, markers)) - 1
    file.seek(at)
    tail = b""
    while block := file.read(_SCAN_BYTES):
        window = tail + block
        start = file.tell() - len(window)
        found = [place for marker in markers if (place := window.find(marker)) >= 0]
        if found:
            file.seek(start + min(found))
            return True
        tail = window[-keep:]
    findings.skipped_bytes += file.tell() - at
    return False


def _parse_index(raw: bytes) -> list[list[int]]:
    try:
        index: Any = msgpack.unpackb(raw, max_array_len=MAX_CHUNKS)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise FrameError("the index cannot be read") from error
    well = isinstance(index, list) and all(
        isinstance(entry, list) and len(entry) >= 6 and all(type(number) is int for number in entry)
        for entry in index
    )
    if not well:
        raise FrameError("the index cannot be read")
    found: list[list[int]] = index
    return found
