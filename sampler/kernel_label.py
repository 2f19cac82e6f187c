"""Labels of GPU kernels: short enough for a row, and telling apart what one template makes of many functions.

A library launches much of its work through few templates: `vectorized_elementwise_kernel<4,
sin_kernel_cuda(...)::{lambda...}, std::array<...>>` is labelled
`at::native::vectorized_elementwise_kernel<sin_kernel_cuda>`. Instantiations that differ in element types or
sizes only share a label.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprof.sampler.demangle import demangled, display_name
from gpuprof.snapshots.names import MAX_FULL_NAME, clean

MAX_LABEL = 160
MAX_HINTS = 2
MAX_READ = 16_384  # characters of a demangled name
_FOLDED = "<…>"
_OPEN, _CLOSE = "<({[", ">)}]"
_PLAIN = re.compile(
    r"\(?(?:-?\d.*|true|false|(?:unsigned |signed )?(?:char|short|int|long|long long|unsigned)"
    r"|float|double|bool|void|__half|__nv_bfloat16|half|std::.*|thrust::.*)$"
)
_FUNCTOR = re.compile(r"\b(\w*(?:functor|Functor)\w*|\w+_kernel_\w+)\b")


def kernel_label(raw: bytes) -> str:
    """The label of a kernel from its (mangled) name. Never raises."""
    label = display_name(raw)
    if not label.endswith(_FOLDED):
        return label
    head = label[: -len(_FOLDED)]
    full = demangled(raw)[:MAX_READ]
    at = full.find(head + "<")
    if at < 0:
        return label
    hints: list[str] = []
    for argument in _arguments(full, at + len(head) + 1):
        for hint in _hints(argument):
            if hint not in hints and len(hints) < MAX_HINTS:
                hints.append(hint)
    if not hints:
        return label
    return clean(f"{head}<{', '.join(hints)}>", MAX_LABEL)


def full_kernel_name(raw: bytes) -> str:
    """A kernel's name with all template arguments and parameters, cut at MAX_FULL_NAME. Never raises."""
    return clean(demangled(raw), MAX_FULL_NAME)


def _arguments(text: str, at: int) -> Iterator[str]:
    """The template arguments that begin at `at`, up to the bracket that closes them."""
    depth, begin = 0, at
    while at < len(text):
        char = text[at]
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE and text[at - 1] != "-":
            depth -= 1
            if depth < 0:
                break
        elif char == "," and depth == 0:
            yield text[begin:at].strip()
            begin = at + 1
        at += 1
    yield text[begin:at].strip()


def _hints(argument: str) -> Iterator[str]:
    """What an argument says of the work: the function or functor that it names."""
    argument = argument.replace("(anonymous namespace)::", "")
    if not argument or _PLAIN.match(argument):
        return
    outer = re.split(r"[<({]", argument, maxsplit=1)[0].removesuffix("::").rpartition("::")[2].strip()
    inner = _FUNCTOR.findall(argument)
    if (
        inner and inner[-1] != outer
    ):  # the innermost says most: AUnaryFunctor<..., MulFunctor<float>> multiplies
        yield inner[-1]
    if re.fullmatch(r"[A-Za-z_]\w*", outer):
        yield outer
