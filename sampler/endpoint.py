"""The service's unix socket: where it may lie, who may bind it, and who may connect to it.

The socket is 0660 with the group `gpuprof` where that group exists, else 0600. A lock file beside it, held
for life, keeps a second service out; with the lock held, a socket that nobody answers on is stale and
replaced. See unix(7) for SO_PEERCRED and socket(7) for SO_PEERGROUPS. With systemd socket activation
(sd_listen_fds(3)) the socket is inherited.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import grp
import os
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass

from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, GpuprofError

GROUP = "gpuprof"
RUN = "/run"  # in which the service makes its own folder
_SO_PEERGROUPS = 59  # asm-generic/socket.h; not in Python's socket module
_UCRED = struct.Struct("=iII")
_MAX_GROUPS = 65536


@dataclass
class Endpoint:
    """A listening socket. `gid`: members of this group may connect; None: only root and the sampler's own
    user."""

    sock: socket.socket
    path: str
    gid: int | None
    lock_fd: int = -1  # -1: inherited, systemd owns the socket's file

    def close(self) -> None:
        """Stop listening; remove the socket's file if it was made here."""
        self.sock.close()
        if self.lock_fd >= 0:
            with suppress(OSError):
                os.unlink(self.path)
            os.close(self.lock_fd)
            self.lock_fd = -1


def listen(path: str, group: str = GROUP) -> Endpoint:
    """Bind `path` and listen. GpuprofError: a service runs there already, or the folder or file is not as it
    must be."""
    folder = os.path.dirname(os.path.abspath(path))
    _check_folder(folder)
    lock_fd = _lock(path)
    try:
        _remove_stale(path)
        sock, gid = _bind(path, group)
    except BaseException:
        os.close(lock_fd)
        raise
    return Endpoint(sock, path, gid, lock_fd)


def inherited(environ: dict[str, str] | os._Environ[str]) -> Endpoint | None:
    """The listening socket that systemd handed over as descriptor 3; None when there is none."""
    if environ.get("LISTEN_PID") != str(os.getpid()) or environ.get("LISTEN_FDS") != "1":
        return None
    os.set_inheritable(3, False)
    sock = socket.socket(fileno=3)
    path = sock.getsockname()
    gid = None
    with suppress(OSError, TypeError, ValueError):
        found = os.stat(path)
        gid = found.st_gid if found.st_mode & 0o020 else None
    return Endpoint(sock, str(path), gid)


def peer(sock: socket.socket) -> tuple[int, int, frozenset[int]]:
    """Return (pid, uid, all gids) of the process that connected, as they were when it did."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return pid, uid, frozenset({gid, *_peer_groups(sock.fileno())})


def _peer_groups(fd: int) -> list[int]:
    """Supplementary groups of the peer; through ctypes, since Python's getsockopt takes no more than 256 of
    them."""
    libc = ctypes.CDLL(None, use_errno=True)
    count = 256
    while count <= _MAX_GROUPS:
        groups = (ctypes.c_uint32 * count)()
        size = ctypes.c_uint32(ctypes.sizeof(groups))
        if libc.getsockopt(fd, socket.SOL_SOCKET, _SO_PEERGROUPS, groups, ctypes.byref(size)) == 0:
            return groups[: size.value // 4]
        if ctypes.get_errno() != errno.ERANGE:
            break  # ENODATA, ENOPROTOOPT: the primary group is all that is known
        count = max(count * 2, size.value // 4)  # the kernel has written the size that it needs
    return []


def may_connect(uid: int, groups: frozenset[int], gid: int | None) -> bool:
    """Root, the sampler's own user, and members of the socket's group."""
    return uid in (0, os.geteuid()) or (gid is not None and gid in groups)


def _check_folder(folder: str) -> None:
    if not os.path.exists(folder) and os.path.dirname(folder) == RUN and os.geteuid() == 0:
        os.mkdir(folder)
        os.chmod(folder, 0o755)  # whatever root's umask: the group has to get through to the socket
    try:
        found = os.stat(folder)
    except OSError as error:
        raise GpuprofError(
            f"the folder of the socket, {folder}, cannot be used: {error.strerror}",
            f"create it: mkdir -m 755 {folder}",
            EXIT_UNAVAILABLE,
        ) from error
    others_write = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    if not stat.S_ISDIR(found.st_mode):
        raise GpuprofError(
            f"{folder}, where the socket would lie, is not a folder",
            "choose another --socket",
            EXIT_UNAVAILABLE,
        )
    if found.st_uid not in (0, os.geteuid()) or others_write:
        raise GpuprofError(
            f"others can write to the folder of the socket, {folder}, and could put their own socket there",
            f"chown root {folder} && chmod 755 {folder}",
            EXIT_NO_PERMISSION,
        )


def _lock(path: str) -> int:
    lock_path = path + ".lock"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(lock_path, flags, 0o600)
    except OSError as error:
        raise GpuprofError(
            f"cannot open {lock_path}: {error.strerror}", "start the service as root", EXIT_NO_PERMISSION
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise _already_running(path) from error
    return fd


def _remove_stale(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise GpuprofError(f"{path} is there and is not a socket", "remove it, or choose another --socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            raise GpuprofError(f"{path} cannot be replaced: {error.strerror or error}") from error
    raise _already_running(path)


def _bind(path: str, group: str) -> tuple[socket.socket, int | None]:
    gid: int | None = None
    with suppress(KeyError):
        gid = grp.getgrnam(group).gr_gid
    sock = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)  # nobody connects before the group is set
    try:
        sock.bind(path)
        if gid is not None:
            try:
                os.chown(path, -1, gid, follow_symlinks=False)
                os.chmod(path, 0o660)
            except PermissionError:  # an ordinary user who is not in the group: the socket stays private
                gid = None
        sock.listen(64)
    except OSError as error:
        sock.close()
        raise GpuprofError(
            f"cannot listen on {path}: {error.strerror or error}",
            "choose another --socket, at most 100 characters long",
        ) from error
    finally:
        os.umask(mask)
    return sock, gid


def _already_running(path: str) -> GpuprofError:
    return GpuprofError(
        f"a sampler is already running on {path}",
        "gpuprof-tui uses it by itself; nothing more needs to be started",
        EXIT_UNAVAILABLE,
    )
