"""The service's socket: who may bind it, what is replaced, who may connect."""

from __future__ import annotations

import grp
import os
import socket
import stat
import struct
from pathlib import Path

import pytest

from gpuprof.sampler import endpoint
from gpuprof.snapshots.errors import GpuprofError

NO_GROUP = "no-such-group-as-this"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "sampler.sock")


def test_private_where_there_is_no_group(path: str) -> None:
    made = endpoint.listen(path, NO_GROUP)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert made.gid is None
    made.close()
    assert not os.path.exists(path)


def test_readable_by_the_group_where_there_is_one(path: str) -> None:
    group = grp.getgrgid(os.getgid())
    made = endpoint.listen(path, group.gr_name)
    found = os.stat(path)
    assert stat.S_IMODE(found.st_mode) == 0o660
    assert (found.st_gid, made.gid) == (group.gr_gid, group.gr_gid)
    made.close()


def test_a_second_service_is_refused_and_the_first_goes_on(path: str) -> None:
    made = endpoint.listen(path, NO_GROUP)
    with pytest.raises(GpuprofError, match="already running"):
        endpoint.listen(path, NO_GROUP)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    made.close()


def test_a_stale_socket_is_replaced(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    made = endpoint.listen(path, NO_GROUP)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    made.close()


def test_a_socket_that_somebody_answers_on_is_not_replaced(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(GpuprofError, match="already running"):
            endpoint.listen(path, NO_GROUP)
        assert os.path.exists(path)


def test_a_file_in_the_way_is_left_alone(path: str) -> None:
    Path(path).write_text("precious")
    with pytest.raises(GpuprofError, match="not a socket"):
        endpoint.listen(path, NO_GROUP)
    assert Path(path).read_text() == "precious"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0])
def test_the_folder_that_is_made_lets_the_group_through_whatever_the_umask(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gpuprof"
    monkeypatch.setattr(endpoint, "RUN", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    before = os.umask(umask)
    try:
        endpoint.listen(str(folder / "sampler.sock"), NO_GROUP).close()
    except GpuprofError:  # the folder is not root's, where the test is not run as root
        assert os.getuid() != 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_file_for_a_folder_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("precious")
    with pytest.raises(GpuprofError, match="notes, where the socket would lie, is not a folder"):
        endpoint.listen(str(tmp_path / "notes" / "sampler.sock"), NO_GROUP)


def test_a_symlink_for_the_lock_is_not_followed(path: str, tmp_path: Path) -> None:
    (tmp_path / "sampler.sock.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GpuprofError):
        endpoint.listen(path, NO_GROUP)
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_others_can_write_to_is_refused(path: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(GpuprofError, match="others can write"):
        endpoint.listen(path, NO_GROUP)
    tmp_path.chmod(0o1777)
    endpoint.listen(path, NO_GROUP).close()


def test_a_missing_folder_and_a_path_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(GpuprofError, match="cannot be used"):
        endpoint.listen(str(tmp_path / "nowhere" / "s.sock"), NO_GROUP)
    with pytest.raises(GpuprofError, match="cannot listen"):
        endpoint.listen(str(tmp_path / ("x" * 150)), NO_GROUP)


def test_peer_is_this_process_with_its_groups() -> None:
    ours, theirs = socket.socketpair()
    pid, uid, groups = endpoint.peer(ours)
    assert (pid, uid) == (os.getpid(), os.getuid())
    assert groups == {os.getgid(), *os.getgroups()}
    ours.close()
    theirs.close()


def test_may_connect() -> None:
    assert endpoint.may_connect(0, frozenset({0}), None)
    assert endpoint.may_connect(os.geteuid(), frozenset(), None)
    assert not endpoint.may_connect(12345, frozenset({100}), None)
    assert not endpoint.may_connect(12345, frozenset({100}), 101)
    assert endpoint.may_connect(12345, frozenset({100, 101}), 101)


def test_no_socket_from_systemd_without_its_variables() -> None:
    assert endpoint.inherited({}) is None
    assert endpoint.inherited({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None


def test_the_layout_of_ucred() -> None:
    assert struct.calcsize("=iII") == 12
