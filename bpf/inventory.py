"""What the BPF side consists of: program families, tracepoints, maps, their sizes, offsets in the kernel.

All that compiling, caching, loading and the doctor do follows from these tables: a new program or map is an
entry here.
"""

from __future__ import annotations

from dataclasses import dataclass

PROG_KPROBE = 2  # enum bpf_prog_type; of uprobes, too
PROG_PERF_EVENT = 7
PROG_RAW_TRACEPOINT = 17


@dataclass(frozen=True, slots=True)
class Family:
    """Programs that are loaded together. `entry` is what is attached ("" for none); `tail_called`, in the
    order of their numbers in the program array `table`; `others` are attached each by itself.

    Without a family that is `required` there are no stacks at all; the others are loaded behind it.
    """

    name: str
    kind: int
    entry: str = ""
    tail_called: tuple[str, ...] = ()
    table: str = ""
    others: tuple[str, ...] = ()
    required: bool = False

    @property
    def programs(self) -> tuple[str, ...]:
        """All programs of the family."""
        return (*((self.entry,) if self.entry else ()), *self.tail_called, *self.others)


SAMPLING = "cpu_clock"
LAUNCH = "launch_probe"
GRAPH_CALL, GRAPH_CAPTURE_BEGINS, GRAPH_CAPTURE_ENDS = GRAPHS = (
    "graph_call",
    "graph_capture_begins",
    "graph_capture_ends",
)
WAIT = "wait_switch"
WAIT_TRACEPOINTS = {  # attached for as long as waits are followed
    WAIT: "sched_switch",
    "wait_waking": "sched_waking",
    "wait_fork": "sched_process_fork",
    "wait_exit": "sched_process_exit",
}
TRACEPOINTS = {  # attached for as long as sampling goes on
    "on_fork": "sched_process_fork",
    "on_exec": "sched_process_exec",
    "on_exit": "sched_process_exit",
}
FAMILIES = (
    Family(
        "cpu", PROG_PERF_EVENT, SAMPLING, ("cpu_native", "cpu_scan", "cpu_python", "cpu_mapping", "cpu_end"),
        "cpu_programs", required=True,
    ),
    Family("lifecycle", PROG_RAW_TRACEPOINT, others=tuple(TRACEPOINTS), required=True),
    Family(
        "launch", PROG_KPROBE, LAUNCH,
        ("launch_native", "launch_scan", "launch_python", "launch_mapping", "launch_end"), "launch_programs",
    ),
    Family("graphs", PROG_KPROBE, others=GRAPHS),
    Family(
        "wait", PROG_RAW_TRACEPOINT, WAIT,
        ("wait_native", "wait_scan", "wait_python", "wait_mapping", "wait_end"), "wait_programs",
        others=tuple(WAIT_TRACEPOINTS)[1:],
    ),
)  # fmt: skip

# Maps that the sampler gets a descriptor of.
MAPS = (
    "unwind_mappings",
    "unwind_pages",
    "unwind_rows",
    "unwind_rules",
    "python_layouts",
    "counters",
    "processes",
    "thread_states",
    "unwind_binaries",
    "samples",
    "messages",
    "codes",
    "cpu_programs",  # empties itself when its last descriptor is closed
    "launches",
    "seen_stacks",
    "launch_programs",
    "graph_calls",
    "wait_records",
    "tracked",
    "waits",
    "earlier_waits",
    "wait_settings",
    "wait_thresholds",
    "seen_waits",
    "may_be_tracked",
    "wait_programs",
)

# Maps whose size is chosen at the start: (macro in the C source, what one of its units is in `max_entries`).
# Such a macro must be nothing but a map's size, since the compiled programs are used again with other sizes.
SIZES = {
    "unwind_mappings": ("MAPPINGS", 1),
    "unwind_pages": ("PAGES", 1),
    "unwind_rows": ("ROW_BLOCKS", 1),
    "unwind_rules": ("RULES", 1),
    "python_layouts": ("PYTHON_LAYOUTS", 1),
    "samples": ("SAMPLE_RING_PAGES", 4096),
    "launches": ("LAUNCH_RING_PAGES", 4096),
    "wait_records": ("WAIT_RING_PAGES", 4096),
}

# A random number, new in every run, so that nobody outside can aim at a hash.
SEED_MACRO = "HASH_SEED"

# Macro: where a field lies in a structure of the kernel, from its type information.
KERNEL_OFFSETS = {
    "TASK_FSBASE": ("task_struct", "thread", "fsbase"),
    "TASK_PID": ("task_struct", "pid"),
    "TASK_TGID": ("task_struct", "tgid"),
    "TASK_GROUP_LEADER": ("task_struct", "group_leader"),
    "TASK_START_BOOTTIME": ("task_struct", "start_boottime"),
    "TASK_SIGNAL": ("task_struct", "signal"),
    "TASK_STACK": ("task_struct", "stack"),
    "TASK_FLAGS": ("task_struct", "flags"),
    "TASK_RUN_NS": ("task_struct", "se", "sum_exec_runtime"),
    "SIGNAL_LIVE": ("signal_struct", "live"),
}

# Macros that are defined all or none; of each the fields that kernels have had, newest first.
OffsetGroup = dict[str, tuple[tuple[str, ...], ...]]

# What kernel_mapping.bpf.h needs; without it a new process has no stacks until it was published.
KERNEL_MAPPING_OFFSETS: OffsetGroup = {
    "MM_TREE_ROOT": (("mm_struct", "mm_mt", "ma_root"),),  # 6.1+
    "MM_EXECUTABLE_PAGES": (("mm_struct", "exec_vm"),),
    "MM_START_STACK": (("mm_struct", "start_stack"),),
    "MM_EXE_FILE": (("mm_struct", "exe_file"),),
    "MM_VDSO": (("mm_struct", "context", "vdso"),),
    "MM_ARG_START": (("mm_struct", "arg_start"),),
    "MM_ARG_END": (("mm_struct", "arg_end"),),
    "TASK_MM": (("task_struct", "mm"),),
    "TASK_COMM": (("task_struct", "comm"),),
    "TASK_REAL_PARENT": (("task_struct", "real_parent"),),
    "TASK_THREAD_PID": (("task_struct", "thread_pid"),),
    "PID_LEVEL": (("pid", "level"),),
    "PID_NUMBERS": (("pid", "numbers"),),
    "VMA_START": (("vm_area_struct", "vm_start"),),  # the end follows it
    "VMA_FLAGS": (("vm_area_struct", "vm_flags"),),
    "VMA_PAGE_OFFSET": (("vm_area_struct", "vm_pgoff"),),
    "VMA_FILE": (("vm_area_struct", "vm_file"),),
    "FILE_INODE": (("file", "f_inode"),),
    "FILE_MODE": (("file", "f_mode"),),
    "DENTRY_INODE": (("dentry", "d_inode"),),
    "INODE_NUMBER": (("inode", "i_ino"),),
    "INODE_SIZE": (("inode", "i_size"),),
    "INODE_SUPER_BLOCK": (("inode", "i_sb"),),
    "INODE_MTIME_SECONDS": (
        ("inode", "i_mtime_sec"), ("inode", "__i_mtime", "tv_sec"), ("inode", "i_mtime", "tv_sec"),
    ),
    "INODE_MTIME_NANOSECONDS": (
        ("inode", "i_mtime_nsec"), ("inode", "__i_mtime", "tv_nsec"), ("inode", "i_mtime", "tv_nsec"),
    ),
    "SUPER_BLOCK_DEVICE": (("super_block", "s_dev"),),
}  # fmt: skip

# Where fields lie that a kernel may lack.
OPTIONAL_OFFSETS: tuple[OffsetGroup, ...] = (
    {"TASK_STATE": (("task_struct", "__state"), ("task_struct", "state"))},
    KERNEL_MAPPING_OFFSETS,
    {"BACKING_FILE_DENTRY": (("backing_file", "user_path", "dentry"),)},  # 6.8+
)

# Macro: defined where the arguments of a raw tracepoint are these (whether each is a pointer).
TRACEPOINT_FORMS = {
    "SWITCH_HAS_STATE": ("sched_switch", [False, True, True, False]),  # 5.19+
}


def family_of(program: str) -> Family:
    """The family that a program belongs to. KeyError for a name that is none."""
    for family in FAMILIES:
        if program in family.programs:
            return family
    raise KeyError(program)
