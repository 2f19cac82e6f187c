"""Work rates of a range for the reports: how often a second what was named was done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gpuprof.snapshots.errors import EXIT_USAGE, GpuprofError
from gpuprof.snapshots.history import History
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.work_frames import MAX_RATES, RateQuery, Wanted, WorkKind

_KINDS = (WorkKind.RANGE, WorkKind.KERNEL, WorkKind.LAUNCH)
_WORDS = {"range": "NVTX range", "kernel": "on the GPU", "launch": "launches made under it"}


def rates_between(history: History, names: Sequence[str], start_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """Return a dictionary for each name and kind that occurred in [start_ns, end_ns): name, kind (range,
    kernel or launch), count, per_s, and error where it is an estimate.

    GpuprofError for a name of which nothing occurred, and for very many names.
    """
    if len(names) * len(_KINDS) > MAX_RATES:
        raise GpuprofError(
            f"at most {MAX_RATES // len(_KINDS)} work rates in one report", exit_code=EXIT_USAGE
        )
    length = max(end_ns - start_ns, 1)
    wanted = [Wanted(kind.value, name, start_ns, end_ns, length) for name in names for kind in _KINDS]
    found: list[dict[str, Any]] = []
    for question, counted in zip(wanted, history.rates(RateQuery(0, wanted)).counted, strict=True):
        if not counted.total:
            continue
        per_s = 1e9 / counted.recorded_ns if counted.recorded_ns else None
        entry: dict[str, Any] = {
            "name": question.name,
            "kind": question.kind,
            "count": round(counted.total, 3),
        }
        if per_s is not None:
            entry["per_s"] = round(counted.total * per_s, 6)
        if counted.error:
            entry["error"] = round(counted.error, 3)
        found.append(entry)
    missing = [name for name in names if not any(entry["name"] == name for entry in found)]
    if missing:
        raise GpuprofError(
            f"nothing that is called “{clean(missing[0], 80)}” was done in this range",
            "Work rates are those of kernels, of NVTX ranges, and of functions that launched work (--tree "
            "gpu has their names). How often another function was called, samples cannot tell.",
            EXIT_USAGE,
        )
    return found


def rate_lines(rates: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield a line of text for each of some work rates."""
    for entry in rates:
        per_s = f"{entry['per_s']:,.2f} /s" if "per_s" in entry else "not recorded"
        error = f" ± {max(round(entry['error']), 1):,}" if "error" in entry else ""
        yield (
            f"rate      {clean(entry['name'])}: {per_s}, {_WORDS[entry['kind']]}, "
            f"{entry['count']:,.0f}{error} times"
        )
