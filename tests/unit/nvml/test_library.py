"""What a person reads when NVML cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprof.sampler import nvml_library
from gpuprof.sampler.nvml_library import (
    explain,
    library_version,
    missing_library,
    module_version,
    nvidia_pci_devices,
)


def pci(root: Path, address: str, vendor: str, kind: str) -> None:
    (root / address).mkdir(parents=True)
    (root / address / "vendor").write_text(vendor + "\n")
    (root / address / "class").write_text(kind + "\n")


def test_finds_nvidia_controllers_only(tmp_path: Path) -> None:
    pci(tmp_path, "0000:17:00.0", "0x10de", "0x030200")
    pci(tmp_path, "0000:18:00.1", "0x10de", "0x040300")  # its audio function
    pci(tmp_path, "0000:00:02.0", "0x8086", "0x030000")
    (tmp_path / "0000:19:00.0").mkdir()
    assert nvidia_pci_devices(tmp_path) == ["0000:17:00.0"]
    assert nvidia_pci_devices(tmp_path / "none") == []


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue\nGCC version: 12",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
    ],
)
def test_version_of_the_kernel_module(tmp_path: Path, text: str) -> None:
    (tmp_path / "version").write_text(text)
    assert module_version(tmp_path / "version") == "580.159.04"
    assert module_version(tmp_path / "none") is None


def test_version_of_the_mapped_library(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 0 08:01 5 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15\n")
    assert library_version(maps) == "570.86.15"


def test_no_library_names_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_library, "nvidia_pci_devices", list)
    error = missing_library("libnvidia-ml.so.1: cannot open shared object file: No such file or directory")
    assert error.absent
    assert "libnvidia-ml.so.1" in error.message
    assert "/usr/lib/x86_64-linux-gnu" in error.message
    assert "gpuprof-tui demo" in error.hint


def test_a_gpu_without_a_library_is_not_the_same_as_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_library, "nvidia_pci_devices", lambda: ["0000:17:00.0"])
    error = missing_library("No such file")
    assert not error.absent
    assert "Install" in error.hint


def test_a_damaged_library_keeps_the_words_of_the_loader() -> None:
    error = missing_library("libnvidia-ml.so.1: wrong ELF class: ELFCLASS32")
    assert "ELFCLASS32" in error.message
    assert "reinstall" in error.hint


def test_version_mismatch_names_both_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_library, "library_version", lambda: "580.159.04")
    monkeypatch.setattr(nvml_library, "module_version", lambda: "570.86.15")
    error = explain(nvml_library.LIB_RM_VERSION_MISMATCH)
    assert "580.159.04" in error.message
    assert "570.86.15" in error.message
    assert "reboot" in error.hint
    assert not error.retry


@pytest.mark.parametrize("code", [*range(1, 40), 999])
def test_every_code_has_a_sentence_and_a_next_step(code: int) -> None:
    error = explain(code)
    assert error.message.endswith(".")
    assert error.hint
