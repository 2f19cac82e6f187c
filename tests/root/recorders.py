"""Running `gpuprof-tui record`s, for tests."""

from __future__ import annotations

import subprocess


def wait_until_it_records(process: subprocess.Popen[str]) -> str:
    """Read what a recorder says up to the line that it has begun; all that."""
    assert process.stderr is not None
    said = ""
    while "recording to" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    return said
