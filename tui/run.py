"""`gpuprof-tui run -- CMD`: starts a workload whose GPU work can be recorded.

The CUDA driver loads the library that CUDA_INJECTION64_PATH names into the process when it initializes; the
library does nothing until a sampler listens. Where one runs already it is told so and takes CUPTI into use at
once, which is the safest moment, and nothing of a short program is missed. The command replaces this process:
its pid, terminal, signals and exit code are its own.
"""

from __future__ import annotations

import errno
import importlib.resources
import os
import re
import signal
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, EXIT_USAGE, GpuprofError
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.process_name import SAMPLER, is_running

VARIABLE = "CUDA_INJECTION64_PATH"
NVTX = "NVTX_INJECTION64_PATH"  # the library that is told of the program's NVTX ranges
NEXT = "GPUPROF_NEXT_INJECTION"  # the library that was named before, which ours loads
EXPECT = "GPUPROF_EXPECT_LISTENER"  # "1": a sampler runs, so that the library attaches within cuInit
LIBRARY = "libgpuprof_inject.so"
EXIT_NOT_EXECUTABLE = 126  # both as shells do, so that a script can tell them from a failure of the command
EXIT_NOT_FOUND = 127


def run(command: Sequence[str]) -> NoReturn:
    """Become the command, with the library in its environment; under sudo as the caller. GpuprofError."""
    from gpuprof.tui import privileges
    from gpuprof.tui.watching import watch_self

    path = find_program(command[0])
    environ = environment(os.environ)
    if note := nvtx_note(environ):
        print(f"gpuprof-tui: {clean(note, 400)}", file=sys.stderr)
    watch_self()  # it stays this process: the service goes by its pid
    caller = privileges.sudo_caller(os.environ) if os.geteuid() == 0 else None
    if caller is not None:
        privileges.become(caller, no_new_privs=False)
        environ.update({"HOME": caller.home, "USER": caller.name, "LOGNAME": caller.name})
        environ = environment(environ)  # the caller must be able to read it, too
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python, and an exec would leave it so
    before = {signum: signal.signal(signum, signal.SIG_DFL) for signum in ignored}
    try:
        os.execve(path, list(command), environ)
    except OSError as error:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        shown = clean(command[0], 200)
        hint = f"name the program that reads it: sh {shown}" if error.errno == errno.ENOEXEC else ""
        raise GpuprofError(
            f"{shown} could not be started: {error.strerror}", hint, EXIT_NOT_EXECUTABLE
        ) from error


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a workload whose GPU work can be recorded.

    A library that the variable names already is loaded by ours, since the driver loads one only. One that is
    told of NVTX ranges already goes on being told, and ours is not (`nvtx_note`). GpuprofError where ours was
    not built or cannot be read, or the other one uses CUPTI, too.
    """
    library = str(find_library())
    other = environ.get(VARIABLE, "")
    following = {}
    if other and os.path.realpath(other) != os.path.realpath(library):
        _check_other(other)
        following = {NEXT: other}
    if not os.access(library, os.R_OK):
        raise GpuprofError(
            f"{library}, which records GPU work, cannot be read by this user",
            "install gpuprof-tui where every user can read it",
            EXIT_UNAVAILABLE,
        )
    nvtx = {} if environ.get(NVTX) else {NVTX: library}
    expected = {EXPECT: "1"} if is_running(SAMPLER) else {}
    given = {name: value for name, value in environ.items() if name != EXPECT}  # of an outer `run`
    return {**given, VARIABLE: library, **nvtx, **following, **expected}


def nvtx_note(environ: Mapping[str, str]) -> str:
    """What to say where another library is told of the program's NVTX ranges; empty where none is."""
    given = environ.get(NVTX, "")
    if not given or os.path.realpath(given) == os.path.realpath(find_library()):
        return ""
    return f"{NVTX} is set already, to {given}: NVTX ranges are not recorded"


def _check_other(path: str) -> None:
    """GpuprofError when an injection library cannot be had together with ours: CUPTI has one user only."""
    import mmap

    hint = f"unset {VARIABLE}, or leave the other tool out"
    try:
        with (
            open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content,
        ):
            uses_cupti = any(content.find(word) >= 0 for word in (b"libcupti", b"cuptiSubscribe"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is empty"
        raise GpuprofError(
            f"{VARIABLE} is set already, to {path}, which cannot be read: {why}", hint, EXIT_USAGE
        ) from error
    if uses_cupti:
        raise GpuprofError(
            f"{VARIABLE} is set already, to {path}, which uses CUPTI: one library can do so at a time",
            hint,
            EXIT_USAGE,
        )


def find_library() -> Path:
    """The injection library as it was built at installation. GpuprofError when it was not.

    To be called before root is given up: the user may not be able to look into the installation.
    """
    library = _built_library()
    if library is not None:
        return library
    raise GpuprofError(
        f"{LIBRARY}, which records GPU work, was not built: there was no C compiler at installation",
        "install one (apt install gcc libc6-dev), then install gpuprof-tui again",
        EXIT_UNAVAILABLE,
    )


def find_program(name: str) -> str:
    """The path of a command. GpuprofError when there is none (exit code 127), or it cannot be run (126), both
    as of a shell."""
    import shutil

    program = shutil.which(name)
    if program is not None:
        _check_first_line(program)
        return program
    if os.path.dirname(name) and os.path.lexists(name):
        raise _not_executable(name)
    if os.path.dirname(name):
        hint = f"is the path right? It is looked for from {_here()}"
    elif os.path.isfile(name):
        hint = f"for the file of this name in this folder, write ./{clean(name)}"
    else:
        hint = "is it installed, and in PATH? sudo has a PATH of its own"
    raise GpuprofError(f"{clean(name)}: command not found", hint, EXIT_NOT_FOUND)


def _check_first_line(program: str) -> None:
    """GpuprofError where a script's first line names a program that is not there: the kernel then says of the
    script itself that there is no such file (execve(2))."""
    try:
        with open(os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            line = file.readline(256)
    except OSError:  # one may be allowed to run what one may not read
        return
    words = re.split(rb"[ \t\n]+", line[2:].strip(b" \t\n"))  # the kernel takes a \r for part of a name
    if not line.startswith(b"#!") or not words[0] or os.path.exists(words[0]):
        return
    shown = clean(program, 200)
    hint = f"correct that line, or name the program that reads it: python {shown}"
    if words[0].endswith(b"\r"):
        hint = f"its lines end as those of Windows do: sed -i 's/\\r$//' {shown}"
    raise GpuprofError(
        f"the first line of {shown} names {clean(os.fsdecode(words[0]), 200)}, which is not there",
        hint,
        EXIT_NOT_EXECUTABLE,
    )


def _here() -> str:
    """The folder that this process is in, which may be gone."""
    try:
        return clean(os.getcwd(), 200)
    except OSError:
        return "a folder that is gone"


def _not_executable(path: str) -> GpuprofError:
    """Why a path that is there cannot be run."""
    shown = clean(path, 200)
    if os.path.isdir(path):
        return GpuprofError(f"{shown} is a folder", "name the program in it", EXIT_NOT_EXECUTABLE)
    if not os.path.exists(path):
        return GpuprofError(f"{shown} is a link to nothing", exit_code=EXIT_NOT_EXECUTABLE)
    hint = f"chmod +x {shown}, or name the program that reads it: python {shown}"
    return GpuprofError(f"{shown} is not executable", hint, EXIT_NOT_EXECUTABLE)


@lru_cache(maxsize=1)
def _built_library() -> Path | None:
    return next((path for path in _library_paths() if path.is_file()), None)


def _library_paths() -> Iterator[Path]:
    """Beside the package that it belongs to; for an editable install, in site-packages."""
    yield Path(str(importlib.resources.files("gpuprof.bpf"))) / LIBRARY
    yield Path(sysconfig.get_paths()["platlib"]) / "gpuprof" / "bpf" / LIBRARY
