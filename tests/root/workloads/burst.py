"""Many threads are started at once and wait again and again; right after that the main thread waits 2 s."""

import sys
import threading
import time

COUNT, LENGTH = int(sys.argv[1]), float(sys.argv[2])
done = threading.Event()


def worker() -> None:
    while not done.is_set():
        time.sleep(LENGTH)


def blocked_two_seconds() -> None:
    time.sleep(2)


def blocked_in_join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def main() -> None:
    time.sleep(0.5)  # what is mapped where, and Python's own layout, are known to the sampler by then
    threads = [threading.Thread(target=worker) for _ in range(COUNT)]
    for thread in threads:
        thread.start()
    blocked_two_seconds()
    other = threading.Timer(1.5, done.set)
    other.start()
    blocked_in_join([other, *threads])


main()
