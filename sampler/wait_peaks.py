"""The highest thresholds that waits of late began under: what is said of waits that were thinned out must
hold for all of the time that is shown, not only for the moment of the question.
"""

from __future__ import annotations

import threading
from collections import deque

MAX_KEYS = 4096  # processes; those beyond are told of with all others
MAX_STEPS = 64  # of one process: more are told of as the higher one of two


class Peaks:
    """Per key (a process, or 0 for all others) values in ns, and when each held last. From any thread."""

    def __init__(self) -> None:
        # Of each key (when it held last, value) where no later value reaches it; the first is the highest.
        self._steps: dict[int, deque[tuple[int, int]]] = {}
        self._lock = threading.Lock()

    def note(self, key: int, value_ns: int, now_ns: int) -> None:
        """A value that holds at `now_ns`, which does not go back."""
        with self._lock:
            steps = self._steps.get(key)
            if steps is None:
                steps = self._steps.setdefault(key if len(self._steps) < MAX_KEYS else 0, deque())
            while steps and steps[-1][1] <= value_ns:
                steps.pop()
            if len(steps) >= MAX_STEPS:  # the last one held longer than it did
                value_ns = steps.pop()[1]
            steps.append((now_ns, value_ns))

    def since(self, first_ns: int) -> dict[int, int]:
        """The highest value of each key that held at `first_ns` or later; what is older is forgotten."""
        with self._lock:
            for key, steps in list(self._steps.items()):
                while steps and steps[0][0] < first_ns:
                    steps.popleft()
                if not steps:
                    del self._steps[key]
            return {key: steps[0][1] for key, steps in self._steps.items()}
