"""`gpuprof-tui run -- CMD`: starts a workload whose GPU work can be recorded.

The CUDA driver loads the library that CUDA_INJECTION64_PATH names into the process when it initializes; the
library does nothing until a sampler listens. The command replaces this process: its pid, terminal, signals
and exit code are its own.
"""

from __future__ import annotations

import importlib.resources
import os
import signal
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, EXIT_USAGE, GpuprofError

VARIABLE = "CUDA_INJECTION64_PATH"
LIBRARY = "libgpuprof_inject.so"


def run(command: Sequence[str]) -> NoReturn:
    """Become the command, with the library in its environment; under sudo as the caller. GpuprofError."""
    from gpuprof.tui import privileges

    path = find_program(command[0])
    environ = environment(os.environ)
    caller = privileges.sudo_caller(os.environ) if os.geteuid() == 0 else None
    if caller is not None:
        privileges.become(caller, no_new_privs=False)
        environ.update({"HOME": caller.home, "USER": caller.name, "LOGNAME": caller.name})
        environ = environment(environ)  # the caller must be able to read it, too
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and an exec would leave so
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execve(path, list(command), environ)
    except OSError as error:
        raise GpuprofError(f"{command[0]} could not be started: {error.strerror}") from error


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a workload whose GPU work can be recorded.

    GpuprofError where the library was not built or cannot be read, or the variable names another one.
    """
    library = str(find_library())
    given = environ.get(VARIABLE, "")
    if given and os.path.realpath(given) != os.path.realpath(library):
        raise GpuprofError(
            f"{VARIABLE} is set already, to {given}: the CUDA driver loads one such library only",
            f"unset {VARIABLE}, or leave the other tool out",
            EXIT_USAGE,
        )
    if not os.access(library, os.R_OK):
        raise GpuprofError(
            f"{library}, which records GPU work, cannot be read by this user",
            "install gpuprof-tui where every user can read it",
            EXIT_UNAVAILABLE,
        )
    return {**environ, VARIABLE: library}


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
    """The path of a command. GpuprofError when there is none."""
    import shutil

    program = shutil.which(name)
    if program is None:
        raise GpuprofError(f"{name}: command not found", exit_code=EXIT_USAGE)
    return program


@lru_cache(maxsize=1)
def _built_library() -> Path | None:
    return next((path for path in _library_paths() if path.is_file()), None)


def _library_paths() -> Iterator[Path]:
    """Beside the package that it belongs to; for an editable install, in site-packages."""
    yield Path(str(importlib.resources.files("gpuprof.bpf"))) / LIBRARY
    yield Path(sysconfig.get_paths()["platlib"]) / "gpuprof" / "bpf" / LIBRARY
