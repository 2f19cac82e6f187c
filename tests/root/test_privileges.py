"""Giving up root: what is kept, what is lost, and that imports go on working."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.tui import privileges

pytestmark = pytest.mark.root


def in_child(work: Callable[[], Any]) -> Any:
    """The JSON-able result of `work`, done in a forked process."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.environ["OPENBLAS_NUM_THREADS"] = (
            "1"  # as the supervisor sets it: no thread may run when it is dropped
        )
        try:
            os.write(write_fd, json.dumps(work()).encode())
        except BaseException as error:  # noqa: BLE001
            os.write(write_fd, json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as stream:
        said = stream.read()
    os.waitpid(pid, 0)
    return json.loads(said)


@pytest.fixture
def closed_folder(tmp_path: Path) -> Path:
    """A folder like a virtual environment under /root."""
    home = tmp_path / "home"
    (home / "site" / "late").mkdir(parents=True)
    late = "def more():\n    from late import deeper\n    return deeper.N\n"
    (home / "site" / "late" / "__init__.py").write_text(late)
    (home / "site" / "late" / "deeper.py").write_text("N = 17\n")
    (home / "site" / "later.py").write_text("M = 4\n")
    home.chmod(0o700)
    return home


def test_nothing_is_kept_where_everything_can_be_read() -> None:
    def work() -> Any:
        kept = privileges.become(privileges.nobody(), ["/etc/passwd", "/"])
        return kept, sorted(privileges.effective_capabilities("CapPrm")), os.getresuid(), os.getgroups()

    nobody = privileges.nobody()
    assert in_child(work) == [False, [], [nobody.uid] * 3, [nobody.gid]]


def test_only_reading_is_kept_and_only_until_it_is_dropped(closed_folder: Path) -> None:
    secret = str(closed_folder / "site" / "later.py")

    def work() -> Any:
        kept = privileges.become(privileges.nobody(), [secret])
        before = sorted(privileges.effective_capabilities("CapPrm"))
        with open(secret) as file:
            first = file.read()
        privileges.drop_capabilities()
        return (
            kept,
            before,
            first,
            sorted(privileges.effective_capabilities("CapPrm")),
            os.access(secret, os.R_OK),
        )

    assert in_child(work) == [True, [privileges.CAP_DAC_READ_SEARCH], "M = 4\n", [], False]


def test_it_cannot_be_taken_back() -> None:
    def work() -> Any:
        privileges.become(privileges.nobody())
        tried = []
        for attempt in (lambda: os.setuid(0), lambda: os.setgroups([0]), lambda: os.chown("/etc", 0, 0)):
            try:
                attempt()
                tried.append("done")
            except PermissionError:
                tried.append("refused")
        return tried

    assert in_child(work) == ["refused"] * 3


def test_without_the_capability_to_keep_the_reason_is_said(closed_folder: Path) -> None:
    def work() -> Any:
        privileges._set_capabilities([6, 7, 8])  # those to change groups and users, as in a container
        privileges.become(privileges.nobody(), [str(closed_folder / "site")])

    said = in_child(work)
    assert said.startswith("GpuprofError: nobody cannot read the program's own files")


def test_what_is_imported_later_is_still_found(closed_folder: Path) -> None:
    code = f"""
import os, sys
sys.path[:0] = [{str(closed_folder)!r}, {str(closed_folder / "site")!r}]
import late
from gpuprof.tui import privileges
privileges.become(privileges.nobody(), [{str(closed_folder)!r}])
privileges.drop_capabilities()
import later
from importlib.resources import files
print(late.more(), later.M, os.access({str(closed_folder / "site")!r}, os.X_OK))
print(files(late).joinpath("deeper.py").read_text().strip(), os.path.exists(late.__file__))
import colorsys, html, json.tool, encodings.punycode
"""
    environ = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["17 4 False", "N = 17 True"]


def test_the_sudo_caller() -> None:
    caller = privileges.sudo_caller({"SUDO_UID": "1", "SUDO_GID": "1"})
    assert caller is not None
    assert (caller.uid, caller.gid, caller.name) == (1, 1, "daemon")
    assert privileges.sudo_caller({}) is None
    assert privileges.sudo_caller({"SUDO_UID": "0", "SUDO_GID": "0"}) is None
    stranger = privileges.sudo_caller({"SUDO_UID": "54321", "SUDO_GID": "54321"})
    assert stranger is not None
    assert (stranger.groups, stranger.home) == ((54321,), "/")
    for wrong in ("", "-1", "x", "4294967295", "1e3", "١"):
        with pytest.raises(GpuprofError):
            privileges.sudo_caller({"SUDO_UID": wrong})
