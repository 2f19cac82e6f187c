"""What the loader decides before it touches the kernel: bcc, permissions, sources, headers, errors."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import types
from pathlib import Path

import pytest

from gpuprof.bpf import headers, loader, permission, program_load, program_source, programs, sizes, syscalls
from gpuprof.bpf.btf import Btf, BtfError
from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, GpuprofError


def test_bcc_missing(tmp_path: Path) -> None:
    with pytest.raises(GpuprofError) as caught:
        loader.find_bcc([tmp_path])
    assert "not installed" in caught.value.message
    assert "apt install python3-bpfcc" in caught.value.hint


def test_the_impostor_from_pypi(tmp_path: Path) -> None:
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc" / "__init__.py").write_text("print('this must not run')\nraise SystemExit\n")
    with pytest.raises(GpuprofError) as caught:
        loader.find_bcc([tmp_path])
    assert "not the BPF Compiler Collection" in caught.value.message
    assert "pip uninstall bcc" in caught.value.hint


def test_the_impostor_does_not_hide_the_real_one(tmp_path: Path) -> None:
    impostor, real = tmp_path / "a" / "bcc", tmp_path / "b" / "bcc"
    impostor.mkdir(parents=True)
    real.mkdir(parents=True)
    (impostor / "__init__.py").write_text("")
    (real / "__init__.py").write_text("from .libbcc import BPF\n")
    (real / "libbcc.py").write_text("BPF = 1\n")
    assert loader.find_bcc([tmp_path / "a", tmp_path / "b"]).BPF == 1


def test_a_bcc_without_its_library(tmp_path: Path) -> None:
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc" / "__init__.py").write_text("from .libbcc import lib\n")
    (tmp_path / "bcc" / "libbcc.py").write_text(
        "raise OSError('libbcc.so.0: cannot open shared object file')\n"
    )
    with pytest.raises(GpuprofError) as caught:
        loader.find_bcc([tmp_path])
    assert "libbcc.so.0" in caught.value.message


@pytest.mark.parametrize(
    ("capabilities", "allowed"),
    [(0, False), (1 << 21, True), (1 << 39, False), (1 << 39 | 1 << 38, True), (0x1FFFFFFFFFF, True)],
)
def test_permissions(capabilities: int, allowed: bool) -> None:
    status = f"Name:\tx\nCapEff:\t{capabilities:016x}\n"
    if allowed:
        permission.check_permission(status, "[none] integrity confidentiality")
        return
    with pytest.raises(GpuprofError) as caught:
        permission.check_permission(status, "")
    assert caught.value.exit_code == EXIT_NO_PERMISSION


def test_lockdown() -> None:
    with pytest.raises(GpuprofError, match="locked down"):
        permission.check_permission("CapEff:\t000001ffffffffff\n", "none integrity [confidentiality]")


def test_a_pid_namespace_of_its_own() -> None:
    permission.check_pid_namespace(4026531836)
    with pytest.raises(GpuprofError) as caught:
        permission.check_pid_namespace(4026532281)
    assert "--pid=host" in caught.value.hint


def test_includes_are_pasted_once(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text('#include "a.h"\n#include "b.h"\nint x;\n')
    (tmp_path / "a.h").write_text("int a;\n")
    (tmp_path / "b.h").write_text('#include "a.h"\nint b;\n')
    text = loader.paste_includes("main.c", tmp_path)
    assert [line for line in text.splitlines() if line and not line.startswith("#line")] == [
        "int a;",
        "int b;",
        "int x;",
    ]
    assert '#line 3 "main.c"\nint x;' in text


def test_names_of_threads_have_nothing_behind_them() -> None:
    """Linux 6.1 fills no more than the name needs: whoever asks for it clears the place before."""
    asked = re.findall(r".*\n.*\bbpf_get_current_comm\(.*", loader.source_text())
    assert len(asked) == 1
    assert "__builtin_memset(name, 0, NAME_BYTES)" in asked[0]


def test_the_telling_line() -> None:
    compiler = (
        "stacks.bpf.c:3:1: warning: x\nmaps.bpf.h:71:8: error: unknown type name 'u64'\n1 error generated.\n"
    )
    verifier = (
        "0: (bf) r8 = r1\nR1 invalid mem access 'scalar'\nprocessed 12 insns (limit 1000000)\nHINT: see x\n\n"
    )
    assert program_load.last_words(compiler) == "maps.bpf.h:71:8: error: unknown type name 'u64'"
    assert program_load.last_words(verifier) == "R1 invalid mem access 'scalar'"
    assert program_load.last_words("") == ""


def test_header_tree(tmp_path: Path) -> None:
    top = headers.write_tree(str(tmp_path))
    assert top.stat().st_mode & 0o777 == 0o700
    assert "CONFIG_BPF_SYSCALL" in (top / "include/linux/kconfig.h").read_text()
    assert headers.kernel_version_code("6.1.0-18-amd64") == 6 << 16 | 1 << 8
    assert headers.kernel_version_code("5.15.300+") == 5 << 16 | 15 << 8 | 255
    assert headers.kernel_version_code("next") == 0


def test_sizes_and_cpus() -> None:
    assert sizes.choose_sizes(1 << 30).row_blocks * 64 == 8 << 20
    assert sizes.choose_sizes(24 << 30).row_blocks * 64 == 32 << 20
    assert sizes.choose_sizes(1 << 41).row_blocks * 64 == 64 << 20
    assert sizes.choose_ring_bytes(2, 99) == 256 << 10
    assert sizes.choose_ring_bytes(128, 99) == 4 << 20
    assert programs.online_cpus("0-3,8\n") == [0, 1, 2, 3, 8]
    assert programs.online_cpus("\n") == []


def test_the_event_samples_at_the_rate_asked_for() -> None:
    """linux/perf_event.h: u32 type, size; u64 config, sample_period or sample_freq, two more, flags."""
    attr = syscalls.cpu_clock_attr(99)
    kind, size, config, period, _, _, flags = struct.unpack_from("<IIQQQQQ", attr)
    assert (kind, size, config) == (1, len(attr), 0)
    assert period == 1_000_000_000 // 99
    assert flags == 1 | 1 << 7  # disabled, exclude_idle; bit 10 would make the period a frequency
    for rate in (0, -1, 10_001):
        with pytest.raises(ValueError, match="cannot sample"):
            syscalls.cpu_clock_attr(rate)


def test_a_loader_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_source.sys, "executable", "/bin/false")
    with pytest.raises(GpuprofError, match="compiler ended with status 1"):
        program_source.compile_programs({})


def test_a_loader_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "hang"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(program_source.sys, "executable", str(script))
    monkeypatch.setattr(program_source, "COMPILE_TIMEOUT_S", 0.1)
    with pytest.raises(GpuprofError, match="did not answer in time"):
        program_source.compile_programs({})


def test_a_loader_that_answers_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    for body, sent, words in (
        (b'{"ok": true}', b"no programs", "gave no programs"),
        (
            b'{"ok": false, "message": "it does not compile", "hint": "x", "exit_code": 4}',
            b"",
            "does not compile",
        ),
    ):
        monkeypatch.setattr(
            program_source, "_ask_loader", lambda *_, body=body, sent=sent: (body, sent, None)
        )
        with pytest.raises(GpuprofError, match=words):
            program_source.compile_programs({})


def test_the_key_follows_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    key = program_source.cache_key({})
    assert key == program_source.cache_key({})
    assert key != program_source.cache_key({"HAVE_TASK_PT_REGS": 0})
    text = loader.source_text()
    monkeypatch.setattr(loader, "source_text", lambda: text + "\n")
    assert key != program_source.cache_key({})
    monkeypatch.undo()
    monkeypatch.setattr(program_source, "_bcc_version", lambda: b"another")
    assert key != program_source.cache_key({})
    monkeypatch.undo()
    release = program_source.os.uname()
    monkeypatch.setattr(
        program_source.os, "uname", lambda: os.uname_result((*release[:2], "5.15.0", *release[3:]))
    )
    assert key != program_source.cache_key({})


def btf_blob() -> bytes:
    """struct outer { int a; struct { int b; struct inner in; }; } with struct inner { int x:8; int y }, a
    typedef between.
    """
    strings, offsets = b"\0", {}
    for name in ("int", "inner", "x", "y", "alias", "a", "b", "in", "outer"):
        offsets[name] = len(strings)
        strings += name.encode() + b"\0"

    def member(name: str, kind: int, bits: int) -> bytes:
        return struct.pack("<III", offsets[name] if name else 0, kind, bits)

    types = struct.pack("<IIII", offsets["int"], 1 << 24, 4, 32)  # 1
    types += struct.pack("<III", offsets["inner"], 1 << 31 | 4 << 24 | 2, 8)  # 2, with bit field sizes
    types += member("x", 1, 8 << 24) + member("y", 1, 32)
    types += struct.pack("<III", offsets["alias"], 8 << 24, 2)  # 3
    types += struct.pack("<III", 0, 4 << 24 | 2, 12) + member("b", 1, 0) + member("in", 3, 32)  # 4
    types += (
        struct.pack("<III", offsets["outer"], 4 << 24 | 2, 16) + member("a", 1, 0) + member("", 4, 32)
    )  # 5
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    return header + types + strings


def test_btf_offsets() -> None:
    btf = Btf(btf_blob())
    assert btf.offset("outer", "a") == 0
    assert btf.offset("outer", "b") == 4
    assert btf.offset("outer", "in", "y") == 4 + 4 + 4
    with pytest.raises(BtfError, match="no struct missing"):
        btf.offset("missing", "a")
    with pytest.raises(BtfError, match=r"no field in\.z"):
        btf.offset("outer", "in", "z")
    with pytest.raises(BtfError):
        Btf(b"\x7fELF" + bytes(64))


def test_the_sampler_side_does_not_import_bcc() -> None:
    code = "import gpuprof.bpf.programs, gpuprof.sampler.unwind_tables, sys; sys.exit('bcc' in sys.modules)"
    assert subprocess.run([program_source.sys.executable, "-c", code], check=False).returncode == 0


def test_the_header_tree_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(headers.os, "access", lambda path, mode: False)
    monkeypatch.setattr(headers.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("BCC_KERNEL_SOURCE", "")  # which is set, and put back after the test
    seen: list[Path] = []

    def compile_(**options: object) -> None:
        seen.extend(tmp_path.iterdir())
        raise RuntimeError("enough")

    one = loader.Loader({}, tmp_path)
    fake = types.SimpleNamespace(BPF=compile_)
    monkeypatch.setattr(loader.Loader, "_failure", lambda self, what, error: GpuprofError(str(error)))
    with pytest.raises(GpuprofError, match="enough"):
        one._compile(fake, {})  # type: ignore[arg-type]
    assert len(seen) == 1
    assert not list(tmp_path.iterdir())
