"""What the doctor finds in file systems that lack one thing or another."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from gpuprof.snapshots.frames import MAGIC, SourceStatus, Status
from gpuprof.snapshots.wire import pack
from gpuprof.tui import doctor
from gpuprof.tui.doctor import Finding
from gpuprof.tui.sampler_process import SamplerOptions


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system with everything in place."""
    for name in ("usr/lib/python3/dist-packages/bcc", "sys/kernel/btf", "sys/kernel/tracing/events"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "usr/lib/python3/dist-packages/bcc/libbcc.py").touch()
    (tmp_path / "sys/kernel/btf/vmlinux").touch()
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/perf_event_paranoid").write_text("2\n")
    (tmp_path / "sys/kernel/security").mkdir()
    (tmp_path / "sys/kernel/security/lockdown").write_text("[none] integrity confidentiality\n")
    return tmp_path


def findings(root: Path, socket_path: str = "/nonexistent") -> dict[str, Finding]:
    return {finding.name: finding for finding in doctor.look_up(socket_path, str(root))}


def test_everything_in_place(root: Path) -> None:
    found = findings(root)
    for name in ("Python", "bcc", "BTF", "perf events", "lockdown", "tracefs"):
        assert found[name].state == "ok", found[name]
    assert found["service"].state == "note"


def test_bcc_missing_and_its_impostor(root: Path) -> None:
    (root / "usr/lib/python3/dist-packages/bcc/libbcc.py").unlink()
    found = findings(root)["bcc"]
    assert found.state == "missing"
    assert "PyPI" in found.detail
    (root / "usr/lib/python3/dist-packages/bcc").rmdir()
    found = findings(root)["bcc"]
    assert found.state == "missing"
    assert "PyPI" not in found.detail
    assert found.fix.startswith("apt install python3-bpfcc")


def test_fedora_keeps_it_elsewhere(root: Path) -> None:
    (root / "usr/lib/python3/dist-packages/bcc/libbcc.py").unlink()
    (root / "usr/lib/python3.13/site-packages/bcc").mkdir(parents=True)
    (root / "usr/lib/python3.13/site-packages/bcc/libbcc.py").touch()
    assert findings(root)["bcc"].state == "ok"


def test_a_kernel_without(root: Path) -> None:
    (root / "sys/kernel/btf/vmlinux").unlink()
    (root / "proc/sys/kernel/perf_event_paranoid").unlink()
    (root / "sys/kernel/security/lockdown").write_text("none integrity [confidentiality]\n")
    (root / "sys/kernel/tracing/events").rmdir()
    found = findings(root)
    assert [found[name].state for name in ("BTF", "perf events", "lockdown")] == ["missing"] * 3
    assert found["tracefs"].state == "note"
    assert found["tracefs"].fix.startswith("mount -t tracefs")


def test_a_service_that_answers_and_one_that_does_not(root: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        assert "nobody answers" in findings(root, path)["service"].detail
        listening.listen()
        assert findings(root, path)["service"].state == "ok"
    (tmp_path / "file").touch()
    assert findings(root, str(tmp_path / "file"))["service"].state == "missing"


def test_who_may_not_profile_is_told_what_the_service_does(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their screen uses the service, so nothing is missing: no sampler of their own is started and asked."""
    monkeypatch.setattr(doctor.privileges, "effective_capabilities", frozenset)
    monkeypatch.setattr(doctor, "SamplerProcess", None)
    path = str(tmp_path / "s.sock")
    clients: list[socket.socket] = []
    sources = [
        SourceStatus("cpu", "ok", reason="as the service has it"),
        SourceStatus("gpu", "off", reason="nobody"),
    ]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def serve() -> None:
            clients.extend(listening.accept()[0] for _ in range(2))  # one is of the line on the service
            clients[0].sendall(MAGIC + pack(Status(0, sources, 0, 0, 0, 0)))

        threading.Thread(target=serve, daemon=True).start()
        doctor.run(SamplerOptions(socket_path=path, use_service=False))
    for client in clients:
        client.close()
    said = capsys.readouterr().out
    assert "note    BPF permission    this user has none; the service is used, which has it\n" in said
    assert "ok      CPU stacks        as the service has it\n" in said
    assert "note    GPU time          nobody\n" in said
    assert findings(root, path)["BPF permission"].state == "missing"  # with nobody there


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every folder")
def test_a_folder_that_lets_nobody_through(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(0o000)
    found = findings(root, str(folder / "s.sock"))["service"]
    assert found.detail == f"this user may not look into {folder}"
    assert found.fix == f"sudo chmod 755 {folder}"


def test_terminals(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.isatty", lambda fd: True)
    for name in ("LC_ALL", "LC_CTYPE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    started_with = {"LANG": "C.UTF-8"}
    monkeypatch.setattr("gpuprof.tui.plain.first_environ", lambda: started_with)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert findings(root)["terminal"].state == "ok"
    started_with["LANG"] = "C"
    assert findings(root)["terminal"].state == "note"
    started_with["LANG"] = "C.UTF-8"
    monkeypatch.setenv("NO_COLOR", "1")
    assert "no colours" in findings(root)["terminal"].detail
    monkeypatch.setenv("TERM", "dumb")
    assert findings(root)["terminal"].state == "missing"


def test_a_fix_stands_on_a_line_of_its_own() -> None:
    lines = doctor.render(Finding("missing", "bcc", "not found", "apt install x")).splitlines()
    assert lines[0].split() == ["missing", "bcc", "not", "found"]
    assert lines[1].strip() == "apt install x"


def tried(*lines: str) -> list[Finding]:
    text = "\n".join(lines)
    return list(doctor.try_kernel([sys.executable, "-c", f"print({text!r})"]))


def test_kernel_features_that_all_work() -> None:
    works = [json.dumps({"name": f"feature {i}", "state": "ok", "detail": ""}) for i in range(3)]
    assert tried(*works) == [Finding("ok", "kernel features", "3 of 3 that the BPF programs use")]


def test_kernel_features_that_are_missing_are_named() -> None:
    found = tried(
        json.dumps({"name": "bounded loops", "state": "ok", "detail": ""}),
        json.dumps({"name": "ring buffers", "state": "missing", "detail": "since Linux 5.8: EINVAL"}),
        json.dumps({"name": "run time of programs", "state": "note", "detail": "their cost is not shown"}),
    )
    assert [one.state for one in found] == ["ok", "missing", "note"]
    assert found[1].detail == "ring buffers: since Linux 5.8: EINVAL"
    assert found[1].fix
    assert not found[2].fix


@pytest.mark.parametrize("line", ["no JSON", "{}", "[1]", '{"name": "x"}'])
def test_features_that_cannot_be_tried(line: str) -> None:
    found = tried(line)
    assert [one.state for one in found] == ["missing"]
    assert "could not be tried" in found[0].detail


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (SourceStatus("nvml", "off", "no NVIDIA device on the PCI bus", "demo"), "note"),
        (SourceStatus("gpu", "off", "no process is set up to record GPU work", "run"), "note"),
        (SourceStatus("offcpu", "off", "no process uses a GPU, and none was picked", "pick"), "note"),
        (SourceStatus("nvml", "failed", "the driver does not answer", "reboot"), "missing"),
        (SourceStatus("cpu", "off", "needs root", "sudo"), "missing"),
        (SourceStatus("offcpu", "failed", "no BTF", ""), "missing"),
    ],
)
def test_what_is_not_there_or_not_asked_for_is_not_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: SourceStatus, state: str
) -> None:
    monkeypatch.setattr(doctor, "look_up", lambda path, **_: [])
    monkeypatch.setattr(doctor, "try_kernel", lambda: [])
    monkeypatch.setattr(doctor, "_settled_sources", lambda *_: ([status], ""))
    assert doctor.run(SamplerOptions()) == (state == "missing")
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(state)
    assert status.reason in said[0]
