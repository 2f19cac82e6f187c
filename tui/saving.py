"""Writes a snapshot file from a running screen: its name, its place, and the frames that were fetched for
it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

from gpuprof.snapshots.errors import FileError, GpuprofError
from gpuprof.snapshots.frames import Frame, GpuWork, Hello, Readings, Samples

BATCH_FRAMES = 64


@dataclass(frozen=True, slots=True)
class Saved:
    """What was written: path as the person should see it, size, and what is inside."""

    path: str
    size_bytes: int
    samples: int
    readings: int
    gpu_work: int = 0


def snapshot_name(host: str, wall_s: float) -> str:
    """gpuprof-HOST-YYYYmmdd-HHMMSS.gpuprof, with nothing in HOST that a shell or a file system minds."""
    host = re.sub(r"[^A-Za-z0-9._-]+", "_", host)[:64].strip("._-") or "node"
    return f"gpuprof-{host}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(wall_s))}.gpuprof"


def create_here(name: str) -> tuple[int, str]:
    """Create `name` in the current directory, never over something else: (descriptor, path). Raises
    OSError."""
    stem, dot, suffix = name.rpartition(".")
    for attempt in range(100):
        tried = name if not attempt else f"{stem}-{attempt}{dot}{suffix}"
        with contextlib.suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(tried, flags, 0o600), os.path.abspath(tried)
    raise FileExistsError(f"{name} and 99 more exist")


def path_from_here(path: str) -> str:
    """The path as one types it in the folder that the screen was started in: mostly the name alone."""
    with contextlib.suppress(OSError):
        if os.path.dirname(path) == os.getcwd():
            return os.path.basename(path)
    return path


def remove(fd: int, path: str) -> None:
    """Remove the file of a descriptor, if it is still what `path` names."""
    with contextlib.suppress(OSError, ValueError):
        mine, there = os.fstat(fd), os.lstat(path)
        if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
            os.unlink(path)


async def save_frames(
    frames: AsyncIterator[Frame],
    fd: int,
    path: str,
    discard: Callable[[], None] | None = None,
    *,
    recorded: tuple[int, int] | None = None,
) -> Saved:
    """Write `frames`, a hello first, to `fd`, which is closed here; compression runs in a worker thread.

    Raises GpuprofError. Of what was not saved whole nothing is left behind: it can be saved once more. The
    file is removed by `discard` (None: here), while `fd` is still open. `recorded`: the range [start, end)
    that is saved, in ns of the stream's clock, to which rows are cut; None: all that the stream has.
    """
    from gpuprof.snapshots.file import SnapshotWriter
    from gpuprof.snapshots.row_cut import cut

    samples = readings = gpu_work = 0
    complete = False
    writer: SnapshotWriter | None = None
    batch: list[Frame] = []
    try:
        async for frame in frames:
            if writer is None:
                if not isinstance(frame, Hello):
                    raise GpuprofError("The sampler sent no hello.")
                writer = await asyncio.to_thread(SnapshotWriter, fd, frame, name=path)
                if recorded is not None:
                    writer.recorded(*recorded)
                continue
            # A wait of an hour that touches the range would otherwise make the file an hour long.
            inside = frame if recorded is None else cut(frame, *recorded)
            if inside is None:
                continue
            batch.append(inside)
            if isinstance(inside, Samples):
                samples += len(inside.time_ns)
            elif isinstance(inside, Readings):
                readings += len(inside.value)
            elif isinstance(inside, GpuWork):
                gpu_work += len(inside.start_ns)
            if len(batch) >= BATCH_FRAMES:
                await asyncio.to_thread(writer.write, batch)
                batch = []
        if writer is None:
            raise GpuprofError("The sampler sent nothing.")
        await asyncio.to_thread(writer.write, batch)
        await asyncio.to_thread(writer.close)
        saved = Saved(path, os.fstat(fd).st_size, samples, readings, gpu_work)
        complete = True
        return saved
    except FileError as error:
        message = error.message.replace("cannot write all of ", "cannot write ")
        raise FileError(
            message, "Nothing is left of it: make room, or start gpuprof-tui in another folder."
        ) from error
    except OSError as error:
        raise FileError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        if not complete:
            (discard or functools.partial(remove, fd, path))()
        with contextlib.suppress(OSError):
            os.close(fd)
        # Now, not whenever it is collected: until then the next save would be refused.
        if isinstance(frames, AsyncGenerator):
            await frames.aclose()
