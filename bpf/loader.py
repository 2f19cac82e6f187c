"""Compiles the BPF programs with bcc and hands them over as bytes; run as `python -m gpuprof.bpf.loader`.

The only module that imports bcc, and a process of its own: LLVM needs some hundred megabytes that the sampler
must not keep. It is given a descriptor of a SOCK_SEQPACKET socket (`--fd`) and macros for the source
(`--config`, JSON), sends one message and exits. The message is JSON: {"ok": true} with a memfd attached by
SCM_RIGHTS that holds the programs as program_object.pack() gives them; or {"ok": false, "message", "hint",
"exit_code"}. bcc makes the maps that the source declares while it compiles; they are gone with this process.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from gpuprof.bpf import headers, permission, syscalls
from gpuprof.bpf.btf import Btf, BtfError
from gpuprof.bpf.inventory import (
    FAMILIES,
    KERNEL_OFFSETS,
    MAPS,
    OPTIONAL_OFFSETS,
    SEED_MACRO,
    SIZES,
    TRACEPOINT_FORMS,
)
from gpuprof.bpf.program_load import DOCTOR_HINT, last_words
from gpuprof.bpf.program_object import MapSpec, ObjectError, Program, ProgramObject, pack, take
from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, GpuprofError
from gpuprof.snapshots.process_name import set_process_name

SOURCE = "stacks.bpf.c"
_PR_SET_PDEATHSIG = 1

INSTALL_HINT = "Install it with: apt install python3-bpfcc"
_IMPOSTOR_HINT = "PyPI's bcc is an unrelated package: pip uninstall bcc, then apt install python3-bpfcc"
# No debug information: nothing reads it, and it costs a fifth of the time.
_FLAGS = ("-g0", "-Wno-macro-redefined", "-Wno-unused-function", "-Wno-address-of-packed-member")


def bcc_roots() -> list[Path]:
    """Where distributions put Python packages, for their own Python and for any."""
    roots = [Path("/usr/lib/python3/dist-packages"), Path("/usr/local/lib/python3/dist-packages")]
    roots += sorted(Path("/usr/lib").glob("python3.*/site-packages"), reverse=True)
    return roots + sorted(Path("/usr/lib64").glob("python3.*/site-packages"), reverse=True)


def find_bcc(roots: list[Path] | None = None) -> ModuleType:
    """The distribution's bcc, whatever environment this interpreter runs in. GpuprofError: missing, or PyPI's
    impostor.
    """
    if roots is None:
        roots = [*bcc_roots(), *(Path(entry) for entry in sys.path if entry)]
    impostor = False
    for root in roots:
        init = root / "bcc" / "__init__.py"
        if not init.is_file():
            continue
        if not (root / "bcc" / "libbcc.py").is_file():
            impostor = True
            continue
        spec = importlib.util.spec_from_file_location(
            "bcc", init, submodule_search_locations=[str(init.parent)]
        )
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        for name in [name for name in sys.modules if name == "bcc" or name.startswith("bcc.")]:
            del sys.modules[name]
        sys.modules["bcc"] = module
        try:
            spec.loader.exec_module(module)
        except (ImportError, OSError, SyntaxError) as error:
            raise GpuprofError(
                f"bcc is installed but does not load: {error}", INSTALL_HINT, EXIT_UNAVAILABLE
            ) from None
        if hasattr(module, "BPF"):
            return module
        impostor = True
    if impostor:
        raise GpuprofError(
            "the bcc that is installed is not the BPF Compiler Collection", _IMPOSTOR_HINT, EXIT_UNAVAILABLE
        )
    raise GpuprofError("bcc, which loads the BPF programs, is not installed", INSTALL_HINT, EXIT_UNAVAILABLE)


def paste_includes(name: str, directory: Path, seen: set[str] | None = None) -> str:
    """A source with its own quoted includes in place, each once: bcc rewrites map operations in the main file
    only.
    """
    seen = set() if seen is None else seen
    lines = []
    for number, line in enumerate((directory / name).read_text(encoding="utf-8").splitlines(), 1):
        match = re.match(r'\s*#include "([a-z_.]+)"', line)
        if match is None:
            lines.append(line)
        elif match[1] not in seen:
            seen.add(match[1])
            lines += ["#line 1 " + json.dumps(match[1]), paste_includes(match[1], directory, seen)]
            lines.append(f"#line {number + 1} " + json.dumps(name))
    return "\n".join(lines) + "\n"


def source_text() -> str:
    """The C source as bcc gets it."""
    return paste_includes(SOURCE, Path(__file__).parent)


def kernel_offsets(btf: Btf) -> dict[str, int]:
    """The offsets in kernel structures that the programs need, as macros."""
    found = {macro: btf.offset(*field) for macro, field in KERNEL_OFFSETS.items()}
    for group in OPTIONAL_OFFSETS:
        with contextlib.suppress(BtfError):
            found |= {macro: btf.first_offset(fields) for macro, fields in group.items()}
    for macro, (tracepoint, form) in TRACEPOINT_FORMS.items():
        with contextlib.suppress(BtfError):
            if btf.tracepoint_arguments(tracepoint) == form:
                found[macro] = 1
    return found


class Loader:
    """One compilation. `output`: where what bcc prints ends up."""

    def __init__(self, config: dict[str, int], output: Path) -> None:
        self._config = config
        self._output = output

    def load(self) -> ProgramObject:
        """The compiled programs. Raises GpuprofError."""
        permission.check()
        bcc = find_bcc()
        try:
            offsets = kernel_offsets(Btf.of_kernel())
        except BtfError as error:
            raise GpuprofError(
                str(error), "A kernel with CONFIG_DEBUG_INFO_BTF is needed.", EXIT_UNAVAILABLE
            ) from None
        permission.raise_locked_memory()
        seed = int.from_bytes(os.urandom(8), "little") | 1 << 63  # wide: never an immediate of 32 bits
        sizes = {macro: 1 for macro, _ in SIZES.values()}  # the smallest: these maps are thrown away
        module = self._compile(bcc, {**sizes, **offsets, **self._config, SEED_MACRO: f"{seed}ull"})
        try:
            return _object_of(bcc.lib, module, seed)
        except (ObjectError, OSError) as error:
            raise GpuprofError(
                f"bcc gave no usable programs: {error}", DOCTOR_HINT, EXIT_UNAVAILABLE
            ) from None

    def _compile(self, bcc: ModuleType, macros: dict[str, Any]) -> Any:
        tree = headers.write_tree()
        os.environ["BCC_KERNEL_SOURCE"] = str(tree)
        flags = [*(f"-D{name}={value}" for name, value in macros.items()), *_FLAGS]
        try:
            return bcc.BPF(text=source_text(), cflags=flags)
        except Exception as error:  # noqa: BLE001  bcc raises bare Exception
            raise self._failure("the BPF programs do not compile here", error) from None
        finally:
            shutil.rmtree(tree, ignore_errors=True)

    def _failure(self, what: str, error: Exception) -> GpuprofError:
        sys.stdout.flush()
        sys.stderr.flush()
        detail = last_words(self._output.read_text(errors="replace"))
        text = str(error)
        if "Operation not permitted" in text or "Operation not permitted" in detail:
            return GpuprofError(f"no permission: {what}", permission.ROOT_HINT, EXIT_NO_PERMISSION)
        return GpuprofError(f"{what}: {detail or text[:200]}", DOCTOR_HINT, EXIT_UNAVAILABLE)


def _object_of(lib: Any, program: Any, seed: int) -> ProgramObject:
    """What bcc compiled, without its descriptors. ObjectError, or OSError of the kernel."""
    module = program.module
    lib.bpf_num_tables.argtypes, lib.bpf_num_tables.restype = [ctypes.c_void_p], ctypes.c_size_t
    lib.bpf_table_name.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    lib.bpf_table_name.restype = ctypes.c_char_p
    names = [lib.bpf_table_name(module, index) for index in range(lib.bpf_num_tables(module))]
    named = {lib.bpf_table_fd(module, name): name.decode() for name in names}
    programs: dict[str, Program] = {}
    for name in [name for family in FAMILIES for name in family.programs]:
        start = lib.bpf_function_start(module, name.encode())
        if start:
            code = ctypes.string_at(start, lib.bpf_function_size(module, name.encode()))
            programs[name] = take(name, code, named.__getitem__, seed)
    used = {name for part in programs.values() for _, name in part.maps} | set(MAPS)
    maps = {name: MapSpec(name, *syscalls.map_info(fd)) for fd, name in named.items() if name in used}
    return ProgramObject(maps, programs)


def _capture_output() -> Path:
    """Send stdout and stderr, of libbcc too, into a memfd; what it holds explains a failure."""
    fd = os.memfd_create("gpuprof-loader")
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    return Path(f"/proc/self/fd/{fd}")


def _end_with_parent() -> None:
    """Be killed when the thread ends that started this process, and waits for it: nobody else needs the
    answer."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(argv: list[str] | None = None) -> int:
    """Entry point. Says everything through the socket."""
    parser = argparse.ArgumentParser(prog="gpuprof.bpf.loader")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--config", type=json.loads, required=True)
    arguments = parser.parse_args(argv)
    _end_with_parent()
    with socket.socket(fileno=arguments.fd) as channel:
        loader = Loader(arguments.config, _capture_output())
        try:
            programs = pack(loader.load())
        except GpuprofError as error:
            failure = {
                "ok": False,
                "message": error.message,
                "hint": error.hint,
                "exit_code": error.exit_code,
            }
            channel.send(json.dumps(failure).encode())
            return error.exit_code
        except Exception as error:  # noqa: BLE001  whatever it is, the sampler must learn of it
            failure = {
                "ok": False,
                "message": f"the BPF compiler failed: {error!r}",
                "hint": "",
                "exit_code": 1,
            }
            channel.send(json.dumps(failure).encode())
            return 1
        fd = os.memfd_create("gpuprof-programs", os.MFD_CLOEXEC)
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(programs)
        socket.send_fds(channel, [b'{"ok": true}'], [fd])
    return 0


if __name__ == "__main__":
    set_process_name("gpuprof-loader")
    sys.stdout.flush()
    os._exit(main())  # skips bcc's exit handlers, which would close and detach for a second
