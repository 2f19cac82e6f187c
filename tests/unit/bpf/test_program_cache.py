"""The kept programs: only what this user alone could have written is read, and writing never disturbs a
reader."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpuprof.bpf import program_cache
from gpuprof.bpf.program_cache import MAX_FILES, ProgramCache, key_of
from gpuprof.bpf.program_object import MAX_BYTES, MapSpec, Program, ProgramObject, pack

EXIT = b"\x95" + bytes(7)
KEY = key_of([b"one"])
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")


def an_object(entries: int = 1) -> ProgramObject:
    return ProgramObject(
        {"counters": MapSpec("counters", 2, 4, 8, entries, 0)},
        {"cpu_clock": Program("cpu_clock", EXIT, (), ())},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    assert ProgramCache(path).write(KEY, an_object())
    return path


def test_what_is_written_is_read(folder: Path) -> None:
    assert ProgramCache(folder).read(KEY) == an_object()
    assert folder.stat().st_mode & 0o777 == 0o700
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    cache = ProgramCache(folder)
    assert cache.read(key_of([b"other"])) is None
    assert cache.problem == "nothing is kept yet"
    cache.drop(KEY)
    assert cache.read(KEY) is None


def test_keys_depend_on_where_parts_end() -> None:
    assert len({key_of([b"ab", b"c"]), key_of([b"a", b"bc"]), key_of([b"abc"])}) == 3


def test_switched_off() -> None:
    cache = ProgramCache(None)
    assert cache.read(KEY) is None
    assert not cache.write(KEY, an_object())
    assert cache.problem == "switched off"


def test_which_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUPROF_NO_CACHE", raising=False)
    monkeypatch.setenv("CACHE_DIRECTORY", "/var/cache/x:/var/cache/y")
    assert program_cache.folder() == "/var/cache/x"
    monkeypatch.setenv("CACHE_DIRECTORY", "relative")
    monkeypatch.setattr(program_cache.os, "geteuid", lambda: 0)
    assert program_cache.folder() == "/var/cache/gpuprof"
    monkeypatch.setenv("GPUPROF_NO_CACHE", "1")
    assert program_cache.folder() is None


def only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def refused(folder: Path, words: str) -> None:
    cache = ProgramCache(folder)
    assert cache.read(KEY) is None
    assert words in cache.problem, cache.problem


def test_a_folder_or_file_that_others_may_write(folder: Path) -> None:
    only_file(folder).chmod(0o620)
    refused(folder, "open to, others")
    only_file(folder).chmod(0o600)
    folder.chmod(0o770)
    refused(folder, "open to, others")
    assert not ProgramCache(folder).write(KEY, an_object(2))
    folder.chmod(0o755)  # systemd's own mode for CacheDirectory
    assert ProgramCache(folder).read(KEY) == an_object()


@root_only
def test_a_folder_or_file_of_another_user(folder: Path) -> None:
    os.chown(only_file(folder), 65534, 65534)
    refused(folder, "belongs to")
    os.chown(only_file(folder), 0, 0)
    os.chown(folder, 65534, 65534)
    refused(folder, "belongs to")
    assert not ProgramCache(folder).write(KEY, an_object(2))


def test_links_and_pipes(folder: Path, tmp_path: Path) -> None:
    file = only_file(folder)
    moved = tmp_path / "moved"
    file.rename(moved)
    file.symlink_to(moved)
    refused(folder, "")
    file.unlink()
    os.mkfifo(file)
    refused(folder, "open to, others")
    file.unlink()
    file.mkdir()
    refused(folder, "open to, others")
    link = tmp_path / "link"
    link.symlink_to(folder)
    refused(link, "")
    assert not ProgramCache(link).write(KEY, an_object())


def test_torn_files(folder: Path) -> None:
    file, data = only_file(folder), pack(an_object())
    for part in (b"", data[:10], data[:-1], data + b"x", data[:60] + b"\0" + data[61:]):
        file.write_bytes(part)
        refused(folder, "")
    with file.open("wb") as sparse:
        sparse.truncate(MAX_BYTES + 1)
    refused(folder, "too large")
    assert ProgramCache(folder).write(KEY, an_object(3))
    assert ProgramCache(folder).read(KEY) == an_object(3)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not ProgramCache(tmp_path / "file" / "cache").write(KEY, an_object())


def test_the_oldest_go(folder: Path) -> None:
    cache = ProgramCache(folder)
    left_behind, fresh = folder / ".new-1-aa", folder / ".new-2-bb"
    for file in (left_behind, fresh):
        file.touch()
    os.utime(left_behind, (1, 1))
    for i in range(3 * MAX_FILES):
        key = key_of([str(i).encode()])
        assert cache.write(key, an_object())
        os.utime(folder / f"{key}.bpf", (i + 10, i + 10))
    assert len(list(folder.glob("*.bpf"))) <= MAX_FILES
    assert cache.read(key) == an_object()
    assert not left_behind.exists()
    assert fresh.exists()  # another start may be writing it


def test_writers_and_readers_at_once(folder: Path) -> None:
    """Whatever is read is one of the things that were written."""
    stop = threading.Event()
    written = [an_object(i) for i in range(1, 4)]
    failures: list[object] = []

    def write() -> None:
        while not stop.is_set():
            for one in written:
                if not ProgramCache(folder).write(KEY, one):
                    failures.append("write")

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        cache = ProgramCache(folder)
        found = cache.read(KEY)
        if found not in written:
            failures.append(cache.problem)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert not list(folder.glob(".new-*"))
