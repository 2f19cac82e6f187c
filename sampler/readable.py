"""Waits for descriptors of any number: select(2) takes none from 1,024 on, and a sampler may have more."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable


def readable(fds: Iterable[int], seconds: float) -> set[int]:
    """Return those of `fds` that can be read, or whose other end is closed, within `seconds`."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(math.ceil(max(seconds, 0.0) * 1e3))}
