"""Where the BPF programs come from: kept from an earlier run, or compiled by the loader process; then
loaded.

The compiled code depends on the C source, on the kernel and its type information, and on bcc: a change of
any of them is a new key in the cache. It does not depend on table sizes nor on the hash seed, which are
put in when the maps are made and the code is linked.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from gpuprof.bpf import btf, features, headers, inventory, loader, permission
from gpuprof.bpf.inventory import MAPS, SIZES, Family
from gpuprof.bpf.program_cache import ProgramCache, folder, key_of
from gpuprof.bpf.program_load import CLOSED, FamilyLoader, TooLargeError, be_nice, close_all, make_maps
from gpuprof.bpf.program_object import MAX_BYTES, ObjectError, ProgramObject, unpack
from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, GpuprofError

COMPILE_TIMEOUT_S = 180.0  # an emulated or very busy machine takes more than a minute
_STOP_CHECK_S = 0.25
# How much of a stack one program walks before it calls the next. The verifier looks at every turn of these
# loops; where it gives up, smaller programs are tried, which call each other more often.
CHUNKS = (
    {"FRAMES_PER_PROGRAM": 16, "PYTHON_FRAMES_PER_PROGRAM": 128},
    {"FRAMES_PER_PROGRAM": 8, "PYTHON_FRAMES_PER_PROGRAM": 64},
    {"FRAMES_PER_PROGRAM": 5, "PYTHON_FRAMES_PER_PROGRAM": 32},
)


REQUIRED, OPTIONAL = {"ONLY_REQUIRED": 1}, {"ONLY_OPTIONAL": 1}  # the parts that are compiled each by itself
NICE = 5  # of what loads the optional part


class LoadedPrograms:
    """Programs in the kernel: of all required families, and of the others as they come. `maps` and
    `programs`: descriptors by name. `origin` is "kept" or "compiled".
    """

    def __init__(self, config: Mapping[str, int], cache: ProgramCache) -> None:
        self.config = config
        self.maps: dict[str, int] = {}
        self.programs: dict[str, int] = {}
        self._cache = cache
        self._seed = int.from_bytes(os.urandom(8), "little")
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._required = [family for family in inventory.FAMILIES if family.required]
        self._optional = [family for family in inventory.FAMILIES if not family.required]
        self._loaders: list[FamilyLoader] = []
        self._rest: Future[FamilyLoader] = Future()
        try:
            self.origin = self._load_part(REQUIRED, self._required)
            missing = [name for name in MAPS if name not in self.maps]
            if missing:
                raise GpuprofError(f"the BPF map {missing[0]} is not there", "", EXIT_UNAVAILABLE)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._load_rest, name="load-bpf-rest", daemon=True).start()

    def wait(self, name: str) -> None:
        """Until a family is loaded. GpuprofError where it cannot be."""
        if any(family.name == name for family in self._required):
            self._loaders[0].wait(name)
        else:
            self._rest.result().wait(name)

    def close(self) -> None:
        """Give everything back to the kernel; what is being loaded goes when it is."""
        with self._lock:
            self._closed.set()
            for loader_ in self._loaders:
                loader_.close()
            close_all(self.maps.values())
            self.maps.clear()

    def _load_rest(self) -> None:
        be_nice(NICE)
        try:
            self._load_part(OPTIONAL, self._optional)
            self._rest.set_result(self._loaders[-1])
        except BaseException as error:  # noqa: BLE001  whoever needs these programs gets it
            self._rest.set_exception(error)

    def _load_part(self, part: Mapping[str, int], families: Sequence[Family]) -> str:
        """Load what is kept of a part, else compile it; where it came from."""
        sizes = {macro for macro, _ in SIZES.values()}
        macros = {name: value for name, value in {**self.config, **part}.items() if name not in sizes}
        key = cache_key(macros)
        kept = self._cache.read(key)
        if kept is not None:
            try:
                self._load(kept, families)
                return "kept"
            except GpuprofError:
                self._cache.drop(key)  # it loaded when it was kept; the truth is what compiling it now says
        refusal = GpuprofError("no programs")
        macros = {**features.macros(), **macros}
        for chunk in CHUNKS:
            compiled = compile_programs({**chunk, **macros}, self._closed)
            try:
                self._load(compiled, families)
            except TooLargeError as error:
                refusal = error
                continue
            except GpuprofError as error:
                raise features.explained(error, compiled) from None
            self._cache.write(key, compiled)
            return "compiled"
        raise features.explained(refusal, compiled)

    def _load(self, compiled: ProgramObject, families: Sequence[Family]) -> None:
        """Make the maps that are not there and wait until all families are loaded. Raises GpuprofError."""
        with self._lock:
            if self._closed.is_set():
                raise CLOSED
            made = make_maps(compiled.maps, self.config, self.maps)
            maps = {**self.maps, **made}
            nice = 0 if families is self._required else NICE
            new = FamilyLoader(families, compiled, maps, seed=self._seed, programs=self.programs, nice=nice)
            self._loaders.append(new)
            self.maps.update(made)
        try:
            new.wait_for_all()
        except BaseException:
            with self._lock:
                new.close()
                if not self._closed.is_set():  # else they are closed already
                    self._loaders.remove(new)
                    close_all([self.maps.pop(name) for name in made])
            raise


def load_programs(config: Mapping[str, int], cache: ProgramCache | None = None) -> LoadedPrograms:
    """Load what is kept, else compile it. `config`: table sizes by macro, and other macros. Raises
    GpuprofError.
    """
    permission.check()
    permission.raise_locked_memory()
    return LoadedPrograms(config, cache or ProgramCache(folder()))


def cache_key(macros: Mapping[str, int]) -> str:
    """The key of what would be compiled here and now."""
    system = os.uname()
    ours = [_read(Path(module.__file__ or "")) for module in (inventory, loader, headers, btf, features)]
    return key_of(
        [
            loader.source_text().encode(),
            *ours,
            json.dumps([sorted(macros.items()), CHUNKS]).encode(),
            f"{system.release} {system.version} {system.machine}".encode(),
            _read(btf.VMLINUX),
            _bcc_version(),
        ]
    )


def compile_programs(macros: Mapping[str, int], stop: threading.Event | None = None) -> ProgramObject:
    """Run the loader process, until `stop` is set. Raises GpuprofError."""
    body, programs, status = _ask_loader(dict(macros), stop or threading.Event())
    message: dict[str, Any] = json.loads(body) if body else {"ok": False}
    if not message["ok"]:
        text = message.get("message", f"the BPF compiler ended with status {status} and no answer")
        raise GpuprofError(text, message.get("hint", ""), message.get("exit_code", EXIT_UNAVAILABLE))
    try:
        return unpack(programs)
    except ObjectError as error:
        raise GpuprofError(f"the BPF compiler gave no programs: {error}", "", EXIT_UNAVAILABLE) from None


def _ask_loader(macros: dict[str, int], stop: threading.Event) -> tuple[bytes, bytes, int | None]:
    """(the loader's one message, the programs that came with it, its exit status)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # -I: neither the working directory nor PYTHON* variables decide what a privileged process imports.
    command = [sys.executable, "-I", "-m", "gpuprof.bpf.loader", "--fd", str(theirs.fileno())]
    with ours, theirs:
        process = subprocess.Popen(
            [*command, "--config", json.dumps(macros)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        try:
            deadline = time.monotonic() + COMPILE_TIMEOUT_S
            while not select.select([ours], [], [], min(_STOP_CHECK_S, COMPILE_TIMEOUT_S))[0]:
                if stop.is_set():
                    raise CLOSED
                if time.monotonic() >= deadline:
                    raise GpuprofError("the BPF compiler did not answer in time", "", EXIT_UNAVAILABLE)
            body, descriptors, _, _ = socket.recv_fds(ours, 1 << 16, 4)
            programs = b"".join(_contents(fd) for fd in descriptors)
            return body, programs, None if body else process.wait(COMPILE_TIMEOUT_S)
        except OSError as error:
            raise GpuprofError(f"the BPF compiler did not answer: {error}", "", EXIT_UNAVAILABLE) from None
        finally:
            process.kill()
            process.wait()


def _contents(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return file.read(MAX_BYTES + 1)


def _bcc_version() -> bytes:
    """Which bcc would compile: its version and where it lies, without importing it."""
    for root in loader.bcc_roots():
        version = _read(root / "bcc" / "version.py")
        if version:
            return str(root).encode() + version
    return b""


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""
