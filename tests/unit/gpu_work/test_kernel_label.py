"""Labels of kernels, from names that PyTorch 2.11 and cuDNN 9 really launch."""

from __future__ import annotations

import pytest

from gpuprof.sampler.kernel_label import kernel_label

ELEMENTWISE = (
    b"_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_%dsin_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE0_clEv"
    b"ENKUlvE0_clEvEUlfE_St5arrayIPcLm2EEEEviT0_T1_" % len("sin_kernel_cuda")
)


@pytest.mark.parametrize(
    ("raw", "label"),
    [
        (ELEMENTWISE, "at::native::vectorized_elementwise_kernel<sin_kernel_cuda>"),
        (
            b"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_21CUDAFunctorOnSelf_addIfEESt5arrayIPcLm2EEEEvi",
            "at::native::vectorized_elementwise_kernel<CUDAFunctorOnSelf_add>",
        ),
        (
            b"_ZN7cutlass7Kernel2I43cutlass_80_simt_sgemm_256x128_8x4_nn_align1EEvNT_6ParamsE",
            "cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>",
        ),
        (b"sm90_xmma_gemm_bf16", "sm90_xmma_gemm_bf16"),
        (b"matmul_naive", "matmul_naive"),
        (b"_ZN", "_ZN"),
        (b"", "(none)"),
    ],
)
def test_labels(raw: bytes, label: str) -> None:
    assert kernel_label(raw) == label


def test_a_name_that_would_explode_keeps_its_front() -> None:
    raw = b"_ZN2at6native33batch_norm_transform_input_kernelI" + b"NS_1aI" * 3000
    assert kernel_label(raw) == "at::native::batch_norm_transform_input_kernel<…>"


@pytest.mark.parametrize("raw", [ELEMENTWISE[:cut] for cut in range(0, len(ELEMENTWISE), 7)])
def test_cut_names_never_raise(raw: bytes) -> None:
    assert kernel_label(raw)
