"""Snapshot files as transports: one that was asked for, and the recording that comes with the program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.tui.transports import HistoryTransport

if TYPE_CHECKING:
    from gpuprof.snapshots.history import History

DEMO = "pytorch-slow-loader-h200.gpuprof"


def open_file(path: str) -> HistoryTransport:
    """A transport over a snapshot file, which is read (in a thread) when the transport is opened."""
    transport = HistoryTransport(lambda: _read(path, transport), Path(path).name)
    return transport


def _read(path: str, transport: HistoryTransport) -> History:
    from gpuprof.snapshots.file import read_snapshot

    opened = read_snapshot(path)
    transport.damage = "; ".join(filter(None, (opened.growing, opened.damage))) or None
    return opened.history


def bundled_recording() -> Path | None:
    """The recording of a real GPU run that comes with the program; None when it was left out."""
    from importlib.resources import files

    path = Path(str(files("gpuprof.snapshots"))) / "recorded" / DEMO
    return path if path.is_file() else None
