"""A Python program to be attached to: threads that sleep, talk, compute and start processes, a handler of an
interval timer in the main thread. A line on standard input is answered by "OPERATIONS ERRORS"; argument: how
many threads sleep."""

import hashlib
import signal
import socket
import subprocess
import sys
import threading
import time

done = {}
errors = []
alarms = []


def on_alarm(number, _frame):
    alarms.append(number)


def work(name, function):
    def loop():
        done[name] = 0
        while True:
            try:
                function()
            except BaseException as error:  # noqa: BLE001
                errors.append(f"{name}: {error!r}")
            done[name] += 1

    threading.Thread(target=loop, daemon=True).start()


def sleeps():
    began = time.monotonic()
    time.sleep(0.004)
    assert time.monotonic() - began >= 0.004


def computes():
    assert hashlib.sha256(b"x" * 100_000).hexdigest().startswith("d69e6898")
    time.sleep(0.001)


def starts():
    assert subprocess.run(["/bin/echo", "hi"], capture_output=True, check=True).stdout == b"hi\n"
    time.sleep(0.01)


def waits():
    assert not threading.Event().wait(0.003)


def talks():
    here.send(b"ping")
    assert here.recv(10) == b"pong"


def answers():
    assert there.recv(10) == b"ping"
    time.sleep(0.002)
    there.send(b"pong")


here, there = socket.socketpair()
signal.signal(signal.SIGALRM, on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
for number in range(int(sys.argv[1])):
    work(f"sleeps {number}", sleeps)
for function in (computes, starts, waits, talks, answers):
    work(function.__name__, function)
print("ready", flush=True)
for _ in sys.stdin:
    print(sum(done.values()) if all(done.values()) and alarms else 0, len(errors), *errors[:3], flush=True)
