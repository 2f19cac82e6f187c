"""What all fuzz tests share: seeded cases, more of them when asked for, a watchdog, a bound on memory.

Without anything said each test runs a fixed number of seeds. GPUPROF_FUZZ_SECONDS=N lets each run for N
seconds, GPUPROF_FUZZ_SEED=N begins at another seed (a failure names its own).
"""

from __future__ import annotations

import os
import random
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

SECONDS = float(os.environ.get("GPUPROF_FUZZ_SECONDS", "0"))
FIRST_SEED = int(os.environ.get("GPUPROF_FUZZ_SEED", "0"))
CASE_S = 20  # for one case: far more than any needs
INTERESTING = (0, 1, 2, 3, 7, 8, 15, 16, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32)
HUGE = ((1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 47)


def seeds(count: int) -> Iterator[int]:
    """The seeds of a test."""
    end = time.monotonic() + SECONDS
    seed = FIRST_SEED
    while seed < FIRST_SEED + count or time.monotonic() < end:
        yield seed
        seed += 1


@contextmanager
def watched(seed: int) -> Iterator[None]:
    """Ends a case that does not end by itself, and names its seed in every failure."""

    def too_long(signal_number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"a case took more than {CASE_S} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, CASE_S)
    try:
        yield
    except BaseException as error:
        error.args = (f"seed {seed}: {error}",)
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def mutate(original: bytes, rng: random.Random, width: int = 8) -> bytes:
    """The bytes with some changed, cut, repeated or moved; numbers that often break parsers are favoured."""
    data = bytearray(original)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not data:
            break
        at = rng.randrange(len(data))
        match rng.randrange(8):
            case 0 | 1:
                data[at] = rng.choice((0, 0xFF, 0x80, 0x7F, rng.randrange(256)))
            case 2 | 3:
                size = rng.choice((1, 2, 4, width))
                value = rng.choice(
                    (*INTERESTING, *HUGE, len(data), len(data) - at, rng.getrandbits(8 * size))
                )
                at &= -size
                data[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")[
                    : len(data) - at
                ]
            case 4:
                del data[at : at + rng.choice((1, 4, 8, 64))]
            case 5:
                data[at:at] = data[at : at + rng.choice((1, 8, 32, 256))]
            case 6:
                other = rng.randrange(len(data))
                size = rng.choice((4, 8, 24, 64))
                data[at : at + size] = data[other : other + size]
            case _:
                if rng.random() < 0.3:
                    del data[at:]
    return bytes(data)


def peak_of(call: Callable[[], object]) -> int:
    """Peak bytes that Python allocated during a call (numpy's arrays are among them)."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def fuzz() -> object:
    """The helpers above; tests do not import each other."""

    class Helpers:
        pass

    for helper in (seeds, watched, mutate, peak_of):
        setattr(Helpers, helper.__name__, staticmethod(helper))
    return Helpers
