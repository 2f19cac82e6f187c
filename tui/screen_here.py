"""The screen in the command's own process, where there is no sampler to keep it apart from."""

from __future__ import annotations

import os


def run_here(*arguments: str, reads: str | None = None) -> int:
    """Run the screen, with its own arguments (__main__.py); its exit code. `reads`: a file that it must be
    able to open.
    """
    _step_down(reads)
    from gpuprof.tui.__main__ import main as screen

    return screen(list(arguments))


def _step_down(reads: str | None) -> None:
    """Under sudo, become the caller, whose ssh keys and files are meant; stay root only where that could not
    work."""
    if os.geteuid() != 0:
        return
    from gpuprof.tui import privileges
    from gpuprof.tui.supervisor import files_of_the_screen

    caller = privileges.sudo_caller(os.environ)
    if caller is None:
        return
    needed = [*files_of_the_screen(), *([reads] if reads else [])]
    pid = os.fork()
    if pid == 0:  # try it in a child, since there is no way back
        try:
            kept = privileges.become(caller, needed)
            os._exit(1 if kept else 0)
        except BaseException:  # noqa: BLE001
            os._exit(1)
    if os.waitpid(pid, 0)[1] == 0:
        privileges.become(caller)
        os.environ.update({"HOME": caller.home, "USER": caller.name, "LOGNAME": caller.name})
