"""The help screen: every key, and what every number means."""

from __future__ import annotations

from gpuprof.tui.screens.page import Page

HELP: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Anywhere",
        (
            ("q, Ctrl-C", "quit"),
            ("?", "this page"),
            ("Tab, Shift-Tab", "next, previous part: charts, tree, processes"),
            ("v", "select a range of time; then arrows, Enter pins it"),
            ("mouse drag on charts", "the same; Shift-drag selects text in the terminal"),
            ("Esc", "let go: zoom first, then the range, then the filter"),
            ("f", "filter the tree: pid 4711, tid 12, cpu 0-3, or part of a process name"),
            ("1, 2", "tree of CPU samples; of GPU time by the stack that launched the work"),
            ("3", "what the threads that feed a GPU were doing while it was idle"),
            ("4", "off-CPU: what threads waited for, in which code, and who ended the wait"),
            (
                "u",
                "bottom up, and back: GPU time by kernel, CPU samples by the function that ran itself; below "
                "each row who called it",
            ),
            ("x", "show internal frames, and hide them"),
            ("/", "search the tree; n and N go to the next and the previous match"),
            (
                "r",
                "in the tree of GPU time: chart how often a second the kernel, function or range of this row "
                "is done (launches of a function, from where it launched); r again takes it away",
            ),
            ("b", "tree of GPU time by the NVTX ranges that the launches were in, and back"),
            ("t", "tree by thread, and back"),
            ("space", "pause the live tree, and go on (charts go on by themselves)"),
            ("p", "process table: beside the tree, alone, or not at all"),
            ("i", "icicle: the same tree as boxes, and back"),
            ("[ and ]", "less and more room for the charts"),
            ("Ctrl-L, Ctrl-Z", "draw the screen again; suspend (fg goes on)"),
            (
                "w",
                "save a snapshot of the pinned range, or of the whole history, as "
                "gpuprof-HOST-DATE-TIME.gpuprof in the folder that gpuprof-tui was started in; it asks "
                "nothing, replaces nothing, and says the whole path",
            ),
            ("m", "the whole summary, and all that does not work and what to do about it"),
            ("D", "open the bundled recording of a GPU run; D again goes back"),
        ),
    ),
    (
        "Charts",
        (
            ("+ and -, wheel", "less and more time"),
            ("left, right", "back and forth in time, or move the cursor; with Shift ten times as far"),
            ("Home, End, F", "the oldest readings, back to live, everything at once"),
            ("v, arrows, Enter", "select and pin a range; o moves its other end"),
            ("click", "place the cursor: the legend then shows the values there"),
            ("up, down", "charts that do not fit"),
            ("g, G", "all GPUs, or one at a time with its processes, its work and its GPU time"),
        ),
    ),
    (
        "Tree",
        (
            ("arrows, h j k l", "move; left closes or goes to the caller, right opens or goes to the callee"),
            ("PgUp PgDn, Home End", "move far; g and G are Home and End"),
            ("Enter, double click", "zoom into a subtree; Esc zooms out"),
            ("e, c", "open all, close all"),
        ),
    ),
    (
        "Processes",
        (
            ("Enter, double click", "keep the tree to this process"),
            ("s, r, click a title", "sort by the next column, reverse"),
            ("a", "have a running process record its GPU time; asks first, or shows the command to type"),
            ("REC ●, a, !", "recorded; key a attaches to it; not recorded, and why, behind the name"),
        ),
    ),
    (
        "What the numbers mean",
        (
            (
                "width, % of a row",
                "share of the samples whose stack passes through that code, of what is shown",
            ),
            ("% at the right edge", "self: samples in that very line, not in what it calls"),
            (
                "samples",
                "each core is looked at 99 times a second (or as the header says): one sample is about 10 ms "
                "of one core running this code. Idle cores give none; a thread that waits gives none.",
            ),
            (
                "colour",
                "the binary that the code is in, the same in every run; Python and kernel have their own",
            ),
            (
                "GPU time",
                "sum of the times of kernels and copies that the code launched; work that runs at the same "
                "time counts as often, so it can exceed the length of the range",
            ),
            (
                "busy, idle",
                "of a device: when any work ran; idle is said only while all of its processes are recorded "
                "(REC ●), else it is not observed",
            ),
            (
                "kernels /s, work rate",
                "how often it was done: kernels and NVTX ranges that ended, launches made under a function. "
                "How often a function that launches nothing was called, samples cannot tell",
            ),
            ("~ before a %", "estimated from a sample; the line below the tree has the standard error (±)"),
            (
                "[stack not taken]",
                "work of kernels none of whose launches got a stack within the overhead budget; that of "
                "other kernels is shared out among the launches that got one (~)",
            ),
            (
                "GPU idle",
                "idle time of observed devices, shared equally by the threads that launch on each; where one "
                "only waits for another of them it counts as that one. Waits are exact; the rest is divided "
                "among their CPU samples (~)",
            ),
            ("meanwhile x", "what the thread that ended the wait was doing during the wait"),
            ("off-CPU", "time in which threads waited or were not scheduled, of all threads together"),
            (
                "internal frames",
                "CPython's own functions around Python frames, how it comes from an import to the module, "
                "how libc starts a program or thread, and the kernel's way into a wait; hidden, their time "
                "is that of their caller",
            ),
            (
                "(caller guessed)",
                "this code has no unwind tables (made at run time, hand-written): what looked like a return "
                "address on the stack was taken for its caller, so that the rows above it may be wrong; "
                "those below are not",
            ),
            ("other (n)", "n callees too small to show, summed, so that totals always add up"),
            ("[truncated: …]", "the stack could not be read to its root, and why"),
            ("stacks cut short", "how many samples of this tree those are"),
            (
                "last 30 s, live",
                "what the tree is of until a range is pinned; + and - change the charts only",
            ),
            ("util %", "share of the driver's window in which a kernel ran at all; not how full the GPU was"),
            ("SM, tensor, DRAM", "share of cycles in which those units worked (GPM)"),
            ("CPU %", "of one core: 250 is two and a half cores"),
            ("–", "not known, or not supported there; never 0"),
            ("lost", "samples that the kernel had no room for; dropped: to this screen, because it was slow"),
            ("sampler", "CPU of one core and memory that the sampler itself uses"),
        ),
    ),
)


class HelpScreen(Page):
    """Shown over the main screen; any of ? q Esc closes it."""

    def __init__(self) -> None:
        super().__init__(HELP)
