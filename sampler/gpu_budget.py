"""How much recording GPU work may cost the threads that launch it: `--gpu-overhead`, and what came of it."""

from __future__ import annotations

from gpuprof.sampler.gpu_coverage import ReadingSink
from gpuprof.sampler.gpu_session import GpuSession
from gpuprof.snapshots.overhead import percent


class Costs:
    """What recording costs each process, as its library says: readings a second apart, and a text.
    Not thread-safe.
    """

    def __init__(self, history: ReadingSink, budget_ppm: int) -> None:
        self._history = history
        self._budget_ppm = budget_ppm
        self._before: dict[int, tuple[int, int, int, int]] = {}  # pid: time, cost, launches, stacks

    def write(self, now_ns: int, sessions: list[GpuSession]) -> None:
        """Write what came since the last call."""
        rows: list[tuple[int, int, int, float]] = []
        for session in sessions:
            facts = session.facts
            now = (now_ns, facts.cost_ns, facts.launches, facts.stacks)
            before = self._before.get(session.pid)
            self._before[session.pid] = now
            if before is None or not session.locked:
                continue
            took_ns, cost_ns, launches, stacks = (b - a for a, b in zip(before, now, strict=True))
            if took_ns <= 0 or not 0 <= cost_ns < 1000 * took_ns:
                continue  # no library of ours says that
            values = {"proc_gpu_overhead_percent": 100.0 * cost_ns / took_ns}
            if launches > 0 and 0 <= stacks <= launches:
                values["proc_launch_stack_percent"] = 100.0 * stacks / launches
            rows += [
                (self._history.series(metric, pid=session.pid), before[0], now_ns, value)
                for metric, value in values.items()
            ]
        alive = {session.pid for session in sessions}
        self._before = {pid: entry for pid, entry in self._before.items() if pid in alive}
        if rows:
            self._history.add_readings(*zip(*rows, strict=True))

    def words(self, sessions: list[GpuSession]) -> str:
        """What the budget has led to now, such as "stacks of 3 % of launches (--gpu-overhead 1%)"; or ""."""
        parts = []
        shares = [session.facts.launches_per_stack for session in sessions if session.recording]
        if shares and max(shares) > 1:
            parts.append(f"stacks of {percent(100 / max(shares))} of launches")
        paused = [session for session in sessions if session.facts.pauses > 0 and session.ended_ns is None]
        if paused:
            parts.append("recorded in windows: " + ", ".join(f"pid {session.pid}" for session in paused[:4]))
        depths = [
            session.facts.range_depth
            for session in sessions
            if session.facts.range_depth is not None and (session.recording or session.paused)
        ]
        if depths:
            parts.append(_ranges_left_out(min(depths)))
        if not parts:
            return ""
        return f"{'; '.join(parts)} (--gpu-overhead {percent(self._budget_ppm / 10_000, space='')})"


def _ranges_left_out(depth: int) -> str:
    if depth == 0:
        return "NVTX ranges are not followed: they are too many"
    return f"NVTX ranges within {depth} other{'s' if depth > 1 else ''} count as the one around them"
