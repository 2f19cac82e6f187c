"""What the host of fake_node.py is doing: stacks of a program that trains, of what loads its data, and of the
kernel."""

from __future__ import annotations

from gpuprof.snapshots.frames import FrameKind

PYTHON, NATIVE, KERNEL = FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.KERNEL_SPACE

Function = tuple[str, str, str, FrameKind, int]  # name, file, binary, kind, line

_RUNTIME: list[Function] = [
    ("_start", "", "python3.11", NATIVE, 0),
    ("__libc_start_main", "", "libc.so.6", NATIVE, 0),
    ("Py_BytesMain", "", "python3.11", NATIVE, 0),
    ("<module>", "/srv/train/train.py", "", PYTHON, 112),
    ("main", "/srv/train/train.py", "", PYTHON, 88),
]
# Weight, number of the thread, and functions from the outermost one.
STACKS: list[tuple[float, int, list[Function]]] = [
    (
        30,
        0,
        [
            *_RUNTIME,
            ("step", "/srv/train/train.py", "", PYTHON, 31),
            ("linear", "/usr/lib/python3/dist-packages/torch/nn/functional.py", "", PYTHON, 114),
            (
                "at::native::addmm_out_cuda_impl(at::Tensor&, at::Tensor const&, at::Tensor const&)",
                "",
                "libtorch_cuda.so",
                NATIVE,
                0,
            ),
            ("cublasGemmEx", "", "libcublas.so.12", NATIVE, 0),
            ("cudaLaunchKernel", "", "libcudart.so.12", NATIVE, 0),
            ("cuLaunchKernel", "", "libcuda.so.580.159.04", NATIVE, 0),
        ],
    ),
    (
        9,
        0,
        [
            *_RUNTIME,
            ("step", "/srv/train/train.py", "", PYTHON, 33),
            ("backward", "/usr/lib/python3/dist-packages/torch/_tensor.py", "", PYTHON, 522),
            ("torch::autograd::Engine::execute", "", "libtorch_cpu.so", NATIVE, 0),
        ],
    ),
    (
        5,
        0,
        [
            *_RUNTIME,
            ("step", "/srv/train/train.py", "", PYTHON, 35),
            ("item", "/usr/lib/python3/dist-packages/torch/_tensor.py", "", PYTHON, 900),
            ("cudaStreamSynchronize", "", "libcudart.so.12", NATIVE, 0),
            ("clock_gettime", "", "[vdso]", NATIVE, 0),
        ],
    ),
    (
        34,
        1,
        [
            *_RUNTIME,
            ("_next_data", "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py", "", PYTHON, 733),
            ("fetch", "/usr/lib/python3/dist-packages/torch/utils/data/_utils/fetch.py", "", PYTHON, 54),
            ("__getitem__", "/srv/train/dataset.py", "", PYTHON, 41),
            ("decode", "/srv/train/dataset.py", "", PYTHON, 57),
            ("jpeg_idct_islow", "", "libjpeg.so.62", NATIVE, 0),
        ],
    ),
    (
        8,
        1,
        [
            *_RUNTIME,
            ("_next_data", "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py", "", PYTHON, 733),
            ("open", "/usr/lib/python3.11/tokenize.py", "", PYTHON, 451),
            ("__libc_open64", "", "libc.so.6", NATIVE, 0),
            ("do_sys_openat2", "", "[kernel]", KERNEL, 0),
            ("path_openat", "", "[kernel]", KERNEL, 0),
        ],
    ),
    (
        3,
        2,
        [
            ("ret_from_fork", "", "[kernel]", KERNEL, 0),
            ("kthread", "", "[kernel]", KERNEL, 0),
            ("worker_thread", "", "[kernel]", KERNEL, 0),
        ],
    ),
    (
        1.5,
        0,
        [
            ("[truncated: no unwind table for this code]", "", "", FrameKind.UNKNOWN, 0),
            ("0x7f12aa00", "", "memfd:jit", FrameKind.JIT, 0),
        ],
    ),
]
