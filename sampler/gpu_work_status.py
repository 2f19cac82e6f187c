"""What the status says of the source of GPU work: its state, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpuprof.sampler.gpu_session import GpuSession

RUN_HINT = "start the workload with: gpuprof-tui run -- CMD, or: sudo gpuprof-tui attach PID"
MAX_NAMED = 6
SHARED = "shares CUPTI with "  # bpf/inject/shared.c: all is recorded, and a detach will not give native speed


def describe_state(
    sessions: Sequence[GpuSession],
    refused: Mapping[int, str],
    listed: Mapping[str, Collection[int]] | None,
    lost_launches: int,
    failure: str,
    *,
    recorded: bool = False,
    budget: str = "",
) -> tuple[str, str, str]:
    """(state, reason, hint).

    `listed`: processes by device, as NVML lists them; `recorded`: there was work; `budget`: what the overhead
    budget has led to, in words.
    """
    if failure:
        return "failed", failure, "please report it"
    alive = [session for session in sessions if session.ended_ns is None]
    on_gpus = set().union(*listed.values()) if listed else set()
    with_library = {session.pid for session in alive} | set(refused)
    missing = sorted(on_gpus - with_library)
    if not alive and not refused:
        if missing:
            return "off", f"no process on a GPU is set up to record its work ({_pids(missing)})", RUN_HINT
        if recorded:
            return "ok", "the processes that recorded have ended", ""
        return "off", "no process is set up to record GPU work", RUN_HINT
    problems = [f"pid {pid}: {why}" for pid, why in sorted(refused.items())[:MAX_NAMED]]
    notes = [budget] if budget else []
    for session in alive[:MAX_NAMED]:
        if session.waits_for:
            problems.append(f"pid {session.pid} does not record yet: {session.waits_for}")
        if session.paused:
            pass  # as asked for: no fault
        elif session.recording and session.facts.message.startswith(SHARED):
            notes.append(f"pid {session.pid} {session.facts.message}")
        elif session.facts.message and not session.recording:
            problems.append(f"pid {session.pid} does not record: {session.facts.message}")
        elif session.facts.message:
            problems.append(f"pid {session.pid}: {session.facts.message}")
        if session.probe_problem:
            problems.append(f"pid {session.pid} gives no launch stacks: {session.probe_problem}")
    if missing:
        problems.append(f"not recording: {_pids(missing)}")
    if lost_launches:
        problems.append(f"{lost_launches:,} launches lost")
    if problems:
        return "degraded", "; ".join(problems + notes), RUN_HINT if missing else ""
    return "ok", "; ".join(words for words in (*notes, placement(alive)) if words), ""


def placement(sessions: Sequence[GpuSession]) -> str:
    """How exactly GPU work is placed in time."""
    widths = [session.clock.width_ns for session in sessions if session.clock.width_ns is not None]
    return f"GPU times are placed within {max(widths):,} ns" if widths else ""


def _pids(pids: Sequence[int]) -> str:
    shown = ", ".join(map(str, pids[:MAX_NAMED]))
    more = f" and {len(pids) - MAX_NAMED} more" if len(pids) > MAX_NAMED else ""
    return f"pid {shown}{more}"
