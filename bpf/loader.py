"""Compiles and loads the BPF programs with bcc and hands their descriptors over; run as `python -m
gpuprof.bpf.loader`.

The only module that imports bcc, and a process of its own: LLVM needs some hundred megabytes that the sampler
must not keep. It is given a descriptor of a SOCK_SEQPACKET socket (`--fd`) and the sizes of the maps
(`--config`, JSON), sends one message and exits. The message is JSON: {"ok": true, "maps": [name, ...],
"programs": [name, ...], "launch_problem": text} with the descriptors of the maps and programs, in this
order, attached by SCM_RIGHTS; the programs of launches are missing where `launch_problem` says why; or
{"ok": false, "message", "hint", "exit_code"}.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.resources
import importlib.util
import json
import os
import re
import resource
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gpuprof.bpf import headers
from gpuprof.bpf.btf import Btf, BtfError
from gpuprof.bpf.inventory import LAUNCH, LAUNCH_TAIL_CALLED, MAPS, SAMPLING, TAIL_CALLED, TRACEPOINTS
from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, GpuprofError

SOURCE = "stacks.bpf.c"

INSTALL_HINT = "Install it with: apt install python3-bpfcc"
_IMPOSTOR_HINT = "PyPI's bcc is an unrelated package: pip uninstall bcc, then apt install python3-bpfcc"
_ROOT_HINT = "Run it as root, or with CAP_BPF, CAP_PERFMON and CAP_SYS_RESOURCE."
_CAP_SYS_ADMIN, _CAP_PERFMON, _CAP_BPF = 21, 38, 39
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel, part of its ABI
_BPF_PROG_TYPE_KPROBE = 2  # of uprobes, too
_BPF_PROG_TYPE_RAW_TRACEPOINT = 17
_BPF_PROG_TYPE_PERF_EVENT = 7


def find_bcc(roots: list[Path] | None = None) -> ModuleType:
    """The distribution's bcc, whatever environment this interpreter runs in. GpuprofError: missing, or PyPI's
    impostor.
    """
    if roots is None:
        roots = [Path("/usr/lib/python3/dist-packages"), Path("/usr/local/lib/python3/dist-packages")]
        roots += sorted(Path("/usr/lib").glob("python3.*/site-packages"), reverse=True)
        roots += sorted(Path("/usr/lib64").glob("python3.*/site-packages"), reverse=True)
        roots += [Path(entry) for entry in sys.path if entry]
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


def check_permission(status: str, lockdown: str) -> None:
    """GpuprofError unless /proc/self/status shows the capabilities and lockdown lets the programs read
    memory.
    """
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    capabilities = int(match[1], 16) if match else 0

    def has(bit: int) -> bool:
        return bool(capabilities >> bit & 1)

    if not (has(_CAP_SYS_ADMIN) or (has(_CAP_BPF) and has(_CAP_PERFMON))):
        raise GpuprofError("no permission to load BPF programs", _ROOT_HINT, EXIT_NO_PERMISSION)
    if "[confidentiality]" in lockdown:
        raise GpuprofError(
            "the kernel is locked down (confidentiality mode): BPF programs must not read memory",
            "Boot without lockdown=confidentiality, or use lockdown=integrity.",
            EXIT_NO_PERMISSION,
        )


def check_pid_namespace(inode: int) -> None:
    """GpuprofError unless this is the machine's first pid namespace, whose pids the programs see."""
    if inode != _FIRST_PID_NAMESPACE:
        raise GpuprofError(
            "CPU stacks need the pids of the host, and this is a pid namespace of its own",
            "Run the container with the host's pids (--pid=host, or hostPID: true).",
            EXIT_UNAVAILABLE,
        )


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


def kernel_offsets(btf: Btf) -> dict[str, int]:
    """The offsets in kernel structures that the programs need, as macros."""
    return {
        "TASK_FSBASE": btf.offset("task_struct", "thread", "fsbase"),
        "TASK_PID": btf.offset("task_struct", "pid"),
        "TASK_TGID": btf.offset("task_struct", "tgid"),
        "TASK_GROUP_LEADER": btf.offset("task_struct", "group_leader"),
        "TASK_START_BOOTTIME": btf.offset("task_struct", "start_boottime"),
        "TASK_SIGNAL": btf.offset("task_struct", "signal"),
        "SIGNAL_LIVE": btf.offset("signal_struct", "live"),
    }


def last_words(output: str) -> str:
    """The line of clang's or the verifier's output that says what is wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line]
    if errors:
        return errors[0][:400]
    lines = [
        line
        for line in lines
        if not line.startswith(
            ("processed ", "HINT:", "libbpf:", "verification time", "stack depth", "max_states")
        )
    ]
    return lines[-1][:400] if lines else ""


class Loader:
    """One load. Descriptors stay open as long as this object lives."""

    def __init__(self, config: dict[str, int], output: Path) -> None:
        self._config = config
        self._output = output

    def load(self) -> tuple[dict[str, Any], list[int]]:
        """(message, descriptors). Raises GpuprofError."""
        lockdown = Path("/sys/kernel/security/lockdown")
        check_permission(
            Path("/proc/self/status").read_text(), lockdown.read_text() if lockdown.exists() else ""
        )
        check_pid_namespace(os.stat("/proc/self/ns/pid").st_ino)
        bcc = find_bcc()
        try:
            offsets = kernel_offsets(Btf.of_kernel())
        except BtfError as error:
            raise GpuprofError(
                str(error), "A kernel with CONFIG_DEBUG_INFO_BTF is needed.", EXIT_UNAVAILABLE
            ) from None
        _raise_locked_memory()
        program = self._compile(bcc, {**offsets, **self._config})
        programs = self._load_family(
            program, SAMPLING, TAIL_CALLED, "cpu_programs", _BPF_PROG_TYPE_PERF_EVENT
        )
        for name in TRACEPOINTS:
            programs[name] = self._load(program, name, _BPF_PROG_TYPE_RAW_TRACEPOINT)
        problem = ""
        try:
            programs |= self._load_family(
                program, LAUNCH, LAUNCH_TAIL_CALLED, "launch_programs", _BPF_PROG_TYPE_KPROBE
            )
        except GpuprofError as error:
            problem = error.message  # CPU samples do not need them
        maps = [int(program[name].map_fd) for name in MAPS]
        self._keep = program
        message = {"ok": True, "maps": MAPS, "programs": list(programs), "launch_problem": problem}
        return message, maps + list(programs.values())

    def _compile(self, bcc: ModuleType, macros: dict[str, int]) -> Any:
        tree = headers.write_tree()
        os.environ["BCC_KERNEL_SOURCE"] = str(tree)
        flags = [f"-D{name}={value}" for name, value in macros.items()]
        flags += ["-Wno-macro-redefined", "-Wno-unused-function", "-Wno-address-of-packed-member"]
        try:
            with importlib.resources.as_file(importlib.resources.files("gpuprof.bpf") / SOURCE) as path:
                text = paste_includes(SOURCE, path.parent)
            return bcc.BPF(text=text, cflags=flags)
        except Exception as error:  # noqa: BLE001  bcc raises bare Exception
            raise self._failure("the BPF programs do not compile here", error) from None
        finally:
            shutil.rmtree(tree, ignore_errors=True)

    def _load_family(
        self, program: Any, first: str, tail_called: Sequence[str], table: str, kind: int
    ) -> dict[str, int]:
        """Load a program and those that it tail-calls through `table`; descriptors by name."""
        programs = {first: self._load(program, first, kind)}
        for index, name in enumerate(tail_called):
            programs[name] = self._load(program, name, kind)
            program[table][ctypes.c_int(index)] = ctypes.c_int(programs[name])
        return programs

    def _load(self, program: Any, name: str, kind: int) -> int:
        try:
            return int(program.load_func(name, kind).fd)
        except Exception as error:  # noqa: BLE001  bcc raises bare Exception
            raise self._failure(f"the kernel refused the BPF program {name}", error) from None

    def _failure(self, what: str, error: Exception) -> GpuprofError:
        sys.stdout.flush()
        sys.stderr.flush()
        detail = last_words(self._output.read_text(errors="replace"))
        text = str(error)
        if "Operation not permitted" in text or "Operation not permitted" in detail:
            return GpuprofError(f"no permission: {what}", _ROOT_HINT, EXIT_NO_PERMISSION)
        return GpuprofError(
            f"{what}: {detail or text[:200]}",
            "gpuprof-tui doctor shows what this kernel and bcc offer.",
            EXIT_UNAVAILABLE,
        )


def _raise_locked_memory() -> None:
    """BPF maps count as locked memory before 5.11."""
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        pass  # newer kernels do not need it, older ones will say so when a map is made


def _capture_output() -> Path:
    """Send stdout and stderr, of libbcc too, into a memfd; what it holds explains a failure."""
    fd = os.memfd_create("gpuprof-loader")
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    return Path(f"/proc/self/fd/{fd}")


def main(argv: list[str] | None = None) -> int:
    """Entry point. Says everything through the socket."""
    parser = argparse.ArgumentParser(prog="gpuprof.bpf.loader")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--config", type=json.loads, required=True)
    arguments = parser.parse_args(argv)
    with socket.socket(fileno=arguments.fd) as channel:
        loader = Loader(arguments.config, _capture_output())
        try:
            message, descriptors = loader.load()
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
                "message": f"the BPF loader failed: {error!r}",
                "hint": "",
                "exit_code": 1,
            }
            channel.send(json.dumps(failure).encode())
            return 1
        socket.send_fds(channel, [json.dumps(message).encode()], descriptors)
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())  # skips bcc's exit handlers, which would close and detach for a second
