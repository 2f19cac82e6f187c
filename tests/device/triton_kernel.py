"""A Triton kernel, for frameworks.py: Triton reads its source, which must be at the top of a module."""

import triton
import triton.language as tl


@triton.jit
def known_kernel(x_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + 1)
