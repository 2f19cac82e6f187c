"""Begins to load the BPF programs while the rest of the sampler is still being imported.

Loading is mostly the kernel's verifier at work, importing is mostly Python at work: side by side they
take half the time. Nothing here imports numpy.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from gpuprof.bpf.program_source import LoadedPrograms, load_programs
from gpuprof.bpf.sizes import config_of

_begun: dict[int, Future[LoadedPrograms]] = {}  # by sampling rate


def begin(argv: Sequence[str], default_hz: int = 99) -> None:
    """Begin, unless the command line says that there shall be no CPU stacks. Never raises."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--hz", type=int, default=default_hz)
    parser.add_argument("--no-cpu", action="store_true")
    try:
        options, _ = parser.parse_known_args(argv)
    except (argparse.ArgumentError, SystemExit):
        return  # the real parser will say so
    if not options.no_cpu and 1 <= options.hz <= 999:
        result = _begun[options.hz] = Future()
        threading.Thread(target=_load, args=(options.hz, result), name="load-bpf", daemon=True).start()


def take(hz: int) -> LoadedPrograms:
    """What was begun for this rate, once it is there; begun now if it was not. Raises GpuprofError."""
    result = _begun.pop(hz, None)
    return result.result() if result is not None else load_programs(config_of(hz))


def _load(hz: int, result: Future[LoadedPrograms]) -> None:
    try:
        result.set_result(load_programs(config_of(hz)))
    except BaseException as error:  # noqa: BLE001  whoever takes it gets it
        result.set_exception(error)
