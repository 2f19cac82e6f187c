"""Who the screen runs as: the sudo caller, nobody, or the user as is; and how a process gives up root for
good.

Linux capabilities(7) and prctl(2) are called through ctypes, since the standard library has neither. The
order matters and is kept in one function, `become`: groups, gid, uid, capabilities, no_new_privs, and the
parent-death signal last, because the kernel clears it whenever credentials change.
"""

from __future__ import annotations

import os
import pwd
import signal
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, GpuprofError

CAP_DAC_READ_SEARCH = 2
CAP_SYS_ADMIN = 21
CAP_PERFMON = 38
CAP_BPF = 39

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_NOBODY_UID = 65534

_SAFE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What a terminal program needs to know of its terminal and language, and nothing that makes a process load
# code.
_TERMINAL_VARIABLES = frozenset(
    """TERM COLORTERM TERM_PROGRAM TERM_PROGRAM_VERSION NO_COLOR FORCE_COLOR LANG LANGUAGE TZ LINES COLUMNS
    TMUX STY VTE_VERSION KONSOLE_VERSION SSH_TTY SSH_CONNECTION""".split()  # noqa: SIM905
)
# numpy's BLAS starts a thread per core and glibc an arena per thread; none of our processes has use for
# either.
_SMALL = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


@dataclass(frozen=True)
class Identity:
    """A user to become: ids, all supplementary groups, and what passwd says of name and home."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


def sudo_caller(environ: Mapping[str, str]) -> Identity | None:
    """The user who called sudo, from SUDO_UID and SUDO_GID and the passwd and group databases.

    None when not started by sudo, or when root itself called it. GpuprofError when the variables are not
    numbers.
    """
    raw_uid, raw_gid = environ.get("SUDO_UID"), environ.get("SUDO_GID")
    if raw_uid is None:
        return None
    uid, gid = _user_number(raw_uid), _user_number(raw_gid) if raw_gid is not None else None
    if uid == 0:
        return None
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        gid = gid or _NOBODY_UID
        return Identity(uid, gid, (gid,), str(uid), "/")
    gid = entry.pw_gid if gid is None else gid
    return Identity(uid, gid, tuple(os.getgrouplist(entry.pw_name, gid)), entry.pw_name, entry.pw_dir)


def nobody() -> Identity:
    """The user that owns nothing: what the screen runs as when there is only root."""
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return Identity(_NOBODY_UID, _NOBODY_UID, (_NOBODY_UID,), "nobody", "/nonexistent")
    return Identity(entry.pw_uid, entry.pw_gid, (entry.pw_gid,), "nobody", "/nonexistent")


def root_environment(environ: Mapping[str, str], caller: Identity | None) -> dict[str, str]:
    """The environment of a root child. Under sudo nothing of the caller's, so no LD_*, PYTHON*, or else that
    loads code.

    Root's own environment is trusted: it may say where the driver's libraries are, and set the project's own
    variables.
    """
    clean = {"PATH": _SAFE_PATH, "HOME": "/root", "LANG": "C.UTF-8", **_SMALL}
    if caller is None:
        clean.update((k, v) for k, v in environ.items() if k == "LD_LIBRARY_PATH" or k.startswith("GPUPROF_"))
    return clean


def user_environment(identity: Identity, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that was dropped to `identity`: its terminal and language, its own HOME
    and XDG folders."""
    kept = {k: v for k, v in environ.items() if k in _TERMINAL_VARIABLES or k.startswith(("LC_", "GPUPROF_"))}
    kept.update(
        PATH=_SAFE_PATH,
        HOME=identity.home,
        USER=identity.name,
        LOGNAME=identity.name,
        XDG_CONFIG_HOME=os.path.join(identity.home, ".config"),
        XDG_CACHE_HOME=os.path.join(identity.home, ".cache"),
        XDG_DATA_HOME=os.path.join(identity.home, ".local/share"),
        XDG_STATE_HOME=os.path.join(identity.home, ".local/state"),
        **_SMALL,
    )
    runtime = f"/run/user/{identity.uid}"
    try:
        owner = os.lstat(runtime)
        if stat.S_ISDIR(owner.st_mode) and owner.st_uid == identity.uid:
            kept["XDG_RUNTIME_DIR"] = runtime
    except OSError:
        pass
    return kept


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child that runs as the same, ordinary user."""
    return {**_SMALL, **environ}


def become(identity: Identity, needs_to_read: Sequence[str] = (), *, no_new_privs: bool = True) -> bool:
    """Turn this root process into `identity` for good. True when CAP_DAC_READ_SEARCH was kept.

    It is kept (ambient, so that it survives the exec) only when one of the paths `needs_to_read` cannot be
    reached by `identity`, such as a virtual environment under /root. GpuprofError when root could not be
    given up.
    """
    _prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups(identity.groups)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
    unreadable = not all(can_read(path) for path in needs_to_read)
    keep = unreadable and CAP_DAC_READ_SEARCH in effective_capabilities("CapPrm")
    _set_capabilities([CAP_DAC_READ_SEARCH] if keep else [])
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    if keep:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH)
    if no_new_privs:
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if os.getresuid() != (identity.uid,) * 3 or os.getresgid() != (identity.gid,) * 3:
        raise GpuprofError("the screen could not give up root", exit_code=EXIT_NO_PERMISSION)
    if unreadable and not keep:
        raise GpuprofError(
            f"{identity.name} cannot read the program's own files",
            "install it where every user can read it (such as /opt or /usr/local), or start it with sudo",
            EXIT_NO_PERMISSION,
        )
    return keep


def drop_capabilities() -> None:
    """Give up the last capability in every thread. To be called after the imports and before any thread
    starts.

    What is imported later still is found (held_imports.py). GpuprofError when a thread of this process still
    has a capability, since capset(2) acts on the calling thread only.
    """
    from gpuprof.tui import held_imports

    held_imports.hold(can_read)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _set_capabilities([])
    for task in os.listdir("/proc/self/task"):
        if effective_capabilities("CapPrm", f"/proc/self/task/{task}/status"):
            raise GpuprofError(
                "a thread of the screen still has a capability", "please report this", EXIT_NO_PERMISSION
            )


def effective_capabilities(field: str = "CapEff", status_path: str = "/proc/self/status") -> frozenset[int]:
    """Numbers of the capabilities in a set (CapEff, CapPrm ...) of /proc/PID/status; see capabilities(7)."""
    with open(status_path, "rb") as status:  # as bytes: a codec is a module, which may be out of reach by now
        for line in status:
            if line.startswith(field.encode() + b":"):
                bits = int(line.split()[1], 16)
                return frozenset(n for n in range(64) if bits >> n & 1)
    return frozenset()


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when `parent`, which started it, ends in whatever way."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def can_read(path: str) -> bool:
    """Whether the real user, without capabilities, can read this file or list this folder (access(2))."""
    return os.access(path, os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK)


def _user_number(raw: str) -> int:
    if not (raw.isascii() and raw.isdigit() and int(raw) < 0xFFFFFFFF):
        raise GpuprofError(
            "SUDO_UID or SUDO_GID in the environment is not a user number", "start it with sudo"
        )
    return int(raw)


def _prctl(option: int, arg2: int = 0, arg3: int = 0) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_ulong(value) for value in (arg2, arg3, 0, 0)]
    if libc.prctl(ctypes.c_int(option), *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def _set_capabilities(numbers: Iterable[int]) -> None:
    """Permitted, effective and inheritable sets of the calling thread = exactly these."""
    import ctypes

    mask = sum(1 << n for n in numbers)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = (ctypes.c_uint32 * 6)(low, low, low, high, high, high)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(ctypes.byref(header), ctypes.byref(data)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")
