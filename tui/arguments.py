"""The arguments of `gpuprof-tui`: parsed, and what would be ignored or misread refused."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from gpuprof.tui.argument_parser import make_parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Prints and raises SystemExit for --help, --version and wrong usage, as argparse
    does."""
    parser, argv = make_parser(), list(argv)
    at = argv.index("--") if "--" in argv else len(argv)
    takes_command = bool({"record", "run"}.intersection(argv[:at]))
    _refuse_what_comes_too_early(parser, argv[:at])
    options, unknown = parser.parse_known_args(_with_ranges(argv[:at]) + ([] if takes_command else argv[at:]))
    if options.command is not None:
        parser = _commands(parser)[options.command]  # whose usage is shown with what is wrong
    if unknown:
        _refuse_the_unknown(parser, options.command, unknown)
    _refuse_what_is_of_no_use(parser, options)
    if not takes_command:
        return options
    options.cmd = argv[at + 1 :]
    if options.command == "run" and at == len(argv):
        parser.error("the command to run comes after --: gpuprof-tui run -- python train.py")
    if at < len(argv) and not options.cmd:
        parser.error(f"there is no command after --: gpuprof-tui {options.command} … -- python train.py")
    return options


def _with_ranges(argv: Sequence[str]) -> list[str]:
    """Join --range and a value such as -1..2, which argparse would take for an option."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] == "--range" and re.match(r"-[\d.]", word):
            joined[-1] = f"--range={word}"
        else:
            joined.append(word)
    return joined


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    found = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


def _refuse_the_unknown(
    parser: argparse.ArgumentParser, command: str | None, unknown: Sequence[str]
) -> NoReturn:
    """End with a usage error that says what to write instead."""
    given = " ".join(unknown)
    if command in {"run", "record"} and not unknown[0].startswith("-"):
        parser.error(f"the command to run comes after --: gpuprof-tui {command} … -- {given}")
    whole = f"gpuprof-tui {command}" if command else "gpuprof-tui"
    parser.error(f"{whole} does not take {given}; {whole} --help lists what it does")


def _refuse_what_comes_too_early(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """End with a usage error where an option of a command stands before the command."""
    choices = _commands(parser)
    at = next((at for at, word in enumerate(argv) if word in choices), 0)
    if not at:
        return
    own, of_command = parser._option_string_actions, choices[argv[at]]._option_string_actions
    for word in argv[:at]:
        option = word.partition("=")[0]
        if option in of_command and option not in own:
            parser.error(
                f"{option} comes after {argv[at]}: gpuprof-tui {argv[at]} … {option} …; "
                f"gpuprof-tui {argv[at]} --help lists what it takes"
            )


def _refuse_what_is_of_no_use(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End with a usage error where an option would be ignored in silence."""
    command = options.command
    if command is not None and options.host is not None:
        parser.error(
            f"--host shows the screen of another node; for {command}: ssh NODE gpuprof-tui {command} …"
        )
    if command in {"open", "demo", "report", "run"} or options.host is not None:
        given = {
            "--hz": options.hz,
            "--socket": options.socket,
            "--no-service": not options.service,
            "--gpu-overhead": options.gpu_overhead,
            "--offcpu-pid": options.offcpu_pid,
            "--offcpu-all": options.offcpu_all,
            "--offcpu-threshold": options.offcpu_threshold,
        }
        for name, value in given.items():
            if value and options.host is not None:
                parser.error(
                    f"{name} is for the sampler of the other node: "
                    f"--remote-command 'gpuprof-tui dial-stdio {name} …'"
                )
            if value:
                parser.error(f"{name} is for a sampler, and {command} starts none")
    if command == "report" and options.tree != "gpu":
        for name, value in (("--by-range", options.by_range), ("--scale", options.scale)):
            if value:
                parser.error(f"{name} is for the tree of GPU time: add --tree gpu")
    if command == "report" and options.bottom_up:
        if options.tree not in {"cpu", "gpu"}:
            parser.error("--bottom-up is for the trees of CPU samples and of GPU time: --tree cpu or gpu")
        for name, value in (("--scale", options.scale), ("--folded", options.folded)):
            if value:
                parser.error(f"--bottom-up and {name} do not go together: leave one of them out")
    if command == "report" and options.depth is not None and options.folded:
        parser.error("folded stacks are whole: leave out --depth or --folded")
    if command == "report" and options.folded and options.rate:
        parser.error("folded stacks have no place for --rate: leave out --folded, or use --json")
