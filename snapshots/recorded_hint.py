"""What a source's hint is to whoever reads a recording, mostly on another machine and later."""

from __future__ import annotations

from gpuprof.snapshots.names import clean

_FOR_A_SCREEN = "a recording can be opened"  # of a node without a GPU (sampler/nvml_library.py)


def recorded_hint(hint: str, host: str) -> str:
    """Return the hint with the machine that it is for; "" where it is of no use beside a recording."""
    if not hint or _FOR_A_SCREEN in hint:
        return ""
    return f"on {clean(host, 40)}: {hint}"
