"""Runs every benchmark of this folder, one after the other: `make bench`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NEED_ROOT = {"startup_bench.py", "sampler_bench.py", "offcpu_bench.py", "pause_bench.py"}


def main() -> int:
    failed = []
    for script in sorted(HERE.glob("*_bench.py")):
        if script.name in NEED_ROOT and os.geteuid() != 0:
            print(f"== {script.name}: skipped, eBPF needs root", flush=True)
            continue
        print(f"== {script.name}", flush=True)
        if subprocess.run([sys.executable, str(script)], check=False).returncode:
            failed.append(script.name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
