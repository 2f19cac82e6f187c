"""The one error type that a person may see: what happened, what to do next, and the exit code."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BAD_FILE = 3
EXIT_NO_PERMISSION = 4
EXIT_UNAVAILABLE = 5


class GpuprofError(Exception):
    """A failure with a next step.

    `message` says what happened in one sentence, `hint` what the person can do about it (may be empty),
    `exit_code` what the command returns.
    """

    def __init__(self, message: str, hint: str = "", exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class FrameError(GpuprofError):
    """Bytes that are not the frame they claim to be."""


class FileError(GpuprofError):
    """A snapshot file that cannot be read or written."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, EXIT_BAD_FILE)
