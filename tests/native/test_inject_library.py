"""What the injection library is made of: exports, needs, the probe's first instruction, layouts."""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ALLOWED_NEEDS = {"libc.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}  # all of them glibc
NOP = "0f 1f 44 00 00"


@pytest.fixture(scope="module", params=["-O2", "-O3"])
def library(request: pytest.FixtureRequest, kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.build_library(tmp_path_factory.mktemp("shipped") / "libgpuprof_inject.so", request.param)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_exports_nothing_but_its_interface(library: Path) -> None:
    lines = run("nm", "-D", "--defined-only", str(library)).splitlines()
    assert {line.split()[-1] for line in lines} == {
        "InitializeInjection", "InitializeInjectionNvtx2", "gpuprof_launch", "gpuprof_start",
    }  # fmt: skip


def test_needs_nothing_but_libc(library: Path) -> None:
    needed = set(re.findall(r"NEEDED\).*\[(.+)\]", run("readelf", "-d", str(library))))
    assert needed <= ALLOWED_NEEDS
    for name in run("nm", "-D", "--undefined-only", str(library)).split():
        assert not name.startswith(("cu", "_Z", "__cxa_throw", "_Unwind"))


def test_the_probe_begins_with_the_nop_that_a_uprobe_likes(library: Path) -> None:
    text = run("objdump", "-d", "--no-show-raw-insn", "--disassemble=gpuprof_launch", str(library))
    raw = run("objdump", "-d", "--disassemble=gpuprof_launch", str(library))
    first = raw[raw.index("<gpuprof_launch>:") :].splitlines()[1]
    assert NOP in first
    instructions = [
        line.split("\t")[-1].split()[0] for line in text.splitlines() if re.match(r"\s+[0-9a-f]+:\t", line)
    ]
    assert instructions[:2] == ["nopl", "ret"]
    assert "gpuprof_launch" not in run("nm", str(library)).replace(
        " T gpuprof_launch\n", ""
    )  # no clone is called instead


def test_code_keeps_nothing_below_the_stack_pointer(library: Path) -> None:
    """The kernel's quick uprobe writes there."""
    text = run("objdump", "-d", "--disassemble=calls_back", str(library))
    assert "<calls_back>:" in text
    assert not re.search(r"-0x[0-9a-f]+\(%rsp\)", text)
    assert "endbr64" not in run("objdump", "-d", "-j", ".text", "--disassemble=gpuprof_launch", str(library))


def test_the_ring_has_the_name_that_the_reader_looks_for(library: Path) -> None:
    assert b"gpuprof-ring\0" in library.read_bytes()


def include_folders() -> list[str] | None:
    """Where cupti.h and cuda.h lie: CUPTI_INCLUDE (colon-separated), NVIDIA's packages, or a toolkit."""
    asked = os.environ.get("CUPTI_INCLUDE")
    if asked:
        return asked.split(":")
    patterns = [f"{path}/nvidia/*/include" for path in sys.path if path]
    patterns += ["/usr/local/cuda/extras/CUPTI/include", "/usr/local/cuda/include"]
    folders = [folder for pattern in patterns for folder in glob.glob(pattern)]
    needed = ("cupti.h", "cuda.h", "crt/host_defines.h")
    found = {name for folder in folders for name in needed if os.path.exists(f"{folder}/{name}")}
    return folders if len(found) == len(needed) else None


def read_headers(folders: list[str]) -> str:
    """The headers that define what cupti_abi.h declares."""
    paths = [
        path
        for folder in folders
        for pattern in ("cupti_*.h", "generated_cuda_meta.h")
        for path in sorted(Path(folder).glob(pattern))
    ]
    return "".join(path.read_text(errors="replace") for path in paths)


KERNELS = (
    "Kernel5",
    "Kernel6",
    "Kernel7",
    "Kernel8",
    "Kernel9",
    "Kernel10",
    "Kernel11",
    "Kernel12",
    "Kernel13",
)
COPIES = ("Memcpy4", "Memcpy5", "Memcpy6", "Memcpy7")
SETS = ("Memset3", "Memset4", "Memset5")
KERNEL_FIELDS = {
    "kind": "kind", "start": "start", "end": "end", "completed": "completed", "device": "deviceId",
    "context": "contextId", "stream": "streamId", "correlation": "correlationId", "name": "name",
    "graph_node": "graphNodeId",
}  # fmt: skip
COPY_FIELDS = {
    "kind": "kind", "bytes": "bytes", "start": "start", "end": "end", "device": "deviceId",
    "context": "contextId", "stream": "streamId", "correlation": "correlationId",
}  # fmt: skip
CALLBACK_FIELDS = {
    "site": "callbackSite", "function_name": "functionName", "params": "functionParams",
    "return_value": "functionReturnValue", "symbol_name": "symbolName", "context": "context",
    "context_uid": "contextUid", "correlation_data": "correlationData", "correlation_id": "correlationId",
}  # fmt: skip
PARAMS_FIELDS = {
    "struct_size": "structSize", "subscriber_name": "subscriberName",
    "old_subscriber_name": "oldSubscriberName", "old_subscriber_size": "oldSubscriberSize",
    "allow_multiple": "allowMultipleSubscribers",
}  # fmt: skip
STREAM_FIELDS = {"stream": "hStream"}
EVENT_FIELDS = {"event": "hEvent"}
RECORD_FIELDS = {"event": "hEvent", "stream": "hStream"}
CAPTURES = ("BeginCapture_v2", "BeginCapture_v2_ptsz", "EndCapture", "EndCapture_ptsz", "BeginCaptureToGraph")
EVENT_RECORDS = ("Record", "Record_ptsz", "RecordWithFlags", "RecordWithFlags_ptsz")
NEWER = {"allowMultipleSubscribers"}  # CUDA 13.0 does not have it yet
NUMBERS = {
    "CUPTI_OK": "CUPTI_SUCCESS",
    "CUPTI_INVALID_PARAMETER": "CUPTI_ERROR_INVALID_PARAMETER",
    "CUPTI_MULTIPLE_SUBSCRIBERS": "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
    "DOMAIN_DRIVER_API": "CUPTI_CB_DOMAIN_DRIVER_API",
    "DOMAIN_RUNTIME_API": "CUPTI_CB_DOMAIN_RUNTIME_API",
    "SITE_ENTER": "CUPTI_API_ENTER",
    "SITE_EXIT": "CUPTI_API_EXIT",
    "ACTIVITY_MEMCPY": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "ACTIVITY_MEMSET": "CUPTI_ACTIVITY_KIND_MEMSET",
    "ACTIVITY_CONCURRENT_KERNEL": "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
    "ATTR_DEVICE_BUFFER_POOL_LIMIT": "CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT",
    "ATTR_ZEROED_OUT_ACTIVITY_BUFFER": "CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER",
    "CBID_LAUNCH_KERNEL": "CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel",
    "CBID_LAUNCH_KERNEL_EX": "CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx",
    "CBID_GRAPH_LAUNCH": "CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch",
    "CBID_BEGIN_CAPTURE_V2": "CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCapture_v2",
    "CBID_END_CAPTURE": "CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture",
    "CBID_INSTANTIATE_FLAGS": "CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags",
    "CBID_EXEC_DESTROY": "CUPTI_DRIVER_TRACE_CBID_cuGraphExecDestroy",
    "CBID_MEMCPY_HTOD_V2": "CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2",
    "CBID_MEMSET_D8_V2": "CUPTI_DRIVER_TRACE_CBID_cuMemsetD8_v2",
    "CBID_STREAM_SYNCHRONIZE": "CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize",
    "CBID_STREAM_QUERY": "CUPTI_DRIVER_TRACE_CBID_cuStreamQuery",
    "CBID_EVENT_RECORD": "CUPTI_DRIVER_TRACE_CBID_cuEventRecord",
    "CBID_EVENT_RECORD_PTSZ": "CUPTI_DRIVER_TRACE_CBID_cuEventRecord_ptsz",
    "CBID_EVENT_RECORD_FLAGS": "CUPTI_DRIVER_TRACE_CBID_cuEventRecordWithFlags",
    "CBID_EVENT_RECORD_FLAGS_PTSZ": "CUPTI_DRIVER_TRACE_CBID_cuEventRecordWithFlags_ptsz",
    "CBID_EVENT_SYNCHRONIZE": "CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize",
    "CBID_CTX_SYNCHRONIZE": "CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize",
    "CBID_MEM_FREE_V2": "CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2",
}
NUMBERS_SINCE_13_3 = {
    "ATTR_USER_DEFINED_RECORDS": "CUPTI_ACTIVITY_ATTR_USER_DEFINED_RECORDS",
    "ATTR_SHARED_GRAPH_TRACE": "CUPTI_ACTIVITY_ATTR_ENABLE_MULTI_SUBSCRIBER_GRAPH_TRACE",
}
# What is called where there are several subscribers, with its number of arguments.
SHARED_CALLS = {
    "cuptiActivityRegisterCallbacks_v2": 3,
    "cuptiActivityEnable_v2": 3,
    "cuptiActivityDisable_v2": 3,
    "cuptiActivityGetNextRecord_v2": 4,
    "cuptiActivityGetNumDroppedRecords_v2": 4,
    "cuptiActivityGetAttribute_v2": 4,
    "cuptiGetTimestamp_v2": 2,
}
FIELD = (
    "_Static_assert(offsetof(struct {ours}, {field}) == offsetof({real}, {name}) && "
    'sizeof(((struct {ours} *)0)->{field}) == sizeof((({real} *)0)->{name}), "{real}.{name}");'
)


def _call(name: str, arguments: int) -> str:
    """C that compiles when a real function takes so many arguments of the sizes that ours has.

    All are pointers, but the 32-bit kinds, attributes and streams and 64-bit sizes, which zero converts to; a
    count that differs does not compile, and the real one must return what ours does.
    """
    zeros = ", ".join(["0"] * arguments)
    return (
        f"static void call_{name}(void) {{ struct cupti_api *ours = 0; "
        f"_Static_assert(sizeof({name}({zeros})) == sizeof(ours->{name}({zeros})), "
        f'"{name}"); (void)ours; }}'
    )


def layout_program(headers: str, abi: str) -> str:
    """C that compiles when every number of cupti_abi.h is that of the real headers."""
    lines = ["#include <cuda.h>", "#include <cupti.h>", "#define MOCK_LAYOUTS_ONLY"]
    if "cupti_activity_deprecated.h" in headers:
        lines.append("#include <cupti_activity_deprecated.h>")
    lines += ['#include "cupti_abi.h"', '#include "mock_gpu.h"']
    for ours, real, fields in [
        *(("cupti_kernel", f"CUpti_Activity{name}", KERNEL_FIELDS) for name in KERNELS),
        *(
            ("cupti_memcpy", f"CUpti_Activity{name}", {**COPY_FIELDS, "copy_kind": "copyKind"})
            for name in COPIES
        ),
        *(("cupti_memset", f"CUpti_Activity{name}", {**COPY_FIELDS, "value": "value"}) for name in SETS),
        ("cupti_callback_data", "CUpti_CallbackData", CALLBACK_FIELDS),
        ("cupti_subscriber_params", "CUpti_SubscriberParams", PARAMS_FIELDS),
        ("cuda_stream_params", "cuStreamSynchronize_params", STREAM_FIELDS),
        ("cuda_stream_params", "cuStreamSynchronize_ptsz_params", STREAM_FIELDS),
        *(("cuda_stream_params", f"cuStream{name}_params", STREAM_FIELDS) for name in CAPTURES),
        ("cuda_event_params", "cuEventSynchronize_params", EVENT_FIELDS),
        *(("cuda_event_params", f"cuEvent{name}_params", RECORD_FIELDS) for name in EVENT_RECORDS),
    ]:
        if f"}} {real};" not in headers:
            continue
        known = [pair for pair in fields.items() if pair[1] not in NEWER or f" {pair[1]};" in headers]
        lines += [FIELD.format(ours=ours, real=real, field=field, name=name) for field, name in known]
        if real.startswith("CUpti_ActivityKernel"):
            lines.append(FIELD.format(ours=ours, real=real, field="graph", name="graphId"))
    numbers = {**NUMBERS, **(NUMBERS_SINCE_13_3 if "_MULTI_SUBSCRIBER_GRAPH_TRACE" in headers else {})}
    lines += [f'_Static_assert((int){ours} == (int){real}, "{real}");' for ours, real in numbers.items()]
    if "_MULTI_SUBSCRIBER_GRAPH_TRACE" in headers:
        lines += [_call(name, count) for name, count in SHARED_CALLS.items()]
    for name in re.findall(r"\bCBID_(\w+) =", abi):
        lines.append(f'_Static_assert(CBID_{name} == CUPTI_DRIVER_TRACE_CBID_{name}, "{name}");')
    for name in ("Kernel13", "Memcpy7", "Memset5"):
        if f"CUpti_Activity{name};" in headers:
            size = f"MOCK_{name.rstrip('0123456789').upper()}_BYTES"
            lines.append(f'_Static_assert({size} == sizeof(CUpti_Activity{name}), "{name}");')
    return "\n".join(lines) + "\nint main(void) { return 0; }\n"


def test_layouts_are_those_of_the_real_headers(kit: Any, tmp_path: Path) -> None:
    folders = include_folders()
    if folders is None:
        pytest.skip("no CUPTI headers: set CUPTI_INCLUDE, or install nvidia-cuda-cupti, -runtime and -crt")
    headers = read_headers(folders)
    headers += " ".join(path.name for folder in folders for path in Path(folder).glob("cupti_*.h"))
    program = layout_program(headers, (kit.INJECT / "cupti_abi.h").read_text())
    assert program.count("_Static_assert") > 100
    source = tmp_path / "layout.c"
    source.write_text(program)
    includes = [f"-I{folder}" for folder in (*folders, str(kit.INJECT), str(kit.HERE))]
    result = subprocess.run(
        ["gcc", "-std=gnu11", "-w", "-fsyntax-only", *includes, str(source)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[:4000]


def test_a_wrong_layout_would_be_seen(kit: Any, tmp_path: Path) -> None:
    folders = include_folders()
    if folders is None:
        pytest.skip("no CUPTI headers")
    wrong = tmp_path / "cupti_abi.h"
    text = (kit.INJECT / "cupti_abi.h").read_text()
    assert "CBID_cuGraphLaunch = 514" in text
    wrong.write_text(text.replace("CBID_cuGraphLaunch = 514", "CBID_cuGraphLaunch = 513"))
    source = tmp_path / "layout.c"
    source.write_text(layout_program(read_headers(folders), text))
    includes = [f"-I{folder}" for folder in (str(tmp_path), *folders, str(kit.HERE))]
    result = subprocess.run(
        ["gcc", "-std=gnu11", "-w", "-fsyntax-only", *includes, str(source)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert "cuGraphLaunch" in result.stderr
