"""The options of `gpuprof-tui` and of each of its commands, and its help."""

from __future__ import annotations

import argparse
import os

from gpuprof.tui.argument_values import depth, duration, hz, milliseconds, percent, pid, share

_DESCRIPTION = """\
Shows what the GPUs of a node are doing and, for any range of time, which line of code the host was running
meanwhile. With no command: the live screen of this node. CPU stacks need root: sudo gpuprof-tui."""

_EXAMPLES = """\
examples:
  sudo gpuprof-tui                                    live charts and CPU stacks of this node
  gpuprof-tui --host user@node17                      the same of another node, over ssh
  gpuprof-tui run -- python train.py                  start a workload so that its GPU work can be seen
  sudo gpuprof-tui attach 4711                        the same for a process that runs already
  gpuprof-tui record -o run.gpuprof -- python t.py    record while a command runs, without a screen
  gpuprof-tui open run.gpuprof                        look at it, on any machine
  gpuprof-tui report run.gpuprof --range 3.5..7       the same as text
  gpuprof-tui doctor                                  what works here, and the line that fixes what does not

`gpuprof-tui COMMAND --help` has the options of each command."""


class _OneHost(argparse.Action):
    """--host, of which a second would take the place of the first in silence."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, *_: object
    ) -> None:
        if getattr(namespace, self.dest, None) is not None:
            parser.error("--host is given twice, and a screen shows one node: start one for each")
        setattr(namespace, self.dest, values)


class _Version(argparse.Action):
    """--version, which looks the version up only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata

        try:
            version = metadata.version("gpuprof-tui")
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        print(f"gpuprof-tui {version}")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpuprof-tui",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument(
        "--host", metavar="USER@NODE", action=_OneHost, help="the screen of another node, over ssh"
    )
    parser.add_argument(
        "--ssh-command",
        metavar="CMD",
        default=os.environ.get("GPUPROF_SSH") or "ssh",
        help="the ssh client and its options (default: $GPUPROF_SSH, or ssh)",
    )
    parser.add_argument(
        "--remote-command",
        metavar="CMD",
        default="gpuprof-tui dial-stdio",
        help="what to run there (default: gpuprof-tui dial-stdio)",
    )
    parser.set_defaults(hz=None, socket=None, service=True, gpu_overhead=None)
    parser.set_defaults(offcpu_pid=None, offcpu_all=False, offcpu_threshold=None)
    _sampling(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    opening = _command(commands, "open", "look at a snapshot in the same screen")
    opening.add_argument("file", metavar="FILE")

    _command(commands, "demo", "look at a bundled recording of a training run on a real GPU")

    report = _command(commands, "report", "print the tree of a snapshot as text, as JSON, or folded")
    report.description = (
        "Prints the tree of a snapshot. Processes of one name that are too small to be seen are one row, "
        "such as python3 (302 processes), where together they are not. A file that is damaged, or still "
        "being recorded, is read as far as it goes: that is said on standard error, in the report and as "
        '"damage" or "recording" in --json, and the exit status is 0.'
    )
    report.add_argument("file", metavar="FILE")
    report.add_argument(
        "--range",
        metavar="A..B",
        help="seconds from the start, such as 3.5..7, or times of day, 14:02:11..14:02:15",
    )
    report.add_argument(
        "--tree", choices=("cpu", "gpu", "idle", "offcpu"), default="cpu", help="default: cpu"
    )
    report.add_argument(
        "--pid", type=pid, action="append", default=[], help="only this process (may be repeated)"
    )
    report.add_argument(
        "--rate",
        action="append",
        default=[],
        metavar="NAME",
        help="how often a second this kernel, NVTX range, or launch under this function was done",
    )
    report.add_argument(
        "--min-percent",
        type=percent,
        metavar="X",
        help="rows below this part of the whole are summed in other (n) (text: 0.5, others: 0)",
    )
    report.add_argument("--by-thread", action="store_true", help="a row for each thread")
    report.add_argument(
        "--by-range", action="store_true", help="GPU time: by the NVTX ranges that launched it first"
    )
    report.add_argument(
        "--bottom-up",
        action="store_true",
        help="GPU time by kernel, CPU samples by the function that ran, and below each who called it",
    )
    report.add_argument(
        "--scale",
        action="store_true",
        help="GPU time: estimate what ran in pauses of the recording, each with its error",
    )
    report.add_argument(
        "--internals",
        action="store_true",
        help="keep frames of the Python interpreter, of libc's start and of kernel entry "
        "(--json always does)",
    )
    form = report.add_mutually_exclusive_group()
    form.add_argument(
        "--json",
        action="store_true",
        help="as JSON, for programs, nested as deep as the stacks are: jq before 1.7 needs --depth 80",
    )
    form.add_argument(
        "--folded",
        action="store_true",
        help="as folded stacks, for flame graph viewers: a line for each path, and its samples or ns",
    )

    report.add_argument(
        "--depth",
        type=depth,
        metavar="N",
        help="no rows more than N below each other; with --json they are summed in deeper (n)",
    )

    record = _command(commands, "record", "write a snapshot without a screen")
    record.description = (
        "Records until the time is over, the command has ended, or Ctrl-C, whichever comes first, and leaves "
        "a complete file. A command that still runs when the time is over gets SIGTERM, as does what it has "
        "started. Under sudo it is started as the caller."
    )
    record.usage = (
        "gpuprof-tui record [-h] -o FILE [--for TIME] [--force] [--hz HZ] [--gpu-overhead SHARE] [-- CMD ...]"
    )
    record.add_argument("-o", "--output", metavar="FILE", required=True, help="the snapshot to write")
    record.add_argument("--for", dest="seconds", type=duration, metavar="TIME", help="how long: 60s, 5m, 2h")
    record.add_argument("-f", "--force", action="store_true", help="replace the file if it is there")
    _sampling(record)

    running = _command(commands, "run", "start a workload with GPU time ready to be recorded")
    running.description = (
        "Starts the command with the library that records its GPU work, which does nothing until a sampler "
        "listens (sudo gpuprof-tui, or record)."
    )
    running.usage = "gpuprof-tui run [-h] -- CMD ..."

    attach = _command(commands, "attach", "the same for processes that run already")
    attach.description = (
        "Has running processes load the library that records their GPU work, without a restart: one waiting "
        "thread of each is stopped for about a millisecond. Then opens the screen, unless a sampler is "
        "recording them already. Needs root where the system lets users not look at each other's, or their "
        "own, processes. One that cannot be attached to keeps it from none of the others; the exit status "
        "then tells of it."
    )
    attach.add_argument("pids", metavar="PID", type=pid, nargs="+")
    attach.add_argument("--no-screen", action="store_true", help="only attach")
    _sampling(attach)

    dial = _command(commands, "dial-stdio", "serve a screen at the other end of ssh (used by --host)")
    _sampling(dial)

    sampler = _command(commands, "sampler", "run the sampler as a service, in the foreground")
    sampler.description = (
        "Serves everyone in the group gpuprof, and root, until SIGTERM. The screen finds it by itself."
    )
    hidden = argparse.SUPPRESS
    add = sampler.add_argument
    add(
        "--socket",
        metavar="PATH",
        default=hidden,
        help="where to listen (default: /run/gpuprof/sampler.sock)",
    )
    add("--hz", type=hz, metavar="HZ", default=hidden, help="CPU stack samples per second and core (99)")
    _gpu_overhead(sampler)
    _offcpu(sampler)

    doctor = _command(commands, "doctor", "what works here, what does not, and the line that fixes it")
    doctor.add_argument("--socket", metavar="PATH", default=hidden, help=hidden)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return command


def _sampling(parser: argparse.ArgumentParser) -> None:
    """Options of whatever may start a sampler. SUPPRESS: a command's default must not undo what came before
    it."""
    add = parser.add_argument
    add(
        "--hz",
        type=hz,
        metavar="HZ",
        default=argparse.SUPPRESS,
        help="CPU stack samples per second and core (99)",
    )
    _gpu_overhead(parser)
    _offcpu(parser)
    add("--socket", metavar="PATH", default=argparse.SUPPRESS, help="the running service's socket")
    add(
        "--no-service",
        dest="service",
        action="store_false",
        default=argparse.SUPPRESS,
        help="start a sampler even where a service runs",
    )


def _gpu_overhead(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu-overhead",
        type=share,
        metavar="SHARE",
        default=argparse.SUPPRESS,
        help="what recording GPU time may cost a workload's launching threads: 1%% (default), 0.5%%, off",
    )


def _offcpu(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--offcpu-pid",
        type=pid,
        action="append",
        metavar="PID",
        default=argparse.SUPPRESS,
        help="follow the waits of this process, too, and of its descendants (may be repeated)",
    )
    add(
        "--offcpu-all",
        action="store_true",
        default=argparse.SUPPRESS,
        help="follow the waits of all processes, not only of those on a GPU",
    )
    add(
        "--offcpu-threshold",
        type=milliseconds,
        metavar="MS",
        default=argparse.SUPPRESS,
        help="waits shorter than this are sampled (1 ms)",
    )
