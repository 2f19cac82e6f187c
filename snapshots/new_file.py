"""Creates the file that a snapshot is written to."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from gpuprof.snapshots.errors import FileError
from gpuprof.snapshots.file_lock import mark_written
from gpuprof.snapshots.names import clean

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link, which is not followed"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def create(path: str, *, overwrite: bool, instead: str = "remove it first") -> int:
    """A descriptor of a new file that only its owner can read, since command lines of processes are in it;
    never through a symbolic link. It is marked as being written (file_lock.py).

    `overwrite`: a regular file of that name is removed first. FileError when it cannot be created, and for
    what is no regular file, such as /dev/null; `instead`: what it then says can be done about a file that is
    there, beside giving another name.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    shown = clean(path, 200)
    with suppress(OSError, ValueError):  # creating it below says what is wrong
        mode = os.lstat(path).st_mode
        if what := next((what for is_it, what in _KINDS if is_it(mode)), ""):
            raise FileError(
                f"{shown} is {what}", "A snapshot is written to a regular file: give the name of a new one."
            )
        if overwrite and stat.S_ISREG(mode):
            os.unlink(path)
    try:
        fd = os.open(path, flags, 0o600)
    except FileExistsError as error:
        raise FileError(f"{shown} exists already", f"Give another name, or {instead}.") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name cannot be a file name"
        hint = "Does the folder exist?" if isinstance(error, FileNotFoundError) else ""
        raise FileError(f"cannot create {shown}: {reason}", hint) from error
    mark_written(fd)
    return fd
