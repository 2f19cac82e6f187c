"""Running `gpuprof-tui record`s, for tests."""

from __future__ import annotations

import os
import subprocess
import sys

COMMAND = [sys.executable, "-I", "-c", "import sys; from gpuprof.tui.command import main; sys.exit(main())"]


def record(*argv: str, environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start one; what it says is read from its pipes."""
    return subprocess.Popen(
        [*COMMAND, "record", *argv],
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_it_records(process: subprocess.Popen[str]) -> str:
    """Read what a recorder says up to the line that it has begun; all that."""
    assert process.stderr is not None
    said = ""
    while "recording to" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    return said
