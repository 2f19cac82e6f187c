"""Waits whose truth is known, in Python: `waits.py lock SECONDS` and `waits.py tcp SECONDS`.

Prints "ready", begins at a line on stdin, prints begin, end, CPU time of the main thread, the time that it
waited by its own clock, and how often; ends at the next line.
"""

from __future__ import annotations

import socket
import sys
import threading
import time

lock = threading.Lock()
held = threading.Event()


class State:
    waited = 0.0
    waits = 0
    done = False


def holder_work() -> None:
    with lock:
        held.set()
        time.sleep(0.05)
        held.clear()


def holder() -> None:
    while not State.done:
        holder_work()
        time.sleep(0.01)


def lock_waiter() -> None:
    before = time.monotonic()
    with lock:
        pass
    State.waited += time.monotonic() - before
    State.waits += 1


def run_lock(until: float) -> None:
    thread = threading.Thread(target=holder)
    thread.start()
    while time.monotonic() < until:
        held.wait()
        lock_waiter()
    State.done = True
    thread.join()


def slow_sender(connection: socket.socket) -> None:
    while not State.done:
        time.sleep(0.02)
        connection.send(b"x")
    connection.close()


def tcp_reader(connection: socket.socket) -> None:
    before = time.monotonic()
    connection.recv(1)
    State.waited += time.monotonic() - before
    State.waits += 1


def run_tcp(until: float) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(server.getsockname())
    connection, _ = server.accept()
    thread = threading.Thread(target=slow_sender, args=(sender,))
    thread.start()
    while time.monotonic() < until:
        tcp_reader(connection)
    State.done = True
    thread.join()


def main() -> None:
    mode, seconds = sys.argv[1], float(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.buffer.raw.read(1)
    begin, cpu = time.monotonic(), time.thread_time()
    {"lock": run_lock, "tcp": run_tcp}[mode](begin + seconds)
    end = time.monotonic()
    print(
        f"{begin:.9f} {end:.9f} {time.thread_time() - cpu:.9f} {State.waited:.9f} {State.waits} 0", flush=True
    )
    sys.stdin.buffer.raw.read(1)


main()
