"""A CUDA context and kernels compiled at run time, for the device scripts that bring their own kernels."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver, nvrtc


def check(result: tuple[Any, ...]) -> Any:
    """The values of a CUDA call, or an exception with its error."""
    if result[0].value:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


class Gpu:
    """The primary context of device 0, and the kernels `names` of `source` (CUDA C++, compiled by NVRTC)."""

    def __init__(self, source: str, names: tuple[str, ...]) -> None:
        check(driver.cuInit(0))
        self.device = check(driver.cuDeviceGet(0))
        self.context = check(driver.cuDevicePrimaryCtxRetain(self.device))
        check(driver.cuCtxSetCurrent(self.context))
        kind = driver.CUdevice_attribute
        major, minor = (
            check(driver.cuDeviceGetAttribute(attribute, self.device))
            for attribute in (
                kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], []))
        check(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=sm_{major}{minor}".encode()]))
        image = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
        check(nvrtc.nvrtcGetCUBIN(program, image))
        self.module = check(driver.cuModuleLoadData(image))
        self.functions = [check(driver.cuModuleGetFunction(self.module, name.encode())) for name in names]

    def launch(self, function: Any, grid: tuple[int, int], block: tuple[int, int], *arguments: Any) -> None:
        """Each argument is a value with its ctypes class; the stream is the default one."""
        values = tuple(value for value, _ in arguments)
        kinds = tuple(kind for _, kind in arguments)
        check(driver.cuLaunchKernel(function, *grid, 1, *block, 1, 0, 0, (values, kinds), 0))

    def synchronize(self) -> None:
        check(driver.cuCtxSynchronize())
