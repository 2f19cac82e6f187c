"""Waits of known length: `long_waits.py planted` does what long_waits.c does, with an Event for the mutex."""

from __future__ import annotations

import threading
import time

event = threading.Event()


def lock_waiter() -> None:
    event.wait()


def last_sleep() -> None:
    time.sleep(1.0)


def waiter() -> None:
    lock_waiter()
    last_sleep()


def long_sleep() -> None:
    time.sleep(2.5)


def let_go() -> None:
    event.set()


def joiner(thread: threading.Thread) -> None:
    thread.join()


thread = threading.Thread(target=waiter)
thread.start()
long_sleep()
let_go()
joiner(thread)
