"""The ids of the series that readings belong to: one for each metric of each subject, never used twice."""

from __future__ import annotations

import numpy as np

from gpuprof.snapshots.columns import RowLog
from gpuprof.snapshots.frames import SeriesDef

MAX_SERIES = 1 << 14


class SeriesIds:
    """`readings`: the log whose rows refer to the ids. Not thread-safe: History.lock is held around every
    call.
    """

    def __init__(self, readings: RowLog) -> None:
        self.defs: dict[int, SeriesDef] = {}  # by id, in their order
        self.next = 0  # no id from here on was given
        self._readings = readings
        self._ids: dict[tuple[str, str | None, int | None, int | None], int] = {}

    def of(self, metric: str, gpu: str | None, pid: int | None, core: int | None) -> int:
        """Return the id of the series of `metric` for one subject."""
        key = (metric, gpu, pid, core)
        found = self._ids.get(key)
        if found is None:
            if len(self.defs) >= MAX_SERIES:
                self._forget()
            found = self.next
            self.next += 1
            self._ids[key] = found
            self.defs[found] = SeriesDef(found, metric, gpu, pid, core)
        return found

    def _forget(self) -> None:
        """Forget the series without readings; should all have some, the older half."""
        parts = [part.columns["series"] for part in self._readings.between(0, 1 << 63)]
        live = set(np.unique(np.concatenate(parts)).tolist()) if parts else set()
        keep = {number: series for number, series in self.defs.items() if number in live}
        if len(keep) >= MAX_SERIES // 2:
            keep = dict(list(keep.items())[-MAX_SERIES // 2 :])
        self.defs = keep
        self._ids = {(s.metric, s.gpu, s.pid, s.core): number for number, s in keep.items()}
