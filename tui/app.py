"""The Textual app: sessions, the pace of updates, saving, and the way in and out. What is on the screen is in
screens/."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import traceback
from pathlib import Path
from typing import ClassVar, Literal

from rich.text import Text
from textual import events, on
from textual.app import App
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.timer import Timer

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.names import clean
from gpuprof.tui.attaching import Attaching
from gpuprof.tui.control_client import ControlClient, SamplerEvent
from gpuprof.tui.palette import choose
from gpuprof.tui.plain import PlainText
from gpuprof.tui.recordings import bundled_recording, open_file
from gpuprof.tui.saving import Saved, create_here, path_from_here, save_frames, snapshot_name
from gpuprof.tui.screens.main import MainScreen
from gpuprof.tui.session import Session
from gpuprof.tui.terminal import SafeDriver
from gpuprof.tui.transports import Transport
from gpuprof.tui.widgets.prompt import Prompt
from gpuprof.tui.widgets.styled import band, wrap
from gpuprof.tui.widgets.summary import missing_text

TICK_S = 0.25
SOON_S = 0.02
SAVING_IS_SAID_S = 0.5  # for what takes no longer one toast will do
SCROLL_BAR = 3  # which toasts get where there are many
TOAST_COLUMNS, TOAST_EDGES = 72, 3  # as in gpuprof.tcss: border and padding


class GpuprofApp(App[None]):
    """One or more sessions, one of them on the screen."""

    # Read at import: as nobody the program's files may be out of reach later (Textual resolves CSS_PATH).
    CSS = Path(__file__).with_name("gpuprof.tcss").read_text(encoding="utf-8")
    TITLE = "gpuprof"
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c,ctrl+q", "quit", "quit", show=False),
        Binding("question_mark", "help", "help", show=False),
        Binding("w", "save", "save a snapshot", show=False),
        Binding("D", "demo", "demo", show=False),
        Binding("ctrl+l", "redraw", "draw all again", show=False),
        Binding("ctrl+z", "suspend_process", "suspend", show=False),
    ]

    def __init__(
        self,
        transport: Transport,
        *,
        control: ControlClient | None = None,
        save_through_parent: bool = False,
        plain_text: PlainText | None = None,
        driver_class: type[Driver] | None = None,
    ) -> None:
        """`control`: the parent, where there is one; `save_through_parent`: files are created by it, not
        here; `plain_text`: what is left out of all that is written to the terminal."""
        self.plain_text = plain_text
        super().__init__(driver_class=driver_class or SafeDriver)
        self.sessions = [Session(transport, self.look_soon)]
        self._control = control
        self._save_through_parent = save_through_parent
        # A parent stops with the screen when that stops by SIGTSTP; alone, only SIGSTOP works for sure.
        self.stop_signal = signal.SIGTSTP if control is not None else signal.SIGSTOP
        self._saving = False
        self.attaching = Attaching(self, control)
        self._soon: Timer | None = None
        self._running_loop: asyncio.AbstractEventLoop | None = None
        self._leave_code: int | None = None
        self.failure: GpuprofError | None = None  # why the screen ended by itself

    @property
    def session(self) -> Session:
        """The session on the screen."""
        return self.sessions[-1]

    def get_default_screen(self) -> MainScreen:
        return MainScreen(self.session)

    def get_css_variables(self) -> dict[str, str]:
        palette = choose()
        names = ("background", "text", "dim", "rule", "accent", "selection")
        ours = {f"gp-{name}": getattr(palette, name) for name in names}
        return {**super().get_css_variables(), **ours, "gp-band": band(palette)}

    # ---------------------------------------- keys

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not event.is_forwarded and self._takes_keys():
            await self._take_key(event)
        else:
            await super().on_event(event)

    def _takes_keys(self) -> bool:
        return bool(self.screen_stack) and self.screen.is_mounted

    async def _take_key(self, event: events.Key) -> None:
        """Answer a key completely before the next one is looked at.

        Textual hands a key to what has the focus when it arrives, so that of keys in one burst (a paste, tmux
        send-keys, a slow ssh) those after a change of focus would go to the wrong place.
        """
        if not self.app_focus:
            self.app_focus = True
        if await self._check_bindings(event.key, priority=True):
            return
        focused = self.focused
        if isinstance(focused, Prompt) and event.is_printable:
            await focused._on_key(event)
        else:
            await self._check_bindings(event.key)

    # ---------------------------------------- pace

    def on_mount(self) -> None:
        self._running_loop = asyncio.get_running_loop()
        if self._leave_code is not None:
            self.exit(return_code=self._leave_code)
        self.call_after_refresh(self._begin)

    @on(Driver.SignalResume)
    def _draw_all_again(self) -> None:
        """After Ctrl-Z and fg the terminal is empty."""
        for screen in self.screen_stack:
            screen.refresh()

    def action_redraw(self) -> None:
        self._draw_all_again()

    def _begin(self) -> None:
        """After the first frame: connect, and start to look at what comes in."""
        if self._control is not None:
            self._control.start(self._on_sampler_event)
        for session in self.sessions:
            session.start()
        self.set_interval(TICK_S, self._tick)

    def _on_sampler_event(self, event: SamplerEvent) -> None:
        """The parent's news of the sampler: why it ended, or that it will not come back."""
        link = self.sessions[0].link
        link.explanation = "" if event.state == "running" else event.message
        if event.state == "restarting":
            self.tell(event.message, severity="warning")
        if event.state == "failed":
            self.tell(
                event.message,
                "What was recorded so far stays on the screen; w cannot save it any more.",
                "error",
            )

    async def _tick(self) -> None:
        """A few times a second, and only when the terminal has taken the last redraw: show what changed."""
        self._soon = None
        session = self.session
        crash = session.crashed
        if crash is not None and isinstance(crash, Exception):
            raise crash
        failed = session.link.error
        if failed is not None and not session.transport.live:
            await self._could_not_open(failed)
            return
        await session.ask()
        damage = session.transport.damage
        if damage and not session.damage_was_told:
            session.damage_was_told = True
            self.tell("This recording is not whole: " + damage, severity="warning")
        if not getattr(self._driver, "ready", True):
            return
        screen = self._main_screen()
        if screen is not None:
            screen.update_all(session.model.take_changes())

    async def _could_not_open(self, error: GpuprofError) -> None:
        """Without its file a screen has nothing to show: back to the live node, or out with the reason."""
        if len(self.sessions) > 1:
            await self.action_demo()
            self.tell(error.message, error.hint, "error")
        elif self.failure is None:
            self.failure = error
            self.exit(return_code=error.exit_code)

    def _main_screen(self) -> MainScreen | None:
        screen = self.screen_stack[0] if self.screen_stack else None
        return screen if isinstance(screen, MainScreen) and screen.is_mounted else None

    def look_soon(self) -> None:
        """Ask and show soon instead of at the next regular tick."""
        if self._soon is None and self._running_loop is not None:
            self._soon = self.set_timer(SOON_S, self._tick)

    def tell(
        self,
        message: str,
        hint: str = "",
        severity: Literal["information", "warning", "error"] = "information",
    ) -> None:
        """A toast: what happened and what to do next."""
        # Wrapped here, since Textual gives a toast the height of its text at another width than its own.
        width = min(TOAST_COLUMNS, self.size.width - SCROLL_BAR) - TOAST_EDGES
        parts = [clean(message, 1000), *(clean(line, 1000) for line in hint.splitlines())]
        text = "\n".join(row for part in parts for row in wrap(part, max(width, 10)))
        self.notify(text, severity=severity, timeout=5 if severity == "information" else 12, markup=False)

    # ---------------------------------------- actions

    def action_help(self) -> None:
        from gpuprof.tui.screens.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    async def action_demo(self) -> None:
        """Open the bundled recording over what is shown, or go back from it."""
        if len(self.sessions) > 1:
            await self.sessions.pop().stop()
            self._show(self.session)
            return
        path = bundled_recording()
        if path is None:
            self.tell("No recording is bundled with this installation.", severity="warning")
            return
        session = Session(open_file(str(path)), self.look_soon)
        self.sessions.append(session)
        session.start()
        self._show(session)

    def _show(self, session: Session) -> None:
        screen = self._main_screen()
        if screen is not None:
            screen.show_session(session)

    def action_save(self) -> None:
        if self._saving:
            self.tell("A snapshot is being written.")
            return
        self._saving = True
        self.run_worker(self._save(), name="save", exit_on_error=False)

    async def _save(self) -> None:
        try:
            saved = await self._saved()
        except GpuprofError as error:
            self.tell(error.message, error.hint, "error")
        except OSError as error:
            self.tell(
                f"The snapshot cannot be written: {error.strerror or error}.",
                "Start gpuprof-tui in a folder that you can write to.",
                "error",
            )
        else:
            size = (
                f"{saved.size_bytes / 1e6:.1f} MB"
                if saved.size_bytes >= 100_000
                else f"{saved.size_bytes / 1e3:.0f} kB"
            )
            work = f"{saved.gpu_work:,} pieces of GPU work, " if saved.gpu_work else ""
            missing = missing_text(self.session) if self.session.feed.pinned else ""
            self.tell(
                f"Saved {size}: {saved.samples:,} samples, {work}{saved.readings:,} readings.",
                (f"{missing}\n" if missing else "") + f"gpuprof-tui open {path_from_here(saved.path)}",
            )
        finally:
            self._saving = False

    async def _saved(self) -> Saved:
        session = self.session
        model = session.model
        if model.hello is None:
            raise GpuprofError("There is nothing to save yet.")
        start_ns, end_ns = session.feed.pinned or session.file_span or self._history_span()
        what = "the pinned range" if session.feed.pinned else "the whole history"
        waiting = self.set_timer(SAVING_IS_SAID_S, lambda: self.tell(f"Saving {what}…"))
        try:
            return await self._written(start_ns, end_ns)
        finally:
            waiting.stop()

    async def _written(self, start_ns: int, end_ns: int) -> Saved:
        session = self.session
        assert session.model.hello is not None
        discard = None
        if self._save_through_parent and self._control is not None:
            fd, path = await self._control.save_descriptor()
            discard = self._control.discard_saved
        else:
            fd, path = create_here(snapshot_name(clean(session.model.hello.host, 64), time.time()))
        recorded = None
        if session.feed.pinned or session.file_span:  # what is saved is that range, to the nanosecond
            first_ns, last_ns = session.file_span or self._history_span()
            low, high = max(start_ns, first_ns), min(end_ns, last_ns)
            recorded = (low, high) if low < high else None
        return await save_frames(session.link.fetch(start_ns, end_ns), fd, path, discard, recorded=recorded)

    def _history_span(self) -> tuple[int, int]:
        model = self.session.model
        return (model.status.history_start_ns if model.status else 0), model.now_ns + 1

    def _fatal_error(self) -> None:
        """A bug ends the screen with two lines; the traceback is for whoever asks for it."""
        if os.environ.get("GPUPROF_DEBUG"):
            super()._fatal_error()
            return
        error = self._exception
        place = traceback.extract_tb(error.__traceback__)[-1] if error and error.__traceback__ else None
        where = f" at {os.path.basename(place.filename)}:{place.lineno}" if place else ""
        what = clean(f"{type(error).__name__}: {error}", 300)
        self.panic(
            Text(f"gpuprof-tui: the screen stopped because of a bug: {what}{where}\n")
            + Text("Please report it, with what GPUPROF_DEBUG=1 gpuprof-tui prints.")
        )

    async def action_quit(self) -> None:
        error = self.sessions[0].link.error
        self.exit(return_code=error.exit_code if error is not None else 0)

    def leave(self, code: int) -> None:
        """Exit with `code`; may be called from a signal handler, and before the loop runs."""
        self._leave_code = code
        if self._running_loop is not None:
            self._running_loop.call_soon_threadsafe(lambda: self.exit(return_code=code))

    async def on_unmount(self) -> None:
        """Close connections, so that no ssh outlives the screen."""
        await asyncio.gather(*(session.stop() for session in self.sessions), return_exceptions=True)
        if self._control is not None:
            self._control.close()
