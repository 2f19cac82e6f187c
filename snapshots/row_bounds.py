"""How much is kept: logs of rows, and the tables that they refer to, within bounds of memory and age."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.snapshots.columns import RowLog
from gpuprof.snapshots.tables import Tables

_KEPT_SHARE = 4  # a kind of rows that takes less than this part of the bound is not dropped for the others


class RowBounds:
    """Drops the oldest blocks of `logs` (of tables: each block's tag, None where its rows refer to none).

    `max_bytes` bounds rows and tables together, `max_age_ns` the age of rows against the newest one (None:
    no bound). `tables` in the calls are those of the current generation, which go on growing. Not
    thread-safe: History.lock is held around every call.
    """

    def __init__(self, logs: Sequence[RowLog], max_bytes: int, max_age_ns: int | None) -> None:
        self.newest_ns = 0
        self.frozen_bytes = 0  # of the generations before the current one that rows still refer to
        self._logs = logs
        self._max_bytes = max_bytes
        self._max_age_ns = max_age_ns

    def bytes_used(self, tables: Tables) -> int:
        """Return about how much memory rows and tables take."""
        return sum(log.nbytes for log in self._logs) + tables.nbytes + self.frozen_bytes

    def keep(self, newest_ns: int, tables: Tables) -> None:
        """Rows up to `newest_ns` were added: drop the oldest blocks until age and memory are within their
        bounds; the newest block of each kind stays.
        """
        self.newest_ns = max(self.newest_ns, newest_ns)
        dropped = False
        if self._max_age_ns is not None:
            limit = self.newest_ns - self._max_age_ns
            for log in self._logs:
                while log.block_count > 1 and (log.oldest_ns() or 0) < limit:
                    log.drop_oldest()
                    dropped = True
        while self.bytes_used(tables) > self._max_bytes:
            logs = [log for log in self._logs if log.block_count > 1]
            if not logs:
                break
            large = [log for log in logs if log.nbytes > self._max_bytes // _KEPT_SHARE]
            min(large or logs, key=lambda log: log.oldest_ns() or 0).drop_oldest()
            dropped = True
            self.count_frozen(tables)
        if dropped:
            self.count_frozen(tables)

    def clear(self, tables: Tables) -> None:
        """Drop all rows."""
        for log in self._logs:
            while len(log):
                log.drop_oldest()
        self.count_frozen(tables)

    def count_frozen(self, tables: Tables) -> None:
        """A generation has begun, or rows of one have gone: count what the earlier ones take."""
        kept = {id(tag): tag for log in self._logs for tag in log.tags() if tag is not None}
        self.frozen_bytes = sum(tag.nbytes for tag in kept.values() if tag is not tables)
