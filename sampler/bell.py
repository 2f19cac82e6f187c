"""Wakes a thread that waits for descriptors."""

from __future__ import annotations

import os
import threading


class Bell:
    """An eventfd. `ring` may be called from any thread, also after `close`."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()  # a number that is closed may be another file's soon

    def fileno(self) -> int:
        """Return the descriptor, readable once it has rung."""
        return self._fd

    def ring(self) -> None:
        """Wake the thread, or its next wait."""
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Be silent until the next ring; to be called by the thread that waits."""
        if self._fd >= 0:
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Give the descriptor back."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
