"""`gpuprof-tui run` covers children: the environment reaches every process below the command (as torchrun's
ranks, DataLoader's workers, MPI's ranks), and each that uses CUDA has a ring of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuprof.sampler.gpu_ring import GpuRing
from gpuprof.tui import run

# A launcher that forks workers, each of which starts a shell that starts a program; it ends when killed.
LAUNCHER = """
import multiprocessing, os, subprocess, sys
harness, folder = sys.argv[1:]

def worker(name):
    files = {"HARNESS_LOG": f"{folder}/log {name}", "MOCK_CUPTI_COUNTERS": f"{folder}/counters {name}"}
    program = subprocess.Popen(["sh", "-c", '"$0"; exit $?', harness], env={**os.environ, **files},
                               text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    print("init", file=program.stdin, flush=True)
    assert program.stdout.readline() == "ok 0\\n"
    print("ready", flush=True)
    program.wait()

for name in "abc":
    multiprocessing.get_context("fork").Process(target=worker, args=(name,)).start()
"""


def _below(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_below(int(child))]
    return found


def _rings(kit: ModuleType, pid: int) -> list[Path]:
    names = (f"/memfd:{kit.RING_NAME}",)
    return [link for link in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(link).startswith(names)]


def test_every_process_below_the_command_has_its_ring(
    kit: ModuleType, built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_built_library", lambda: built.library)
    environ = run.environment({**os.environ, "GPUPROF_CUPTI": str(built.cupti)})
    command = [sys.executable, "-c", LAUNCHER, str(built.harness), str(tmp_path)]
    launcher = subprocess.Popen(
        ["sh", "-c", '"$@"; exit $?', "sh", *command],
        env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert launcher.stdout is not None
        said = ""
        while said.count("ready") < 3:  # three processes write to one pipe, each a word and then its end
            line = launcher.stdout.readline()
            assert line, said
            said += line
        rings = {pid: found for pid in [launcher.pid, *_below(launcher.pid)] if (found := _rings(kit, pid))}
        assert len(rings) == 3
        identities = set()
        for pid, (link,) in rings.items():
            assert Path(f"/proc/{pid}/comm").read_text() == "harness\n"
            info = os.stat(link)
            identities.add((info.st_dev, info.st_ino))
            ring = GpuRing(os.open(link, os.O_RDWR))
            assert ring.facts().pid == pid
            ring.close()
        assert len(identities) == 3
    finally:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.communicate()
