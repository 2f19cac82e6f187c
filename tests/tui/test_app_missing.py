"""What the screen says when things are missing: no node, no NVML, no stacks, no GPU; and what was lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pilot_screen import screen_of, shows, tells, text_of, until

from gpuprof.snapshots.frames import SourceStatus, Status
from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.palette import DARK
from gpuprof.tui.transports import CommandTransport, HistoryTransport, SocketTransport
from gpuprof.tui.widgets.status_bar import tree_message


@pytest.fixture
def bare_node(fake_node: ModuleType, listening: Callable[..., Any]) -> Iterator[str]:
    """A node with no NVML and no CPU stacks."""
    node = fake_node.FakeNode(0, nvml=False, cpu=False)
    with listening(node) as path:
        yield path


async def test_nothing_works_and_the_screen_says_why(bare_node: str) -> None:
    app = GpuprofApp(SocketTransport(path=bare_node))
    async with app.run_test(notifications=True, size=(220, 40)) as pilot:
        await shows(pilot, "libnvidia-ml.so.1 was not found")
        await shows(pilot, "gpuprof-tui demo")
        await shows(pilot, "sudo /opt/gpuprof/bin/gpuprof-tui")
        await shows(pilot, "needs root or CAP_BPF")


async def test_the_sudo_line_is_shown_once_without_waits(bare_node: str) -> None:
    """A sampler without the right gives it as the hint, too."""
    app = GpuprofApp(SocketTransport(path=bare_node))
    async with app.run_test(notifications=True, size=(220, 40)) as pilot:
        await pilot.press("4")
        await shows(pilot, "No off-CPU time")
        session = app.session
        await until(pilot, lambda: session.failure is not None)
        assert session.failure is not None
        assert session.model.hello is not None
        line = session.model.hello.sudo_line
        assert line is not None
        for hint in (session.failure.hint, line):
            session.failure = replace(session.failure, hint=hint)
            said = [text.strip() for text, _ in tree_message(session, DARK)]
            assert said.count(line) == 1
            assert hint in said


async def test_nothing_works_in_eighty_columns(bare_node: str) -> None:
    app = GpuprofApp(SocketTransport(path=bare_node))
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await shows(pilot, "sudo /opt/gpuprof/bin/gpuprof-tui")
        await shows(pilot, "libnvidia-ml")
        await until(pilot, lambda: "libnvidia-ml.so.1 was not found" in " ".join(text_of(app).split()))
        lines = text_of(app).splitlines()
        text = " ".join(" ".join(lines).split())
        assert "demo" in text
        assert text.count("sudo /opt") == 1
        notice = next(place for place, line in enumerate(lines) if "libnvidia-ml" in line)
        charts = screen_of(app).charts.region.y
        assert charts - notice <= 2


async def test_no_sampler_is_said_and_retried(tmp_path: Path) -> None:
    app = GpuprofApp(SocketTransport(path=str(tmp_path / "none")))
    async with app.run_test(notifications=True, size=(120, 30)) as pilot:
        await shows(pilot, "Cannot connect to")
        await shows(pilot, "Trying again")


async def test_ssh_that_fails_is_explained() -> None:
    command = ["/bin/sh", "-c", "echo 'ssh: connect to host node17: Connection refused' >&2; exit 255"]
    app = GpuprofApp(CommandTransport(command, "node17"))
    async with app.run_test(notifications=True, size=(140, 30)) as pilot:
        await shows(pilot, "Connection refused")


async def test_before_any_data_there_is_no_time(tmp_path: Path) -> None:
    app = GpuprofApp(SocketTransport(path=str(tmp_path / "none")))
    async with app.run_test(notifications=True, size=(120, 30)) as pilot:
        await shows(pilot, "not connected, trying again")
        charts = screen_of(app).charts
        await pilot.press("v")
        await tells(pilot, "nothing to select yet")
        charts.focus()
        await pilot.press("v", "left", "enter")
        await pilot.mouse_down(charts, offset=(50, 3))
        await pilot.hover(charts, offset=(60, 3))
        await pilot.mouse_up(charts, offset=(60, 3))
        assert charts.selected_range is None
        assert app.session.feed.pinned is None
        text = text_of(app)
        assert "live" not in text
        assert not re.search(r"\d\d:\d\d:\d\d", text)


async def test_a_hint_in_a_recording_names_the_machine_that_it_is_for(fake_node: ModuleType) -> None:
    node = fake_node.FakeNode(2, cpu=False)
    now = node.hello.mono_ns
    node.fill(now - 5 * 10**9, now)
    node.history.set_gpus(replace(node.history.gpus, lost=[node.gpus[1].uuid]))
    app = GpuprofApp(HistoryTransport(node.history, "run.gpuprof"))
    async with app.run_test(notifications=True, size=(160, 40)) as pilot:
        await shows(pilot, "on node17: Start it with sudo.")
        await shows(pilot, "lost: the driver did not answer for it any more")
        await pilot.press("m")
        await shows(pilot, "→ on node17: Start it with sudo.")


async def test_key_2_without_a_gpu_says_so(fake_node: ModuleType) -> None:
    node = fake_node.FakeNode(0)
    node.fill(10**12, 10**12 + 3 * 10**9)
    app = GpuprofApp(HistoryTransport(node.history, "x.gpuprof"))
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        model = app.session.model
        model.live = True
        sources = [SourceStatus("nvml", "off", "libnvidia-ml.so.1 was not found"), SourceStatus("gpu", "off")]
        model.apply(Status(10**12 + 10**10, sources, 0, 61_000_000, 0, 0))
        screen_of(app).update_all(model.take_changes())
        await pilot.press("2")
        await shows(pilot, "no NVIDIA GPU here")
        await shows(pilot, "  gpuprof-tui run -- python train.py")
        app.tell("said")
        await pilot.pause()
        assert [toast.timeout for toast in app._notifications] == [5]


async def test_other_trees_are_said_not_to_be_there(live: GpuprofApp) -> None:
    async with live.run_test(notifications=True, size=(120, 40)) as pilot:
        await shows(pilot, "[1 CPU]  [2 GPU time]")
        await pilot.press("2")
        await shows(pilot, "no process is set up to record GPU work")
        await shows(pilot, "  gpuprof-tui run -- python train.py")
        await pilot.press("3")
        await shows(pilot, "no process is set up to record GPU work")
        await pilot.press("4")
        await shows(pilot, "No off-CPU time")
        await shows(pilot, "Waits are recorded")
        await pilot.press("1")
        await shows(pilot, "main (train.py:88)")


async def test_losses_and_cost_are_on_the_screen(fake_node: ModuleType) -> None:
    node = fake_node.FakeNode(1)
    node.fill(10**12, 10**12 + 3 * 10**9)
    app = GpuprofApp(HistoryTransport(node.history, "x.gpuprof"))
    async with app.run_test(notifications=True, size=(180, 40)) as pilot:
        await shows(pilot, "lost 0")
        model = app.session.model
        model.live = True
        for at in (1, 2):
            source = SourceStatus("cpu", "ok", lost=12345, invalid=3)
            model.apply(
                Status(
                    10**12 + at * 10**10,
                    [source],
                    at * 10**8,
                    61_000_000,
                    0,
                    0,
                    dropped_samples=5,
                    dropped_gpu_work=2,
                )
            )
        screen_of(app).update_all(model.take_changes())
        await shows(pilot, "lost 12,345")
        await shows(pilot, "invalid 3")
        await shows(pilot, "dropped 7")
        await shows(pilot, "sampler 1.0 % 61 MB")
