"""Many threads, each in a function of its own name: they compute a little and sleep, over and over.

usage: many_threads.py THREADS SECONDS. Prints "ready" when all of them run.
"""

import sys
import threading
import time

COUNT, SECONDS = int(sys.argv[1]), float(sys.argv[2])
BODY = """
def own_{n}(started, end):
    started.release()
    while time.monotonic() < end:
        sum(range(4000))
        time.sleep(0.1 + {n} * 0.0001)
"""


def main():
    functions = {}
    for n in range(COUNT):
        exec(BODY.format(n=n), {"time": time}, functions)
    started = threading.Semaphore(0)
    end = time.monotonic() + SECONDS
    threads = [threading.Thread(target=function, args=(started, end)) for function in functions.values()]
    for thread in threads:
        thread.start()
    for _ in threads:
        started.acquire()
    print("ready", flush=True)
    for thread in threads:
        thread.join()


main()
