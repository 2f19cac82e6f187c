"""What a person is told of code that was compiled at run time and has no name, or ends a stack.

Which runtime a process has shows in the files that it maps. Each can be asked, or started so, to write a
perf map (see jit_map.py); nobody but the user does that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuprof.sampler.maps import Mapping

PLAIN_BINARY = "[jit]"


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime that generates code. `binary`: shown as the binary of its frames; `label`: name of a frame
    that has none ("" for what only the mapping's name tells); `whole`: what makes stacks complete that end
    in its code.
    """

    binary: str
    label: str = ""
    whole: str = ""


PLAIN = Runtime(PLAIN_BINARY)
_RUNTIMES: tuple[tuple[re.Pattern[str], Runtime], ...] = (
    (
        re.compile(r"libjvm\.so"),
        Runtime(
            "[jit of java]",
            "[JIT code of java; jcmd PID Compiler.perfmap names it]",
            "java -XX:+PreserveFramePointer makes it whole",
        ),
    ),
    (
        re.compile(r"libcoreclr\.so"),
        Runtime("[jit of .NET]", "[JIT code of .NET; DOTNET_PerfMapEnabled=1 names it]"),
    ),
    (
        re.compile(r"(node(js)?|libnode\.so.*)$"),
        Runtime("[jit of node]", "[JIT code of node; --perf-basic-prof names it]"),
    ),
)
_BY_BINARY = {runtime.binary: runtime for _, runtime in _RUNTIMES}


def runtime_of(mappings: Sequence[Mapping]) -> Runtime:
    """The runtime of a process that maps these files."""
    names = {mapping.name for mapping in mappings if mapping.kind == "file"}
    for pattern, runtime in _RUNTIMES:
        if any(pattern.match(name) for name in names):
            return runtime
    return PLAIN


def advice(binary: str) -> str:
    """What to add to the words of a stack that ends early, or goes on by a guess, at a frame of this
    binary; "" for nothing.
    """
    runtime = _BY_BINARY.get(binary)
    return f"; {runtime.whole}" if runtime is not None and runtime.whole else ""
