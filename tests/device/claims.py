"""A line of PASS or FAIL for each claim of a check, and how many failed."""

from __future__ import annotations


class Claims:
    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, good: bool, text: str) -> None:
        self.failed += not good
        print(f"{'PASS' if good else 'FAIL'} {text}", flush=True)


claim = Claims()  # of the script that runs
