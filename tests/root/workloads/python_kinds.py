"""Python code of one kind that burns CPU for ever: the first argument names the kind (see the functions)."""

import asyncio
import ctypes
import sys
import threading
import zlib

BLOCK = bytes(range(256)) * 4096


def burn():
    for _ in range(200_000):
        pass


def generator():
    while True:
        burn()
        yield


def generators():
    def outer():
        yield from generator()

    for _ in outer():
        pass


class Task:
    async def inner(self):
        burn()

    async def outer(self):
        while True:
            await self.inner()
            await asyncio.sleep(0)


def asynchronous():
    asyncio.run(Task().outer())


def released():
    while True:
        zlib.compress(BLOCK, 9)


def from_c():
    # A thread that C code starts and that enters Python through a callback, again and again.
    library = ctypes.CDLL(sys.argv[2])
    callback = ctypes.CFUNCTYPE(None)(burn)
    library.call_for_ever(callback)


def threads():
    def work():
        while True:
            burn()

    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    work()


CODE = """
def burn_inside():
    for _ in range(200_000):
        pass


def inner():
    while True:
        burn_inside()


inner()
"""


def subinterpreter():
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    spare = interpreters.create()  # the second one is idle
    one = interpreters.create()
    interpreters.run_string(one, CODE)
    return spare


def main():
    print("ready", flush=True)
    globals()[sys.argv[1]]()


main()
