"""Burns CPU through three call paths in the ratio 2 : 5 : 11, for the given seconds."""

import sys
import threading
import time

UNIT = 20_000


def burn(units):
    for _ in range(units * UNIT):
        pass


def plain_two():
    burn(2)


class Sorter:
    def native_five(self):
        # Through C code: list.sort calls back into Python.
        [0].sort(key=self.key)

    def key(self, _):
        burn(5)
        return 0


def generate():
    burn(11)
    yield 0


def generator_eleven():
    sum(generate())


def work(seconds):
    sorter = Sorter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        plain_two()
        sorter.native_five()
        generator_eleven()


if __name__ == "__main__":
    if "--thread" in sys.argv:
        thread = threading.Thread(target=work, args=(float(sys.argv[1]),))
        thread.start()
        thread.join()
    else:
        work(float(sys.argv[1]))
