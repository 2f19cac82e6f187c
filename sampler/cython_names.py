"""Names of functions that Cython compiled, as their source has them.

Cython's C names hold the module, the classes and the function: __pyx_f_4cupy_4cuda_8function_launch for a C
function (cdef), each part but the last with its length before it; __pyx_pw_ and __pyx_pf_ for a Python
function's wrapper and body, where the last part has the function's number in its module or class before it (a
body whose number is 0 has none).
"""

from __future__ import annotations

import re

_PREFIX = re.compile(r"__pyx_(pw|pf|f)_(?=\d)")
_NUMBER = re.compile(r"[1-9]\d{0,2}")
_FUSED = re.compile(r"__pyx_fuse(?:_\d+)+")
_INDEX = re.compile(r"^\d+")


def cython_name(name: str) -> str | None:
    """The dotted name in the source, such as cupy.cuda.function.launch; None where it is no such name."""
    prefix = _PREFIX.match(name)
    if prefix is None:
        return None
    starts, parts, at = [prefix.end()], [], prefix.end()
    while (number := _NUMBER.match(name, at)) is not None:
        end = number.end() + int(number[0])
        if end > len(name) or name[end : end + 1] not in {"_", ""}:
            break
        parts.append(name[number.end() : end])
        at = min(end + 1, len(name))
        starts.append(at)
    last = name[at:]
    if prefix[1] == "pw" and parts and not last[:1].isdigit():  # the function's number was a length as well
        parts.pop()
        last = name[starts[-2] :]
    if prefix[1] != "f":
        last = _INDEX.sub("", last, count=1)
    if _FUSED.match(last):  # one of the types that a fused function was compiled for
        last = _FUSED.sub("", last)
        return cython_name(last) or ".".join([*parts, last])
    return ".".join([*parts, last]) if parts and last else None
