"""Makes the maps of compiled programs and has the kernel load the programs, side by side on several cores.

The verifier is most of the work (0.1 s for each large program) and runs outside of the GIL.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

from gpuprof.bpf import syscalls
from gpuprof.bpf.inventory import SIZES, Family
from gpuprof.bpf.permission import ROOT_HINT
from gpuprof.bpf.program_object import MapSpec, Program, ProgramObject, link
from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, GpuprofError

DOCTOR_HINT = "gpuprof-tui doctor shows what this kernel and bcc offer."
MAX_WORKERS = 8
_LOG_BYTES = 256 << 10
CLOSED = GpuprofError("the programs were closed", "", EXIT_UNAVAILABLE)
_SAID_BESIDE = ("processed ", "HINT:", "libbpf:", "verification time", "stack depth", "max_states")


class TooLargeError(GpuprofError):
    """The verifier gave up before it had seen all of a program: smaller programs may pass."""


def last_words(output: str) -> str:
    """The line of clang's or the verifier's output that says what is wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line]
    if errors:
        return errors[0][:400]
    lines = [line for line in lines if not line.startswith(_SAID_BESIDE)]
    return lines[-1][:400] if lines else ""


def make_maps(
    specs: Mapping[str, MapSpec], config: Mapping[str, int], there: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Descriptors of new maps, for those that are not `there`; `config` has the sizes that SIZES names.
    Raises GpuprofError.
    """
    made: dict[str, int] = {}
    try:
        for spec in specs.values():
            if spec.name in (there or {}):
                continue
            entries = spec.max_entries
            if spec.name in SIZES:
                macro, factor = SIZES[spec.name]
                entries = config[macro] * factor
            made[spec.name] = syscalls.map_create(
                spec.name, spec.type, spec.key_size, spec.value_size, max_entries=entries, flags=spec.flags
            )
    except OSError as error:
        close_all(made.values())
        raise _failure(f"the kernel refused the BPF map {spec.name}", error) from None
    except BaseException:
        close_all(made.values())
        raise
    return made


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors, each of which is the caller's own and open."""
    for fd in list(descriptors):
        with contextlib.suppress(OSError):
            os.close(fd)


class FamilyLoader:
    """Families on their way into the kernel, and the owner of their programs. `programs`: descriptors by
    name, of families that are complete; may be shared with other loaders.
    """

    def __init__(
        self,
        families: Sequence[Family],
        compiled: ProgramObject,
        maps: Mapping[str, int],
        *,
        seed: int,
        programs: dict[str, int] | None = None,
        nice: int = 0,
    ) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._maps = maps
        self._seed = seed
        self.programs = {} if programs is None else programs
        self._families = {family.name: family for family in families}
        self._parts: dict[str, dict[str, Future[int]]] = {}
        workers = min(len(os.sched_getaffinity(0)), MAX_WORKERS)
        pool = ThreadPoolExecutor(workers, "bpf-load", lambda: be_nice(nice))
        for family in families:
            found = [compiled.programs[name] for name in family.programs if name in compiled.programs]
            # The largest first: the others are done while those last.
            self._parts[family.name] = {
                program.name: pool.submit(self._load, family.kind, program)
                for program in sorted(found, key=lambda program: -len(program.code))
            }
        pool.shutdown(wait=False)

    def wait(self, name: str) -> None:
        """Until a family is loaded and its programs call each other. GpuprofError where the kernel
        refuses one, or it was closed.
        """
        family, parts = self._families[name], self._parts[name]
        missing = [program for program in family.programs if program not in parts]
        if missing:
            raise GpuprofError(f"the BPF program {missing[0]} is not there", DOCTOR_HINT, EXIT_UNAVAILABLE)
        try:
            loaded = {program: part.result() for program, part in parts.items()}
        except CancelledError:
            raise CLOSED from None
        with self._lock:
            if self._closed:
                raise CLOSED
            if loaded.keys() <= self.programs.keys():
                return
            for number, program in enumerate(family.tail_called):
                key, value = struct.pack("<I", number), struct.pack("<I", loaded[program])
                try:
                    syscalls.map_update(self._maps[family.table], key, value)
                except OSError as error:
                    raise _failure(f"the BPF program {program} cannot be called by others", error) from None
            self.programs |= loaded

    def wait_for_all(self) -> None:
        """The same for every family."""
        for name in self._families:
            self.wait(name)

    def close(self) -> None:
        """Close all programs, also those that are still being loaded. A second time there is nothing to do:
        the numbers of their descriptors may be those of other files by then.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for family in self._families.values():
                for program in family.programs:
                    self.programs.pop(program, None)
        for parts in self._parts.values():
            for part in parts.values():
                if not part.cancel():
                    part.add_done_callback(_close_result)

    def _load(self, kind: int, program: Program) -> int:
        code = link(program, self._maps, self._seed)
        try:
            return syscalls.program_load(program.name, kind, code)
        except syscalls.ProgramRefused:
            pass  # once more, for its words, which cost time and may not fit
        try:
            return syscalls.program_load(program.name, kind, code, log_bytes=_LOG_BYTES)
        except syscalls.ProgramRefused as error:
            raise _failure(f"the kernel refused the BPF program {program.name}", error) from None


def be_nice(nice: int) -> None:
    """Let this thread stand back, if `nice` is more than 0."""
    if nice:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def _close_result(part: Future[int]) -> None:
    if not part.cancelled() and part.exception() is None:
        close_all([part.result()])


def _failure(what: str, error: OSError) -> GpuprofError:
    detail = last_words(getattr(error, "log", "")) or error.strerror or str(error)
    if error.errno in (errno.EPERM, errno.EACCES) and not getattr(error, "log", ""):
        return GpuprofError(f"no permission: {what}", ROOT_HINT, EXIT_NO_PERMISSION)
    too_large = error.errno in (errno.E2BIG, errno.ENOSPC) or "too large" in detail or "too complex" in detail
    kind = TooLargeError if too_large else GpuprofError
    return kind(f"{what}: {detail}", DOCTOR_HINT, EXIT_UNAVAILABLE)
