"""The names under which this program's processes show, read back from the kernel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

CODE = """
import threading
from gpuprof.snapshots.process_name import set_process_name
set_process_name("{name}")
print(open("/proc/self/comm").read(), end="")
def child():
    print(open("/proc/thread-self/comm").read(), end="")
thread = threading.Thread(target=child)
thread.start()
thread.join()
"""


def named(name: str) -> list[str]:
    argv = [sys.executable, "-c", CODE.format(name=name)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_process_and_its_threads() -> None:
    assert named("gpuprof-sampler") == ["gpuprof-sampler"] * 2
    assert named("a name of more than fifteen") == ["a name of more "] * 2


def test_the_sampler_and_not_python(tmp_path: Path) -> None:
    """Long before it serves anybody."""
    path = tmp_path / "s.sock"
    argv = [sys.executable, "-I", "-m", "gpuprof.sampler", "--socket", str(path)]
    sampler = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not path.exists():
            assert sampler.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            assert Path(f"/proc/{sampler.pid}/comm").read_text() == "gpuprof-sampler\n"
            assert os.path.basename(sys.executable) not in Path(f"/proc/{sampler.pid}/comm").read_text()
    finally:
        sampler.terminate()
        sampler.wait(60)
