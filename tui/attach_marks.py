"""What the process table says about recording GPU work of a process: it is recorded, it can be attached to,
or why not. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuprof.snapshots.frames import SourceStatus

_PID = re.compile(r"^pid (\d{1,7})(?: does not record)?: (.+)$", re.DOTALL)
MAX_TEXT = 160


def reasons(source: SourceStatus | None) -> dict[int, str]:
    """Why processes do not record, by pid, as the status of the source of GPU work says it ("pid 12 does not
    record: another profiler uses CUPTI in this process: kineto; pid 13: ...")."""
    found: dict[int, str] = {}
    for part in (source.reason if source is not None else "").split("; "):
        match = _PID.match(part)
        if match is not None:
            found.setdefault(int(match[1]), match[2][:MAX_TEXT])
    return found


def mark(recording: bool | None, reason: str, *, live: bool = True) -> str:
    """One sign: recorded, not for a known reason, attach by key a (not in a file), or nothing known."""
    if recording:
        return "●"
    if reason:
        return "!"
    return "" if recording is None else "a" if live else "○"


def note(recording: bool | None, reason: str) -> str:
    """What stands behind the name of a process: why it is not recorded, where that is known."""
    return "" if recording else reason


def merged(told: Mapping[int, str], attempts: Mapping[int, str]) -> dict[int, str]:
    """Reasons of the sampler, which are newer, over those that attaching gave."""
    return {**attempts, **told}
