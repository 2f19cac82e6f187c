"""One call to NVML: its result, or a typed absence; a hang can be seen, a lost device is not called again."""

from __future__ import annotations

import threading
import time
from types import ModuleType
from typing import Any

from gpuprof.sampler import nvml_library
from gpuprof.sampler.nvml_values import Absent, DeviceLost

SETTLED_RETRY_S = 60.0  # a MIG or permission change may make an unsupported reading supported

SUCCESS, NOT_FOUND = 0, 6
_LOST_CODES = frozenset({15, 16})  # GPU_IS_LOST, RESET_REQUIRED
_TROUBLE_CODES = frozenset(
    {nvml_library.UNINITIALIZED, nvml_library.DRIVER_NOT_LOADED, nvml_library.LIB_RM_VERSION_MISMATCH}
)
# INVALID_ARGUMENT (what a MIG handle gets for much of what it lacks), NOT_SUPPORTED, FUNCTION_NOT_FOUND,
# ARGUMENT_VERSION_MISMATCH, DEPRECATED.
_NOT_SUPPORTED_CODES = frozenset({2, 3, 13, 25, 26})

# These say "not supported" for one argument and work for another.
_BY_ARGUMENT = frozenset(
    {
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetMaxClockInfo",
        "nvmlDeviceGetTemperatureThreshold",
        "nvmlDeviceGetPcieThroughput",
    }
)


class Handle:
    """The handle of a GPU, or of a MIG instance of `parent`. May be used by several threads."""

    def __init__(
        self, pynvml: ModuleType, index: int, parent: Handle | None = None, handle: Any = None
    ) -> None:
        self.index = index
        self.trouble: int | None = None  # last return code that concerns the driver as a whole
        self.failure: int | None = None  # last return code of a call that should have worked
        self._pynvml = pynvml
        self._handle = handle
        self._root = self if parent is None else parent  # loss and hanging are those of the GPU
        self._lost = False
        self._settled: dict[tuple[str, object], tuple[Absent, float]] = {}
        self._calls: dict[int, tuple[str, float] | None] = {}

    @property
    def lost(self) -> bool:
        return self._root._lost

    def stuck(self) -> tuple[str, float] | None:
        """The call that has run longest by now, and for how many seconds; None when there is none."""
        now = time.monotonic()
        running = [call for call in list(self._calls.values()) if call is not None]
        if not running:
            return None
        name, since = min(running, key=lambda call: call[1])
        return name, now - since

    def _call(self, function: str, *args: Any) -> Any:
        """Call with this device's handle; an absence that is settled is not asked for again for a minute."""
        key = (function, args[0] if args and isinstance(args[0], int) and function in _BY_ARGUMENT else None)
        settled = self._settled.get(key)
        if settled is not None:
            if time.monotonic() < settled[1]:
                return settled[0]
            self._settled.pop(key, None)
        result = self._raw(function, self._handle, *args)
        if result is Absent.NOT_SUPPORTED or result is Absent.NO_PERMISSION:
            self._settled[key] = (result, time.monotonic() + SETTLED_RETRY_S)
        return result

    def _raw(self, function: str, *args: Any) -> Any:
        """One NVML call: its result or an Absent; raises DeviceLost."""
        if self.lost:
            raise DeviceLost
        call = getattr(self._pynvml, function, None)
        if call is None:  # an older or newer nvidia-ml-py without it
            return Absent.NOT_SUPPORTED
        thread = threading.get_ident()
        calls = self._root._calls
        calls[thread] = (function, time.monotonic())
        try:
            result = call(*args)
        except self._pynvml.NVMLError as error:
            return self._absence(error_code(error))
        except self._pynvml.NVMLLibraryMismatchError:  # pynvml's word for a function that the driver lacks
            return Absent.NOT_SUPPORTED
        except Exception:  # noqa: BLE001 - undecodable text and the like: what the driver said is not a value
            return Absent.FAILED
        finally:
            calls[thread] = None
        self.trouble = None
        return result

    def _absence(self, code: int) -> Absent:
        if code in _LOST_CODES:
            self._root._lost = True  # a MIG instance cannot be lost alone
            raise DeviceLost
        if code in _NOT_SUPPORTED_CODES:
            return Absent.NOT_SUPPORTED
        if code == nvml_library.NO_PERMISSION:
            return Absent.NO_PERMISSION
        if code in (NOT_FOUND, SUCCESS):  # pynvml raises "success" where a first call has nothing to size
            return Absent.NOT_FOUND
        self.failure = code
        if code in _TROUBLE_CODES:
            self.trouble = code
        return Absent.FAILED


def error_code(error: Any) -> int:
    """The return code in a pynvml.NVMLError."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else 999
