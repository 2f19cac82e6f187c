"""Threads that each run code in a subinterpreter of their own, among many that only sleep (3.12+).

usage: many_interpreters.py INTERPRETERS SLEEPERS. Prints "ready" when all of them run.
"""

import sys
import threading

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

CODE = """
import time
def inside():
    end = time.monotonic() + 60
    while time.monotonic() < end:
        sum(range(4000))
        time.sleep(0.02)
inside()
"""


def outside():
    interpreters.run_string(interpreters.create(), CODE)


def main():
    forever = threading.Event()
    threads = [threading.Thread(target=outside, daemon=True) for _ in range(int(sys.argv[1]))]
    threads += [threading.Thread(target=forever.wait, daemon=True) for _ in range(int(sys.argv[2]))]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()


main()
