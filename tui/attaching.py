"""Attaching from the screen: has the parent look whether it can be done, asks, and has the parent do it; or
shows the command to type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.names import clean
from gpuprof.tui.control_client import ControlClient
from gpuprof.tui.process_rows import ProcessRow
from gpuprof.tui.session import Session

if TYPE_CHECKING:
    from gpuprof.tui.app import GpuprofApp

MAX_REMEMBERED = 256


class Attaching:
    """What key a of the process table does. `refused`: by pid, why attaching failed the last time."""

    def __init__(self, app: GpuprofApp, control: ControlClient | None) -> None:
        self._app = app
        self._control = control
        self.refused: dict[int, str] = {}

    def ask(self, row: ProcessRow, session: Session) -> None:
        """Ask whether to attach to the process of a row, if it can be; or say why not, or what to type."""
        name = f"{clean(row.name, 40)} (pid {row.pid})" if row.name else f"pid {row.pid}"
        if not session.transport.live:
            self._app.tell("This is a recording: its processes cannot be attached to.", severity="warning")
        elif row.recording:
            self._app.tell(f"{name} is recorded already.")
        elif self._control is None:
            host = clean(session.model.hello.host, 64) if session.model.hello is not None else "its node"
            self._app.tell(
                f"To record the GPU time of {name}, type on {host}:",
                f"sudo gpuprof-tui attach {row.pid}",
                "warning",
            )
        else:
            self._app.run_worker(self._look(row, name), name="attach", exit_on_error=False)

    async def _look(self, row: ProcessRow, name: str) -> None:
        """Ask only once it is known that a yes would do."""
        assert self._control is not None
        try:
            possible = await self._control.attachable(row.pid)
        except GpuprofError as error:
            self._refuse(row.pid, name, error)
            return
        if not possible:
            self.refused.pop(row.pid, None)
            self._app.tell(f"{name} has loaded the library already; its GPU time shows when it works (2).")
            return
        from gpuprof.tui.screens.confirm import ConfirmScreen

        def answered(yes: bool | None) -> None:
            if yes:
                self._app.run_worker(self._attach(row.pid, name), name="attach", exit_on_error=False)

        so_far = f"It is not recorded now: {clean(row.reason, 200)}. " if row.reason else ""
        text = so_far + (
            "It loads a library into the running process, which stops one of its waiting threads for "
            "about a millisecond. The library stays loaded, and does nothing while no sampler listens."
        )
        self._app.push_screen(ConfirmScreen(f"Record the GPU time of {name}?", text), answered)

    async def _attach(self, pid: int, name: str) -> None:
        assert self._control is not None
        try:
            await self._control.attach(pid)
        except GpuprofError as error:
            self._refuse(pid, name, error)
        else:
            self.refused.pop(pid, None)
            self._app.tell(f"{name} has loaded the library; its GPU time shows in a moment (2).")

    def _refuse(self, pid: int, name: str, error: GpuprofError) -> None:
        """Say why not, and keep it for the table."""
        if len(self.refused) >= MAX_REMEMBERED:
            self.refused.clear()
        self.refused[pid] = error.message
        self._app.tell(f"{name} cannot be attached to: {error.message.rstrip('.')}.", error.hint, "error")
