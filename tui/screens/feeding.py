"""What the header, the charts and the process table of the main screen are given of a session."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprof.tui import attach_marks
from gpuprof.tui.model import Change
from gpuprof.tui.process_rows import process_rows
from gpuprof.tui.rate_feed import label
from gpuprof.tui.session import Session
from gpuprof.tui.widgets import status_bar
from gpuprof.tui.widgets.chart_stack import ChartStack
from gpuprof.tui.widgets.header import Header
from gpuprof.tui.widgets.process_table import ProcessTable

_PROCESSES_NS = 10**9  # the table is made anew no more often than that
_NEVER_NS = -(10**18)


class Feeding:
    """These three parts, and how new what they show is."""

    def __init__(self, header: Header, charts: ChartStack, table: ProcessTable) -> None:
        self._header = header
        self._charts = charts
        self._table = table
        self._last_process_ns = _NEVER_NS

    def begin(self, session: Session) -> None:
        """Start with another session."""
        model = session.model
        self._header.model = model
        self._header.label = session.transport.label if not session.transport.live else ""
        self._charts.show_range(session.feed.pinned)
        self._charts.set_store(model.store)
        self._charts.set_rates(session.rates.labels)
        self._charts.live = self._table.live = model.live
        self._last_process_ns = _NEVER_NS

    def show_facts(self, session: Session, changes: Change) -> None:
        """Devices, names of processes, and how the link is."""
        model = session.model
        if Change.NODE in changes:
            self._charts.set_gpus(model.gpus)
            session.feed.show_gpu(self._charts.selected_gpu)
            session.rates.set_gpus(model.gpus)
            self._charts.set_clock(0, model.wall_ns(0))
        if Change.PROCESSES in changes:
            names = {pid: process.name for pid, process in model.processes.items()}
            self._charts.set_processes(names)
            session.feed.follow_names(names)
        self._header.link_text = status_bar.link_text(session)

    def show_readings(self, session: Session, changes: Change) -> None:
        """Draw the charts up to now."""
        model = session.model
        if model.hello is not None and (model.live or Change.READINGS in changes or Change.NODE in changes):
            self._charts.now_ns = model.now_ns  # draws the charts
            if not model.live:
                self._charts.show_all()
                self._charts.live = False

    def show_rates(self, session: Session) -> list[str]:
        """Chart the work rates; what to say of those that cannot be counted."""
        rates, scale = session.rates, self._charts.view.scale
        if session.model.hello is not None:
            rates.view = (scale.start_ns, scale.end_ns)
        if rates.changed:
            rates.changed = False
            self._charts.set_rates(rates.labels)
        if rates.drew:
            rates.drew = False
            self._charts.refresh_data()
        said = []
        while rates.refusals:
            choice, reason = rates.refusals.pop()
            said.append(f"{label(choice)} cannot be counted: {reason}.")
        return said

    def show_processes(self, session: Session, refused: Mapping[int, str]) -> None:
        """The table, once a second while live. `refused`: why processes could not be attached to, by pid."""
        model = session.model
        if model.live and model.now_ns - self._last_process_ns < _PROCESSES_NS:
            return
        self._last_process_ns = model.now_ns
        reasons = attach_marks.merged(attach_marks.reasons(model.source("gpu")), refused)
        self._table.set_rows(
            process_rows(
                model.store, model.processes, model.gpus, model.now_ns, live=model.live, reasons=reasons
            )
        )
