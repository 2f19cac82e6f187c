"""Keeps compiled BPF programs between runs, so that LLVM is needed once for each kernel and version of
ours.

What is in here is loaded into the kernel, so only the user that this process runs as may write it: the
folder and the file must be that user's own, writable by nobody else, and no link; the file must be of a
sane size and match its checksum. Whatever is wrong, the programs are compiled again. Files appear whole,
by rename(2), so that starts at the same time do not disturb each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from gpuprof.bpf.program_object import MAX_BYTES, ObjectError, ProgramObject, pack, unpack

FOLDER = "/var/cache/gpuprof"
SWITCH = "GPUPROF_NO_CACHE"  # set to anything: compile anew, keep nothing
MAX_FILES = 16  # of other kernels and versions; the oldest go
_SUFFIX = ".bpf"
_TEMPORARY = ".new-"
_TEMPORARY_AGE_S = 3600.0


def folder() -> str | None:
    """Where programs are kept: systemd's CacheDirectory, else /var/cache/gpuprof for root and
    ~/.cache/gpuprof for others; None when it is switched off.
    """
    if os.environ.get(SWITCH):
        return None
    given = os.environ.get("CACHE_DIRECTORY", "").split(":")[0]
    if given.startswith("/"):
        return given
    if os.geteuid() == 0:
        return FOLDER
    with contextlib.suppress(KeyError):
        return os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".cache", "gpuprof")
    return None


def key_of(parts: Iterable[bytes]) -> str:
    """The name of what was compiled from these parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


class ProgramCache:
    """The files of one folder. Never raises: what cannot be read is not there, what cannot be written is not
    kept. `problem` says why, after either.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = path
        self.problem = "" if path is not None else "switched off"

    def read(self, key: str) -> ProgramObject | None:
        """The programs kept under a key, if they can be trusted."""
        try:
            with contextlib.ExitStack() as stack:
                parent = self._open_folder(make=False)
                stack.callback(os.close, parent)
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
                fd = os.open(key + _SUFFIX, flags, dir_fd=parent)
                stack.callback(os.close, fd)
                info = os.fstat(fd)
                if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
                    raise ObjectError("the file belongs to, or is open to, others")
                if info.st_size > MAX_BYTES:
                    raise ObjectError("the file is too large")
                found = unpack(_read_all(fd, info.st_size))
                self.problem = ""
                return found
        except FileNotFoundError:
            self.problem = "nothing is kept yet"
        except OSError as error:
            self.problem = error.strerror or str(error)
        except ObjectError as error:
            self.problem = str(error)
        return None

    def write(self, key: str, programs: ProgramObject) -> bool:
        """Keep programs under a key; whether that worked."""
        try:
            with contextlib.ExitStack() as stack:
                parent = self._open_folder(make=True)
                stack.callback(os.close, parent)
                _tidy(parent)
                name = f"{_TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}"
                fd = os.open(
                    name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600,
                    dir_fd=parent,
                )  # fmt: skip
                try:
                    with os.fdopen(fd, "wb") as file:
                        file.write(pack(programs))
                    os.rename(name, key + _SUFFIX, src_dir_fd=parent, dst_dir_fd=parent)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=parent)
                    raise
            return True
        except OSError as error:
            self.problem = error.strerror or str(error)
        except ObjectError as error:
            self.problem = str(error)
        return False

    def drop(self, key: str) -> None:
        """Forget what is kept under a key."""
        with contextlib.suppress(OSError, ObjectError):
            parent = self._open_folder(make=False)
            try:
                os.unlink(key + _SUFFIX, dir_fd=parent)
            finally:
                os.close(parent)

    def _open_folder(self, *, make: bool) -> int:
        """A descriptor of the folder. OSError, or ObjectError where others may write to it."""
        if self._path is None:
            raise ObjectError("switched off")
        if make:
            with contextlib.suppress(FileExistsError):
                os.makedirs(self._path, 0o700)
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        info = os.fstat(fd)
        if info.st_uid != os.geteuid() or info.st_mode & 0o022:
            os.close(fd)
            raise ObjectError(f"{self._path} belongs to, or is open to, others")
        return fd


def _read_all(fd: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.read(fd, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _tidy(parent: int) -> None:
    """Remove what was left half-written, and the oldest files beyond MAX_FILES - 1."""
    kept = []
    for name in os.listdir(parent):
        with contextlib.suppress(OSError):
            age = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime
            if name.startswith(_TEMPORARY) and time.time() - age > _TEMPORARY_AGE_S:
                os.unlink(name, dir_fd=parent)
            elif name.endswith(_SUFFIX):
                kept.append((age, name))
    for _, name in sorted(kept, reverse=True)[MAX_FILES - 1 :]:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=parent)
