"""Who waits for all that happened so far to be in the history, and what is missing where it took too long."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field

ALIVE_S = 0.25  # how often whoever waits looks whether the reader still lives


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One who waits. `least_wait_ns`: waits that go on are told, too, where so much of them is not there
    yet.
    """

    least_wait_ns: int
    done: threading.Event = field(default_factory=threading.Event)


class Settling:
    """Asked from any thread, answered by the reader's."""

    def __init__(self) -> None:
        self.complete_ns = time.monotonic_ns()  # what happened up to then is in the history
        self._asked: deque[Question] = deque()
        self._overdue: tuple[Question, float] | None = None  # with the seconds that were missing

    def ask(self, reader: threading.Thread, seconds: float, least_wait_ns: int) -> bool:
        """Wait for the reader to have all that happened up to now in the history; False where it took longer
        than `seconds`, or the reader has ended.
        """
        question, asked_ns = Question(least_wait_ns), time.monotonic_ns()
        self._asked.append(question)
        deadline = time.monotonic() + seconds
        while reader.is_alive() and (left := deadline - time.monotonic()) > 0:
            if question.done.wait(min(left, ALIVE_S)):
                break
        if reader.is_alive() and not question.done.is_set():
            self._overdue = question, max(asked_ns - self.complete_ns, 0) / 1e9
        return question.done.is_set()

    def overdue(self) -> str:
        """What is missing where ask() gave up and it is not there yet; empty where nothing is."""
        overdue = self._overdue
        if overdue is None or overdue[0].done.is_set():
            return ""
        return f"the last {max(overdue[1], 0.1):.1f} s were not read in time, as the machine is too busy"

    def take(self) -> list[Question]:
        """The questions since the last call; the reader reads everything from now on and answers them."""
        return [self._asked.popleft() for _ in range(len(self._asked))]

    def answer(self, questions: list[Question], complete_ns: int) -> None:
        """What happened up to `complete_ns` is in the history, which is what these wanted."""
        self.complete_ns = complete_ns
        for question in questions:
            question.done.set()
