"""The notes (key m): what the summary says, and what does not work and what to do about it, in full."""

from __future__ import annotations

from gpuprof.snapshots.names import clean
from gpuprof.tui.screens.page import Page, Section
from gpuprof.tui.session import Session
from gpuprof.tui.widgets.summary import summary_parts

TITLES = {
    "cpu": "CPU stacks", "nvml": "GPU readings", "gpu": "GPU time", "offcpu": "off-CPU time",
    "processes": "processes",
}  # fmt: skip
_MAX_TEXT = 1000
_TREES = {"cpu": "CPU", "gpu": "GPU time", "idle": "GPU idle", "offcpu": "off-CPU"}


def notes_of(session: Session) -> list[Section]:
    """All that there is to say, in sections."""
    said = summary_parts(session)
    name = _TREES.get(session.feed.tree, session.feed.tree)
    summary = [("", part) for part in said] or [("", "There is none for this tree.")]
    sections: list[Section] = [(f"Summary of the tree {name}", summary)]
    status = session.model.status
    entries: list[tuple[str, str]] = []
    for source in status.sources if status is not None else []:
        if source.state == "ok" and not source.reason:
            continue
        title = TITLES.get(source.name, clean(source.name, 16))
        reason = f": {clean(source.reason, _MAX_TEXT)}" if source.reason else ""
        entries.append((title, clean(source.state, 16) + reason))
        entries += [("", "→ " + clean(source.hint, _MAX_TEXT))] if source.hint else []
    sections.append(("Sources", entries or [("", "All of them work.")]))
    losses = session.model.losses
    lost = [(clean(what, 24), f"{count:,}") for what, count in losses.items()]
    sections.append(("Lost", lost or [("", "Nothing was lost.")]))
    return sections


class NotesScreen(Page):
    """Key m; any of m q ? Esc closes it."""

    def __init__(self, session: Session) -> None:
        super().__init__(notes_of(session), key_cells=16)
