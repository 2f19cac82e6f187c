"""Burns CPU through four call paths in the ratio 2 : 5 : 11 : 23, in random order.

With --trace: one round, and the (function, line) pairs that ran, as JSON.
"""

import json
import random
import re
import sys

RANDOM = random.Random(1)


def burn(units):
    for _ in range(units * 2000): pass  # fmt: skip # noqa: E701 one hot line


def path_two():
    burn(2)


def key_five(_):
    burn(5)
    return 0


def path_five():
    # Through C code: list.sort calls back into Python.
    [0].sort(key=key_five)


def numbers_eleven(depth):
    if depth:
        yield from numbers_eleven(depth - 1)
    else:
        burn(11)
        yield 0


def path_eleven():
    sum(numbers_eleven(6))


def replace_twenty_three(match):
    burn(23)
    return match.group(0)


def path_twenty_three():
    re.sub("a", replace_twenty_three, "a")


PATHS = [path_two, path_five, path_eleven, path_twenty_three]


def one_round():
    for path in RANDOM.sample(PATHS, 4):
        path()


def main():
    while True:
        one_round()


def traced():
    seen = set()

    def trace(frame, event, argument):
        if frame.f_code.co_filename == __file__:
            seen.add((frame.f_code.co_name, frame.f_lineno))
        return trace

    sys.settrace(trace)
    one_round()
    sys.settrace(None)
    return sorted(seen)


if __name__ == "__main__":
    if "--trace" in sys.argv:
        print(json.dumps(traced()))
    else:
        print("ready", flush=True)
        main()
