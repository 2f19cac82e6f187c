"""The one place that imports pynvml: opens NVML and lists its devices.

Calls go through nvml_handle.py, where what is not supported becomes a typed absence, not a number, and a lost
device is never called again: its handle can crash the process.
"""

from __future__ import annotations

from types import ModuleType

from gpuprof.sampler import nvml_library
from gpuprof.sampler.nvml_device import Device
from gpuprof.sampler.nvml_handle import error_code
from gpuprof.sampler.nvml_library import NvmlUnavailable
from gpuprof.snapshots.names import clean

MAX_GPUS = 256


class Nvml:
    """The initialized library. One per process; open() may take seconds without persistence mode."""

    def __init__(self, pynvml: ModuleType) -> None:
        self._pynvml = pynvml
        self.driver_version = self._text("nvmlSystemGetDriverVersion")
        self.nvml_version = self._text("nvmlSystemGetNVMLVersion")

    @classmethod
    def open(cls) -> Nvml:
        """Load and initialize NVML; raises NvmlUnavailable with the cause and the next step."""
        try:
            import pynvml
        except ImportError as error:
            raise NvmlUnavailable(
                f"The Python package nvidia-ml-py cannot be imported: {error}",
                "Install it with `pip install nvidia-ml-py` (not `pynvml`, which is deprecated).",
                retry=False,
            ) from None
        if getattr(pynvml, "nvmlLib", None) is None:
            # pynvml then finds it by its soname; loading it here keeps ld.so's reason and tries more folders.
            nvml_library.load_library()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise nvml_library.explain(error_code(error)) from None
        except Exception:  # noqa: BLE001 - a foreign library of that name may lack anything
            raise nvml_library.explain(nvml_library.FUNCTION_NOT_FOUND) from None
        return cls(pynvml)

    def devices(self) -> list[Device]:
        """All physical devices, not opened yet; raises NvmlUnavailable when there is none."""
        try:
            count = int(self._pynvml.nvmlDeviceGetCount())
        except self._pynvml.NVMLError as error:
            raise nvml_library.explain(error_code(error)) from None
        if count == 0:
            raise nvml_library.explain(nvml_library.GPU_NOT_FOUND)
        return [Device(self._pynvml, index) for index in range(min(count, MAX_GPUS))]

    def close(self) -> None:
        """Shut the library down; only while no thread is inside a call."""
        try:
            self._pynvml.nvmlShutdown()
        except self._pynvml.NVMLError:
            pass

    def _text(self, function: str) -> str | None:
        try:
            return clean(getattr(self._pynvml, function)(), 80)
        except Exception:  # noqa: BLE001 - a version that cannot be read is merely unknown
            return None
