"""The command's arguments, its errors, and what it must not import."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from gpuprof.snapshots import chunks, file_lock
from gpuprof.snapshots.errors import EXIT_BAD_FILE, EXIT_USAGE, GpuprofError
from gpuprof.snapshots.file import SnapshotWriter
from gpuprof.snapshots.frames import FrameKind, Hello, ProcessDef
from gpuprof.snapshots.history import History
from gpuprof.tui import argument_values, arguments, command


@pytest.mark.parametrize("host", ["-oProxyCommand=touch /tmp/x", "-", "", "a b", "a\nb", "a\x1b[2J", "--"])
def test_hosts_that_ssh_could_take_for_something_else_are_refused(host: str) -> None:
    with pytest.raises(GpuprofError, match="not a host name"):
        command.ssh_argv(host)


def test_the_ssh_command_line() -> None:
    argv = command.ssh_argv("me@node17")
    assert argv[0] == "ssh"
    assert argv[-3:] == ["--", "me@node17", "gpuprof-tui dial-stdio"]
    assert "BatchMode=yes" in argv
    argv = command.ssh_argv("node", "ssh -F 'my config'", "/opt/bin/gpuprof-tui dial-stdio")
    assert argv[:3] == ["ssh", "-F", "my config"]
    assert argv[-1] == "/opt/bin/gpuprof-tui dial-stdio"
    for broken in ("", "ssh 'unclosed"):
        with pytest.raises(GpuprofError):
            command.ssh_argv("node", broken)


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("90", 90), ("1.5m", 90), ("2h", 7200)])
def test_durations(text: str, seconds: float) -> None:
    assert argument_values.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "0", "-3s", "nan", "inf", "1d", "1e9h"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        argument_values.duration(text)


def test_everything_after_two_dashes_is_the_command() -> None:
    options = arguments.parse(
        ["record", "-o", "f", "--hz", "50", "--", "prog", "--for", "x", "--", "--debug"]
    )
    assert options.cmd == ["prog", "--for", "x", "--", "--debug"]
    assert options.hz == 50
    assert options.seconds is None
    assert arguments.parse(["record", "-o", "f"]).cmd == []
    with pytest.raises(SystemExit):
        arguments.parse(["record", "-o", "f", "prog"])
    with pytest.raises(SystemExit):
        arguments.parse(["record", "-o", "f", "--"])


def test_options_before_a_command_hold_for_it() -> None:
    options = arguments.parse(["--hz", "50", "--socket", "/s", "--debug", "record", "-o", "f"])
    assert (options.hz, options.socket, options.debug) == (50, "/s", True)
    assert arguments.parse(["sampler"]).socket is None


@pytest.mark.parametrize("hz", ["0", "1000", "x", "-5"])
def test_rates_outside_the_range(hz: str) -> None:
    with pytest.raises(SystemExit) as caught:
        arguments.parse(["--hz", hz])
    assert caught.value.code == EXIT_USAGE


def test_help_names_every_command_and_nothing_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        arguments.parse(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for name in ("open", "demo", "report", "record", "attach", "dial-stdio", "sampler", "doctor", "--host"):
        assert name in out
    for absent in ("export", "import "):
        assert absent not in out


@pytest.mark.parametrize(
    ("words", "command"), [("report x --gpu 0", "gpuprof-tui report"), ("demo x", "gpuprof-tui demo")]
)
def test_what_a_command_does_not_take(words: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        arguments.parse(words.split())
    assert caught.value.code == EXIT_USAGE
    assert f"{command} does not take" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments.parse(["--version"])
    assert capsys.readouterr().out.startswith("gpuprof-tui ")


def _run(*argv: str, **more: object) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "TERM": "xterm"}
    code = "import sys; from gpuprof.tui.command import main; sys.exit(main())"
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", code, *argv],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environ,
        timeout=60,
        check=False,
        **more,
    )


def _interrupted_while_loading(module: str, start: str, *argv: str, ignored: bool = False) -> tuple[int, str]:
    """Exit status and standard error of what `start` (Python code) starts, with a Ctrl-C while `module`
    loads."""
    code = (
        "import signal, sys, time\n"
        # Said either way: these tests may run in the background of a script themselves.
        f"signal.signal(signal.SIGINT, signal.{'SIG_IGN' if ignored else 'default_int_handler'})\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            print('loading', flush=True)\n"
        f"            time.sleep({0.2 if ignored else 60})\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code + start, *argv],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_modules_load_says_nothing(ignored: bool) -> None:
    """By what pyproject.toml names as the command. A shell takes the signal for 130; where it is ignored, as
    in the background of a script, the command goes on."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    script = re.search(r'^gpuprof-tui = "([\w.]+):(\w+)"$', text, re.MULTILINE)
    assert script is not None
    start = f"from {script[1]} import {script[2]} as main\nsys.exit(main())"
    done = _interrupted_while_loading("gpuprof.tui.command", start, "--version", ignored=ignored)
    assert done == (0 if ignored else -signal.SIGINT, "")


def test_ctrl_c_while_the_modules_of_a_sampler_load_says_nothing() -> None:
    """That of `gpuprof-tui sampler`, which runs in the foreground."""
    start = "import runpy; runpy.run_module('gpuprof.sampler', run_name='__main__', alter_sys=True)"
    assert _interrupted_while_loading("gpuprof.sampler.ahead", start) == (-signal.SIGINT, "")


@pytest.mark.parametrize("verb", ["report", "open"])
def test_a_missing_file_is_one_line_and_a_hint(verb: str, tmp_path: Path) -> None:
    done = _run(verb, str(tmp_path / "none\x1b[31m.gpuprof"))
    assert done.returncode == EXIT_BAD_FILE
    assert done.stderr.startswith("gpuprof-tui: ")
    assert "No such file" in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("content", [b"", b"not ours", b"\0" * 5000])
def test_a_foreign_file_is_said_to_be_one(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    done = _run("report", str(path))
    assert done.returncode == EXIT_BAD_FILE, done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_a_fifo_and_an_impossible_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (str(tmp_path), str(tmp_path / "fifo")):
        done = _run("report", path)
        assert done.returncode == EXIT_BAD_FILE
        assert "not a file" in done.stderr
    assert command.main(["report", "a\0b"]) == EXIT_BAD_FILE


def test_without_a_terminal_the_screen_says_what_to_do_instead() -> None:
    for argv in ((), ("demo",), ("--host", "node17")):
        done = _run(*argv)
        assert done.returncode == EXIT_USAGE
        assert "terminal" in done.stderr
        assert "record" in done.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = _run("--debug", "report", str(tmp_path / "none"))
    assert "Traceback" in done.stderr


def test_standard_output_is_no_place_for_a_recording(tmp_path: Path) -> None:
    done = _run("record", "-o", "-", "--for", "1s", cwd=tmp_path)
    assert done.returncode == EXIT_USAGE
    assert "cannot be written to standard output" in done.stderr
    assert "-o run.gpuprof" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("--tree gpu report x", "--tree"),
        ("--json report x", "--json"),
        ("--range=1..2 report x", "--range"),
        ("--hz 50 --by-thread report x", "--by-thread"),
        ("-o f record", "-o"),
        ("--no-screen attach 1", "--no-screen"),
    ],
)
def test_an_option_before_its_command_is_told_its_place(
    words: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        arguments.parse(words.split())
    assert caught.value.code == EXIT_USAGE
    command = next(word for word in words.split() if word in {"report", "record", "attach"})
    said = capsys.readouterr().err
    assert f"{option} comes after {command}: gpuprof-tui {command} " in said


def test_closed_standard_streams_are_no_trouble(tmp_path: Path) -> None:
    code = "from gpuprof.tui.command import main; import sys; sys.exit(main())"
    script = f"exec {sys.executable} -c '{code}' report /none"
    done = subprocess.run(["sh", "-c", script + " <&- >&- 2>&-"], timeout=60, check=False)
    assert done.returncode == EXIT_BAD_FILE


def test_a_reader_that_stops_reading_is_no_error() -> None:
    code = "from gpuprof.tui import command; command._dispatch = lambda _: print('x' * 1_000_000) or 0\n"
    code += "raise SystemExit(command.main([]))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_the_way_to_the_screen_imports_neither_numpy_nor_textual() -> None:
    code = (
        "import sys\nfrom gpuprof.tui import arguments, command, dial, doctor, record, supervisor\n"
        "print(sorted({'numpy', 'textual', 'rich', 'asyncio', 'msgpack', 'subprocess'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    """Ten samples of main -> work, over one second."""
    hello = Hello(1, "node17", "boot", "6.1", 2, 5 * 10**9, 0, "0", 1, 99, 10, True)
    history = History(hello)
    with history.lock:
        tables = history.tables
        thread = tables.thread(
            tables.process(ProcessDef(7, 1, "python", "python t.py", "me", 1000, 1)), 7, "main"
        )
        names = ("main", "work")
        frames = [tables.frame(tables.function(name, "t.py", "", FrameKind.PYTHON), 1) for name in names]
        stack = tables.stack(frames)
        times = 10 * 10**9 + np.arange(10, dtype=np.uint64) * np.uint64(100_000_000)
        history.add_samples(times, np.zeros(10), np.full(10, thread), np.full(10, stack))
    path = str(tmp_path / "a.gpuprof")
    with SnapshotWriter(path, hello) as writer:
        writer.write(history.frames_between(0, 1 << 60))
    return path


def test_report_as_text_and_json(snapshot: str) -> None:
    done = _run("report", snapshot)
    assert done.returncode == 0, done.stderr
    assert "node17" in done.stdout
    assert "work (t.py:1)" in done.stdout
    report = json.loads(_run("report", snapshot, "--json", "--range", "0.25..0.65").stdout)
    assert (report["host"], report["tree"], report["total"]) == ("node17", "cpu", 4)
    report = json.loads(_run("report", snapshot, "--json", "--pid", "8").stdout)
    assert report["total"] == 0


@pytest.mark.parametrize(
    "setting", ["ascii", "ascii:strict", "latin-1", "cp037", "utf-16", "undefined", "idna", "punycode"]
)
@pytest.mark.parametrize("more", [(), ("--json",), ("--folded",), ("--nonsense\u2500\udcff",)])
def test_no_setting_of_the_output_ends_in_an_exception(
    snapshot: str, setting: str, more: tuple[str, ...]
) -> None:
    environ = {**os.environ, "PYTHONIOENCODING": setting}
    code = "import sys; from gpuprof.tui.command import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", snapshot, *more], env=environ, capture_output=True, check=False
    )
    assert done.returncode == (EXIT_USAGE if "--nonsense" in "".join(more) else 0), done.stderr
    for word in (b"is a bug", b"Error", b"Traceback"):
        assert word not in done.stderr + done.stdout
    if setting.startswith("ascii") and not more:
        text = done.stdout.decode("ascii")
        assert "main" in text
        assert "####" in text  # a bar


def test_interpreter_frames_are_in_the_report_when_asked_for_and_always_in_json() -> None:
    recording = str(next((Path(__file__).parents[2] / "snapshots/recorded").glob("*.gpuprof")))
    span = ("report", recording, "--range", "30..40")
    plain, whole, as_json = (_run(*span, *more).stdout for more in ((), ("--internals",), ("--json",)))
    assert "hidden    " in plain
    assert "slow_decode" in plain
    assert "_PyObject_MakeTpCall" not in plain
    assert "_PyObject_MakeTpCall" in whole
    assert "_PyObject_MakeTpCall" in as_json


def test_a_report_says_when_in_wall_clock_time_and_where_python_code_is() -> None:
    recording = str(next((Path(__file__).parents[2] / "snapshots/recorded").glob("pytorch*.gpuprof")))
    report = json.loads(_run("report", recording, "--json", "--range", "30..31", "--min-percent", "1").stdout)
    assert report["min_percent"] == 1
    first, last = (datetime.fromisoformat(text) for text in report["range_wall"])
    assert [round(moment.timestamp() * 1e6) for moment in (first, last)] == [
        ns // 1000 for ns in report["range_epoch_ns"]
    ]
    assert (last - first).total_seconds() == pytest.approx(1)
    assert first.tzinfo is not None
    nodes, found = [report["root"]], 0
    while nodes:
        node = nodes.pop()
        nodes += node["children"]
        if node["kind"] == "python":
            found += 1
            assert node["file"]
            assert node["line"] >= 1
    assert found > 5


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--by-range"], "--tree gpu"),
        (["--tree", "idle", "--scale"], "--tree gpu"),
        (["--pid", "-1"], "'-1' is no process id"),
        (["--pid", "python"], "no process id"),
        (["--range", "-1..2"], "-1 s lies before the start of the file"),
        (["--range=-5..3"], "-5 s lies before the start of the file"),
        (["--range", ""], "empty"),
        (["--range", ".5...5"], "empty: it ends where it starts"),
        (["--range", "5..5"], "empty: it ends where it starts"),
        (["--min-percent", "101"], "between 0 and 100"),
        (["--min-percent", "nan"], "between 0 and 100"),
        (["--min-percent", "-1"], "between 0 and 100"),
        (["--tree", "wall"], "invalid choice"),
    ],
)
def test_an_option_that_is_refused_says_why(snapshot: str, argv: list[str], words: str) -> None:
    done = _run("report", snapshot, *argv)
    assert done.returncode == EXIT_USAGE, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--host", "a", "record", "-o", "f"], "ssh NODE gpuprof-tui record"),
        (["--host", "a", "--host", "b"], "a screen shows one node"),
        (["--hz", "5", "report", "f"], "--hz is for a sampler"),
        (["report", "f", "--folded", "--depth", "80"], "folded stacks are whole"),
        (["report", "f", "--bottom-up", "--tree", "idle"], "--tree cpu or gpu"),
        (["report", "f", "--bottom-up", "--folded"], "do not go together"),
        (["report", "f", "--bottom-up", "--scale", "--tree", "gpu"], "do not go together"),
        (["report", "f", "--json", "--depth", "0"], "no number of rows"),
        (["--no-service", "demo"], "--no-service is for a sampler"),
        (["--offcpu-all", "open", "f"], "--offcpu-all is for a sampler"),
        (["record", "-o", "f", "--offcpu-threshold", "x"], "not between 0 and 4000 ms"),
        (["record", "-o", "f", "--hz", "x"], "not between 1 and 999"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        arguments.parse(argv)
    assert caught.value.code == EXIT_USAGE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["5..1", "x", "1..y", ""])
def test_a_range_that_is_none_is_wrong_usage(snapshot: str, wrong: str) -> None:
    done = _run("report", snapshot, "--range", wrong)
    assert done.returncode == EXIT_USAGE, done.stderr
    assert "Traceback" not in done.stderr


def test_a_torn_file_is_reported_with_what_is_left(snapshot: str) -> None:
    whole = Path(snapshot).read_bytes()
    Path(snapshot).write_bytes(whole[:-20])
    done = _run("report", snapshot)
    assert done.returncode == 0, done.stderr
    assert "work" in done.stdout
    assert done.stderr.startswith("gpuprof-tui: ")
    report = json.loads(_run("report", snapshot, "--json").stdout)
    assert "end mark is missing" in report["damage"]
    assert "recording" not in report


def test_a_file_that_is_still_being_recorded_is_reported_as_such(snapshot: str) -> None:
    whole = Path(snapshot).read_bytes()
    body = whole[: whole.rindex(b"\xf6GPCHUNK")]
    Path(snapshot).write_bytes(chunks.file_header() + chunks.span_chunk() + body[body.index(b"D", 80) - 8 :])
    with open(snapshot, "r+b") as writer:
        file_lock.mark_written(writer.fileno())
        done = _run("report", snapshot, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["recording"] == "it is still being recorded: 0.9 s so far"
        assert "damage" not in json.loads(done.stdout)
        assert done.stderr == f"gpuprof-tui: {snapshot}: it is still being recorded: 0.9 s so far\n"
    done = _run("report", snapshot)
    assert "was not closed" in done.stderr
