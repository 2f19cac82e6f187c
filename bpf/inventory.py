"""Names of the BPF programs and maps: what the loader hands over and the sampler uses."""

from __future__ import annotations

SAMPLING = "cpu_clock"
TAIL_CALLED = (
    "cpu_native",
    "cpu_scan",
    "cpu_python",
)  # in the order of their numbers in the map cpu_programs
LAUNCH = "launch_probe"
LAUNCH_TAIL_CALLED = (
    "launch_native",
    "launch_scan",
    "launch_python",
    "launch_end",
)  # likewise in launch_programs
TRACEPOINTS = {
    "on_fork": "sched_process_fork",
    "on_exec": "sched_process_exec",
    "on_exit": "sched_process_exit",
}
MAPS = (
    "unwind_mappings",
    "unwind_pages",
    "unwind_rows",
    "unwind_rules",
    "python_layouts",
    "counters",
    "processes",
    "samples",
    "messages",
    "cpu_programs",  # empties itself when its last descriptor is closed
    "launches",
    "seen_stacks",
    "launch_programs",
)
