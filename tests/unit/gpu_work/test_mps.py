"""The MPS server is left out of the processes that are to record, by its program's file; nothing else is."""

from __future__ import annotations

from pathlib import Path

from gpuprof.sampler.mps import launching


def test_only_the_server_is_left_out(tmp_path: Path) -> None:
    programs = {
        7: "/usr/bin/nvidia-cuda-mps-server",
        8: "/usr/bin/python3.12",
        9: "/usr/bin/nvidia-cuda-mps-server (deleted)",  # its package was upgraded
        10: "/opt/nvidia-cuda-mps-server-watch",
    }
    for pid, program in programs.items():
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "exe").symlink_to(program)
    assert launching([7, 8, 9, 10, 11], str(tmp_path)) == {8, 10, 11}  # 11 is gone, or may not be read
