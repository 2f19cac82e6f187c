"""All colours of the screen, in one place.

The hues of lines are those of Okabe and Ito ("Color Universal Design", 2008), brightened for dark backgrounds
and darkened for light ones, so that they stay apart for people who do not see red or green. Colours are
"#rrggbb" or, where the terminal has only sixteen, ANSI names. Nothing on the screen is told by colour alone.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache

from gpuprof.snapshots.frames import FrameKind


def blend(color: str, other: str, share: float) -> str:
    """`color` mixed with `share` (0..1) of `other`, both "#rrggbb"."""
    pairs = ((int(color[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


@lru_cache(maxsize=512)
def tinted(background: str, color: str, share: float) -> str:
    """`background` with a share of `color`; unchanged when either is no "#rrggbb"."""
    if share <= 0 or not (background.startswith("#") and color.startswith("#")):
        return background
    return blend(background, color, share)


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one kind of terminal. `lines[0]` is that of the node itself."""

    background: str
    text: str
    dim: str
    rule: str
    accent: str
    warning: str
    error: str
    good: str
    limit: str
    selection: str  # background of a pinned range
    cursor: str  # background of the column under the cursor
    lines: tuple[str, ...]
    tint: float  # share of a line's colour in the background of its area; 0: no areas
    heat: tuple[str, ...]  # idle to busy
    binaries: tuple[str, ...]
    kernel: str
    python: str
    unknown: str
    gpu_kernel: str
    gpu_copy: str
    gpu_comm: str
    wait: str

    def tinted(self, background: str, line: int) -> str:
        """Background of the area of a line; as it is where it is no "#rrggbb"."""
        return tinted(background, self.lines[line % len(self.lines)], self.tint)


_DARK_BACKGROUND = "#121212"
_DARK_LINES = (
    "#56b4ff", "#ffb02e", "#22cf9a", "#ff8fc7", "#f5e662", "#ff7a45", "#a9a1ff", "#9adbe8", "#c9d48a",
    "#d8b48f",
)  # fmt: skip
_DARK_BINARIES = (
    "#7cb7e8", "#d9a35b", "#5cbf9b", "#d58ab0", "#cfc25f", "#d9835f", "#a49be0", "#7fc4cf", "#a8b56c",
    "#c79f7b",
    "#8fa8c9", "#b98fc9",
)  # fmt: skip

DARK = Palette(
    background=_DARK_BACKGROUND,
    text="#e4e4e4",
    dim="#8c8c8c",
    rule="#4a4a4a",
    accent="#ffd75f",
    warning="#ffb02e",
    error="#ff6b5e",
    good="#22cf9a",
    limit="#c9737b",
    selection="#24405f",
    cursor="#4a505a",
    lines=_DARK_LINES,
    tint=0.16,
    heat=("#2f5d7c", "#3f8fb5", "#58c0c0", "#d6c84e", "#ff9a3c"),
    binaries=_DARK_BINARIES,
    kernel="#e0766c",
    python="#6aa9ff",
    unknown="#8c8c8c",
    gpu_kernel="#8ee04e",
    gpu_copy="#f0a0ff",
    gpu_comm="#ffb46b",
    wait="#c3a6e8",
)

_LIGHT_BACKGROUND = "#f6f6f6"
_LIGHT_LINES = (
    "#0067b3", "#b36b00", "#00795a", "#b03a7c", "#7d7300", "#c8321e", "#5b4fc4", "#1f7d8c", "#3f6b2a",
    "#85562a",
)  # fmt: skip

LIGHT = Palette(
    background=_LIGHT_BACKGROUND,
    text="#1c1c1c",
    dim="#6a6a6a",
    rule="#bdbdbd",
    accent="#8a5a00",
    warning="#b36b00",
    error="#b3261e",
    good="#00795a",
    limit="#b04a55",
    selection="#bcd7f2",
    cursor="#c4c4c4",
    lines=_LIGHT_LINES,
    tint=0.14,
    heat=("#9cc3de", "#5da0cc", "#2a7f95", "#a88a00", "#c04400"),
    binaries=_LIGHT_LINES,
    kernel="#b3261e",
    python="#0067b3",
    unknown="#6a6a6a",
    gpu_kernel="#3d7d00",
    gpu_copy="#9a2fae",
    gpu_comm="#a85a00",
    wait="#6b4aa0",
)

# Sixteen colours: shades do not exist, so fills and bands fall back to what every terminal tells apart.
ANSI16 = Palette(
    background="default",
    text="default",
    dim="bright_black",
    rule="bright_black",
    accent="bright_yellow",
    warning="yellow",
    error="bright_red",
    good="green",
    limit="red",
    selection="blue",
    cursor="bright_black",
    lines=(
        "bright_cyan",
        "bright_yellow",
        "bright_green",
        "bright_magenta",
        "white",
        "bright_red",
        "cyan",
        "yellow",
    ),
    tint=0.0,
    heat=("blue", "cyan", "bright_cyan", "bright_yellow", "bright_red"),
    binaries=(
        "cyan",
        "yellow",
        "green",
        "magenta",
        "bright_cyan",
        "bright_yellow",
        "bright_green",
        "bright_magenta",
    ),
    kernel="bright_red",
    python="bright_cyan",
    unknown="bright_black",
    gpu_kernel="bright_green",
    gpu_copy="bright_magenta",
    gpu_comm="bright_yellow",
    wait="magenta",
)


def choose(*, dark: bool = True, color_system: str | None = "truecolor") -> Palette:
    """The palette for a theme and Rich's name of the colour system ("standard", "256", "truecolor")."""
    if color_system in ("standard", "windows"):
        return ANSI16
    return DARK if dark else LIGHT


# Binaries that are in nearly every tree keep one colour, so that an eye learns them.
_KNOWN_BINARIES = (
    ("libcuda.so", 2),
    ("libcudart", 2),
    ("libtorch_python", 1),
    ("libtorch", 5),
    ("libc10", 5),
    ("libc.so", 10),
    ("ld-linux", 10),
    ("libpthread", 10),
    ("libcublas", 8),
    ("libcudnn", 8),
    ("libnccl", 3),
    ("libpython", 6),
)


@lru_cache(maxsize=4096)
def binary_color(name: str, palette: Palette = DARK) -> str:
    """Colour of a binary (its file name): the same in every run, since it comes from the name's CRC-32."""
    if not name or name == "[unknown]":
        return palette.unknown
    if name.startswith("["):
        return palette.kernel if name.startswith("[kernel") else palette.unknown
    if name.endswith(".py") or name.startswith("python"):
        return palette.python
    colors = palette.binaries
    for prefix, index in _KNOWN_BINARIES:
        if name.startswith(prefix):
            return colors[index % len(colors)]
    return colors[zlib.crc32(name.encode("utf-8", "replace")) % len(colors)]


def frame_color(kind: FrameKind, binary: str, palette: Palette = DARK) -> str:
    """Colour of a row of a tree: Python code, the kernel and work of a GPU have their own, others that of
    their binary."""
    if kind is FrameKind.PYTHON:
        return palette.python
    if kind is FrameKind.KERNEL_SPACE:
        return palette.kernel
    if kind is FrameKind.GPU_KERNEL:
        return palette.gpu_kernel
    if kind is FrameKind.GPU_COPY:
        return palette.gpu_copy
    if kind is FrameKind.GPU_COMM:
        return palette.gpu_comm
    if kind is FrameKind.WAIT:
        return palette.wait
    if kind in (FrameKind.ROOT, FrameKind.PROCESS, FrameKind.THREAD):
        return palette.text
    if kind in (FrameKind.UNKNOWN, FrameKind.OTHER):
        return palette.unknown
    return binary_color(binary, palette)
