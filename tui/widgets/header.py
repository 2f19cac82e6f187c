"""The first lines of the screen: who is watched, by which sources, at what cost; one gauge per GPU; and what
is missing."""

from __future__ import annotations

import re
import time

from gpuprof.snapshots.frames import GpuFacts, SourceStatus
from gpuprof.snapshots.names import clean, fit
from gpuprof.tui.model import Model
from gpuprof.tui.palette import Palette
from gpuprof.tui.timescale import wall_text
from gpuprof.tui.widgets.styled import (
    ABSENT,
    Line,
    Lines,
    bar,
    ink,
    join,
    pack_by_priority,
    palette_for,
    wrap,
)

FRESH_NS = 5 * 10**9  # a reading older than this is not what holds now
_STATE_MARKS = {"ok": "●", "starting": "◌", "degraded": "◐", "off": "○", "failed": "✗"}
_TITLES = {"cpu": "CPU", "nvml": "NVML", "gpu": "GPU time", "offcpu": "off-CPU"}
GAUGE_CELLS = 92
GIB = 2**30
NOTICE_S = 12.0  # for so long what does not work stands there in full, then in one line
MORE = " m: all of it"
_WHY = ": m says why, and what to do"


def header_line(model: Model, width: int, palette: Palette, link: str, label: str) -> Line:
    """The top line, with as many facts as fit; the least important go first."""
    text, dim, accent = ink(palette.text), ink(palette.dim), ink(palette.accent, bold=True)
    hello = model.hello
    left: list[tuple[int, Line]] = [(0, Line().add(" gpuprof", accent))]
    right: list[tuple[int, Line]] = []
    if hello is not None:
        left.append((1, Line().add(clean(hello.host, 40), ink(palette.text, bold=True))))
    if not model.live:
        left.append((1, Line().add(f"recording {clean(label, 48)}", ink(palette.warning))))
    if model.gpus:
        left.append((3, Line().add(_gpu_names(model.gpus), text, at_most=48)))
    if model.driver_version:
        left.append((6, Line().add("driver ", dim).add(clean(model.driver_version, 20), text)))
    for source in model.status.sources if model.status else []:
        if source.name not in _TITLES and source.state == "ok":
            continue
        left.append((4 if source.state != "failed" else 2, _source(source, model, palette)))
    if link:
        left.append((1, Line().add(link, ink(palette.error, bold=True))))
    if model.status is not None and model.live:
        cpu = model.sampler_cpu_percent
        cost = f"{cpu:.1f} %" if cpu is not None else ABSENT
        megabytes = f"{model.status.sampler_rss_bytes / 1e6:.0f} MB"
        right.append((5, Line().add("sampler ", dim).add(f"{cost} {megabytes}", text)))
    if model.status is not None:
        losses = model.losses
        line = Line()
        if losses:
            line.add(" ".join(f"{name} {count:,}" for name, count in losses.items()), ink(palette.warning))
        else:
            line.add("lost 0", dim)
        right.append((2 if losses else 5, line))
    if model.newest_ns:
        right.append((2, Line().add(wall_text(model.wall_ns(model.now_ns)), text)))
    chosen = pack_by_priority(left + right, width - 1)
    ends = [line for _, line in right]
    tail = join(line for line in chosen if any(line is end for end in ends))
    head = join(line for line in chosen if not any(line is end for end in ends))
    return head.pad_to(width - 1 - tail.cells).extend(tail)


def _gpu_names(gpus: list[GpuFacts]) -> str:
    whole = [gpu for gpu in gpus if gpu.parent_uuid is None]
    counts: dict[str, int] = {}
    for gpu in whole:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    names = ", ".join(f"{count}× {clean(name, 40)}" for name, count in counts.items())
    parts = len(gpus) - len(whole)
    return f"{names} ({parts} MIG)" if parts else names


def _source(source: SourceStatus, model: Model, palette: Palette) -> Line:
    colors = {"ok": palette.good, "failed": palette.error, "degraded": palette.warning}
    title = _TITLES.get(source.name, clean(source.name, 12))
    hello = model.hello
    rate = {"cpu": hello.cpu_hz, "nvml": hello.nvml_hz}.get(source.name, 0) if hello else 0
    line = Line().add(_STATE_MARKS.get(source.state, "?") + " ", ink(colors.get(source.state, palette.dim)))
    line.add(title, ink(palette.text if source.state in ("ok", "degraded") else palette.dim))
    if source.state in ("ok", "degraded") and rate:
        line.add(f" {rate} Hz", ink(palette.dim))
    elif source.state != "ok":
        line.add(f" {clean(source.state, 12)}", ink(colors.get(source.state, palette.dim)))
    return line


def notices(model: Model, palette: Palette, width: int, each: int = 9) -> list[Line]:
    """What does not work and what to do about it, in at most `each` wrapped lines per source; nothing when
    all is well."""
    result: list[Line] = []
    for source in _noticed(model):
        title = _TITLES.get(source.name, clean(source.name, 12))
        title = "" if title in source.reason[:16] else f"{title}: "
        said = clean(source.reason, 300)
        if source.hint:
            said += "  → " + clean(source.hint, 300)
        if source.name == "nvml" and source.state != "degraded" and not model.gpus and model.live:
            demo = (
                "D opens it here."
                if "demo" in source.hint
                else "D (or `gpuprof-tui demo`) opens a recording of a GPU run."
            )
            said += "  " + demo
        parts = wrap(title + said, width - 2)
        if len(parts) > each:  # where it was looked for is the first to go
            parts = wrap(title + re.sub(r" \([^()]*\)", "", said), width - 2)
        if len(parts) > each:
            parts = [*parts[: each - 1], fit(parts[each - 1] + " " + parts[each], width - 2)]
        for place, part in enumerate(parts):
            head = title if not place else ""
            line = Line().add(" " + head, ink(palette.warning, bold=True))
            result.append(line.add(part[len(head) :], ink(palette.text)))
    return result


def one_notice(model: Model, palette: Palette, width: int) -> list[Line]:
    """The same in one line, which says how to see the rest; none when all is well."""
    sources = _noticed(model)
    if not sources:
        return []
    if len(sources) == 1:
        whole = notices(model, palette, width)
        if len(whole) == 1:
            return whole
        said, more = fit(" ".join(line.text.strip() for line in whole), max(width - 2 - len(MORE), 1)), MORE
    else:
        said = ", ".join(f"{_TITLES.get(one.name, clean(one.name, 12))} {one.state}" for one in sources)
        more = _WHY
    return [Line().add(" " + said, ink(palette.text)).add(more, ink(palette.accent))]


def _noticed(model: Model) -> list[SourceStatus]:
    """The sources that do not work as they could, without those of which the place of the tree tells."""
    return [
        source
        for source in (model.status.sources if model.status is not None else [])
        if source.state in ("failed", "off", "degraded")
        and source.reason
        and not (source.name == "cpu" and source.state != "degraded")
        and not (source.name == "gpu" and source.state == "off")
    ]


def latest(model: Model, metric: str, gpu: str | None = None) -> float | None:
    """The newest value of a series, or None when there is none or (live) it is too old to hold now."""
    view = model.store.get(metric, gpu=gpu)
    if not len(view) or (model.live and int(view.end_ns[-1]) < model.now_ns - FRESH_NS):
        return None
    return float(view.value[-1])


def gauge(model: Model, gpu: GpuFacts, width: int, palette: Palette) -> Line:
    """One GPU: utilization and memory as bars, power, temperature, clock. Absent readings are left out or a
    dash."""
    text, dim = ink(palette.text), ink(palette.dim)
    line = Line().add(f" GPU{gpu.index} ", ink(palette.text, bold=True))
    if gpu.uuid in model.lost_gpus:
        now = "lost: the driver no longer answers for it (see dmesg, nvidia-smi)"
        return line.add(
            now if model.live else "lost: the driver did not answer for it any more", ink(palette.error)
        )
    roomy = width >= 88
    cells = 16 if roomy else 10
    util = latest(model, "util_gpu_percent", gpu.uuid)
    line.add("▕", dim).add(bar((util or 0) / 100, cells), ink(palette.lines[0])).add("▏", dim)
    line.add(f"{util:3.0f} %" if util is not None else f"{ABSENT:>3} %", text)
    used, total = latest(model, "mem_used_bytes", gpu.uuid), gpu.memory_total_bytes
    if used is not None and total:
        line.add("  mem ▕" if roomy else " ▕", dim).add(
            bar(used / total, 8 if roomy else 5), ink(palette.lines[1])
        )
        line.add("▏", dim).add(f"{used / GIB:.0f}/{total / GIB:.0f} GiB", text)
    power = latest(model, "power_w", gpu.uuid)
    if power is None:
        power = latest(model, "power_instant_w", gpu.uuid)
    limit = latest(model, "power_limit_w", gpu.uuid)
    if power is not None:
        line.add(f"  {power:3.0f}" + (f"/{limit:.0f} W" if limit is not None else " W"), text)
    temp = latest(model, "temp_c", gpu.uuid)
    if temp is not None:
        hot = gpu.temp_slowdown_c is not None and temp >= gpu.temp_slowdown_c
        line.add(f"  {temp:.0f} °C", ink(palette.error, bold=True) if hot else text)
    clock = latest(model, "clock_sm_mhz", gpu.uuid)
    if clock is not None:
        line.add(f"  {clock:4.0f} MHz", text)
    return line


def host_gauge(model: Model, palette: Palette) -> Line | None:
    """Host CPU over all cores and memory that is available; None while there are no such readings, or they
    are too old to hold now.
    """
    text, dim = ink(palette.text), ink(palette.dim)
    cores = model.store.subjects("core_busy_ns")
    fresh_ns = model.now_ns - FRESH_NS if model.live else 0
    busy: list[float] = []
    for key in cores:
        view = model.store.view(key)
        if len(view) >= 2 and int(view.end_ns[-1]) > max(int(view.end_ns[-2]), fresh_ns):
            elapsed = int(view.end_ns[-1]) - int(view.end_ns[-2])
            busy.append(min(1.0, max(0.0, float(view.value[-1] - view.value[-2]) / elapsed)))
    line = Line().add(" host ", ink(palette.text, bold=True))
    if busy:
        share = sum(busy) / len(busy)
        line.add("▕", dim).add(bar(share, 10), ink(palette.lines[2])).add("▏", dim)
        line.add(f"{100 * share:3.0f} %", text).add(f" of {len(busy)} cores", dim)
    available = latest(model, "mem_available_bytes")
    if available is not None:
        line.add(f"  {available / GIB:.1f} GiB", text).add(" memory available", dim)
    return line if busy or available is not None else None


class Header(Lines):
    """Header line, gauges and notices; its height follows its content."""

    def __init__(self, model: Model, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.model = model
        self.link_text = ""
        self.label = ""
        self._noticed: tuple[tuple[str, str], ...] = ()  # sources that do not work, and how
        self._noticed_at = 0.0

    def update(self, max_lines: int, max_notices: int = 9) -> int:
        """Rebuild the lines for the current width; the number of lines wanted, at most `max_lines`, of which
        at most `max_notices` of each thing that does not work."""
        width = self.size.width or self.app.size.width
        palette = palette_for(self)
        model = self.model
        lines = [header_line(model, width, palette, self.link_text, self.label)]
        states = tuple((source.name, source.state) for source in model.status.sources) if model.status else ()
        if states != self._noticed:
            self._noticed, self._noticed_at = states, time.monotonic()
        if time.monotonic() - self._noticed_at > NOTICE_S:
            said = one_notice(model, palette, width)
        else:
            said = notices(model, palette, width, max_notices)
        lines += self._gauges(width, palette, max(1, max_lines - 1 - min(len(said), 3)))
        lines += said
        lines = lines[:max_lines]
        self.show(lines)
        return len(lines)

    def _gauges(self, width: int, palette: Palette, max_lines: int) -> list[Line]:
        model = self.model
        blocks = [gauge(model, gpu, width, palette) for gpu in model.gpus]
        host = host_gauge(model, palette)
        per_line = max(1, width // GAUGE_CELLS)
        if host is not None and (not blocks or len(blocks) % per_line or len(blocks) < max_lines * per_line):
            blocks.append(host)
        column = width // per_line
        lines: list[Line] = []
        for first in range(0, len(blocks), per_line):
            line = Line()
            for place, block in enumerate(blocks[first : first + per_line]):
                line.pad_to(place * column).extend(block)
            lines.append(line)
        if len(lines) > max_lines:
            hidden = len(blocks) - (max_lines - 1) * per_line
            lines = [
                *lines[: max_lines - 1],
                Line().add(f" … and {hidden} more GPUs (see the charts)", ink(palette.dim)),
            ]
        return lines
