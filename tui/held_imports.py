"""Keeps the program's files importable after the right to reach them is gone.

A screen that runs as nobody may have been started from a virtual environment under /root. Libraries import
parts of themselves late, so every folder on sys.path is opened while it can be, and named by its descriptor
from then on: /proc/self/fd/N (proc(5)) leads to the folder itself, past the closed folder above it. What
lies in it is as readable as its own mode says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

_OWN_PACKAGES = ("gpuprof.snapshots", "gpuprof.tui")
_OF_COMMANDS = (  # modules that no screen uses
    "__main__", "entry", "doctor", "record", "record_sources", "recorded_command", "dial", "supervisor",
)  # fmt: skip


def hold(reachable: Callable[[str], bool]) -> dict[str, str]:
    """Open the folders that imports come from and are not `reachable` without help, and import through the
    descriptors.

    Returns the folders that were replaced and the paths that lead to them now. The descriptors stay open for
    good.
    """
    _import_own_modules()
    held: dict[str, str] = {}
    for folder in sorted({*sys.path, *_package_folders()}, key=len):
        if (
            not os.path.isdir(folder)
            or reachable(folder)
            or any(folder.startswith(known + os.sep) for known in held)
        ):
            continue
        with suppress(OSError):
            fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            there = f"/proc/self/fd/{fd}"
            if reachable(there):
                held[folder] = there
            else:  # closed itself, so only what lies deeper can be held
                os.close(fd)
    sys.path[:] = [_moved(path, held) for path in sys.path]
    for module in list(sys.modules.values()):
        paths = getattr(module, "__path__", None)
        if isinstance(paths, list):
            paths[:] = [_moved(path, held) for path in paths]
        _move_files(module, held)
    if held:
        sys.path_importer_cache.clear()
    return held


def _move_files(module: ModuleType, held: dict[str, str]) -> None:
    """Whoever looks for a file beside a module (a style sheet, importlib.resources) goes by one of these
    three."""
    spec = getattr(module, "__spec__", None)
    loader = getattr(spec, "loader", None)
    for owner, attribute in ((module, "__file__"), (spec, "origin"), (loader, "path")):
        path = getattr(owner, attribute, None)
        if isinstance(path, str) and (moved := _moved(path, held)) != path:
            with suppress(AttributeError):
                setattr(owner, attribute, moved)


def _moved(path: str, held: dict[str, str]) -> str:
    for folder, there in held.items():
        if path == folder or path.startswith(folder + os.sep):
            return there + path[len(folder) :]
    return path


def _package_folders() -> set[str]:
    """Folders of imported top-level packages: an editable installation has them outside sys.path."""
    folders: set[str] = set()
    for name, module in list(sys.modules.items()):
        paths = getattr(module, "__path__", None)
        if isinstance(paths, list) and (name.count(".") == 0 or name in _OWN_PACKAGES):
            folders.update(path for path in paths if isinstance(path, str))
    return folders


def _import_own_modules() -> None:
    """Import all of this program's modules that a screen may want: an editable installation finds them in
    ways of its own."""
    import importlib
    import pkgutil

    for package in _OWN_PACKAGES:
        module = importlib.import_module(package)
        for info in pkgutil.walk_packages(module.__path__, package + "."):
            if info.name.rpartition(".")[2] not in _OF_COMMANDS:
                with suppress(ImportError):
                    importlib.import_module(info.name)
