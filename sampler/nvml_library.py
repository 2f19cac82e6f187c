"""Finds and loads libnvidia-ml.so.1, and says in words why NVML cannot be used and what to do about it."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, GpuprofError

SONAME = "libnvidia-ml.so.1"

# Where container runtimes and distributions put the library without telling ld.so; all are root's.
EXTRA_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
)

_NO_GPU_HINT = "Without one, a recording can be opened: `gpuprof-tui demo`, or `gpuprof-tui open FILE`."

# Return codes of nvml.h that concern the library or the driver as a whole.
UNINITIALIZED = 1
NO_PERMISSION = 4
INSUFFICIENT_POWER = 8
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
LIB_RM_VERSION_MISMATCH = 18
GPU_NOT_FOUND = 28


class NvmlUnavailable(GpuprofError):
    """NVML cannot be used. `absent`: there is no driver at all; `retry`: it may heal by itself."""

    def __init__(
        self,
        message: str,
        hint: str,
        *,
        absent: bool = False,
        retry: bool = True,
        exit_code: int = EXIT_UNAVAILABLE,
    ):
        super().__init__(message, hint, exit_code)
        self.absent = absent
        self.retry = retry


def load_library() -> ctypes.CDLL:
    """Load libnvidia-ml.so.1 by ld.so's search, then EXTRA_FOLDERS; raises NvmlUnavailable naming them."""
    try:
        return ctypes.CDLL(SONAME)
    except OSError as error:
        reason = str(error)
    for folder in EXTRA_FOLDERS:
        path = f"{folder}/{SONAME}"
        if os.path.exists(path):
            try:
                return ctypes.CDLL(path)
            except OSError as error:
                reason = str(error)
    raise missing_library(reason)


def missing_library(reason: str) -> NvmlUnavailable:
    """The error for a library that is not there (or does not load: `reason` is ld.so's own sentence)."""
    looked = "ld.so's search path"
    if os.environ.get("LD_LIBRARY_PATH"):
        looked += " (with LD_LIBRARY_PATH)"
    looked += ", " + ", ".join(EXTRA_FOLDERS)
    if "No such file" not in reason and "cannot open shared object file" not in reason:
        return NvmlUnavailable(
            f"{SONAME} does not load: {reason[:300]}",
            "It is damaged or for another architecture: reinstall the NVIDIA driver's user-space package.",
        )
    if not nvidia_pci_devices():
        return NvmlUnavailable(
            f"No NVML here: no NVIDIA device on the PCI bus, and no {SONAME} (looked in {looked}).",
            _NO_GPU_HINT,
            absent=True,
        )
    return NvmlUnavailable(
        f"There is an NVIDIA device, but no {SONAME} (looked in {looked}).",
        "Install the NVIDIA driver's user-space libraries; start a container with the NVIDIA "
        "runtime and `utility` in NVIDIA_DRIVER_CAPABILITIES.",
    )


def nvidia_pci_devices(root: Path = Path("/sys/bus/pci/devices")) -> list[str]:
    """PCI addresses of NVIDIA display and 3D controllers (vendor 10de, class 03xxxx), from sysfs."""
    found = []
    try:
        devices = sorted(root.iterdir())
    except OSError:
        return []
    for device in devices:
        try:
            vendor = (device / "vendor").read_text(errors="replace").strip()
            kind = (device / "class").read_text(errors="replace").strip()
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):
            found.append(device.name)
    return found


def module_version(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Version of the loaded NVIDIA kernel module, None when none is loaded."""
    try:
        text = path.read_text(errors="replace")[:4096]
    except OSError:
        return None
    # The second form is that of the open kernel modules.
    match = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]+)", text)
    return match.group(1) if match else None


def library_version(maps: Path = Path("/proc/self/maps")) -> str | None:
    """Version of the loaded libnvidia-ml, from the name of the mapped file (libnvidia-ml.so.580.159.04)."""
    try:
        text = maps.read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"libnvidia-ml\.so\.(\d+\.[\d.]+\d)", text)
    return match.group(1) if match else None


def code_words(code: int | None) -> str:
    """A few words for a return code of nvml.h."""
    return _WORDS.get(code, "unknown error" if code in (None, 999) else f"error {code}")


def explain(code: int) -> NvmlUnavailable:
    """The error for an NVML return code that concerns the driver as a whole."""
    if code == LIBRARY_NOT_FOUND:
        return missing_library("No such file")
    if code == DRIVER_NOT_LOADED:
        return NvmlUnavailable(
            f"{SONAME} is installed, but the NVIDIA kernel driver is not loaded (/dev/nvidiactl).",
            "Load it with `sudo modprobe nvidia`; if that fails, `sudo dmesg | grep -i nvrm` says why.",
        )
    if code == LIB_RM_VERSION_MISMATCH:
        library, module = library_version() or "of another version", module_version() or "unknown"
        return NvmlUnavailable(
            f"{SONAME} ({library}) and the loaded NVIDIA kernel module ({module}) are of different versions.",
            "The driver was updated since it was loaded: reboot, or unload and load the nvidia modules; "
            "in a container, restart it.",
            retry=False,
        )
    if code == NO_PERMISSION:
        return NvmlUnavailable(
            "The NVIDIA driver refuses access (/dev/nvidiactl, /dev/nvidia0, …).",
            "Check the modes of /dev/nvidia*, and in a container its device cgroup.",
            exit_code=EXIT_NO_PERMISSION,
        )
    if code == FUNCTION_NOT_FOUND:
        return NvmlUnavailable(
            f"{SONAME} ({library_version() or 'unknown version'}) lacks functions that every driver has.",
            "It is older than driver 450, or not NVIDIA's library: update the NVIDIA driver.",
            retry=False,
        )
    if code == UNINITIALIZED:
        return NvmlUnavailable(
            "NVML says that it is not initialized.",
            "The driver was unloaded or reset under the sampler: restart it.",
        )
    if code == INSUFFICIENT_POWER:
        return NvmlUnavailable(
            "A GPU lacks power: its external power cables are not attached properly.",
            "Attach the power cables of the GPU; `sudo dmesg | grep -i nvrm` names it.",
        )
    if code == GPU_NOT_FOUND:
        return NvmlUnavailable(
            "The NVIDIA driver is loaded, but has no GPU.",
            "`sudo dmesg | grep -i nvrm` says why; in a container, check NVIDIA_VISIBLE_DEVICES.",
        )
    return NvmlUnavailable(
        f"NVML does not start: {code_words(code)} (code {code}).",
        "`nvidia-smi` and `sudo dmesg | grep -i nvrm` may say more.",
    )


_WORDS: dict[int | None, str] = {
    1: "not initialized",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    8: "insufficient power",
    9: "driver not loaded",
    10: "timeout",
    11: "interrupt problem",
    13: "function not found",
    14: "corrupted infoROM",
    15: "GPU is lost",
    16: "reset required",
    17: "blocked by the operating system",
    18: "library and driver of different versions",
    19: "in use",
    20: "out of memory",
    21: "no data",
    23: "insufficient resources",
    27: "not ready",
    28: "GPU not found",
    29: "invalid state",
}
