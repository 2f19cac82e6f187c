"""Never twice the same Python stack: recursion, generators, callbacks out of C, exceptions. For ever."""

import functools
import json
import random
import re

RANDOM = random.Random(7)


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def numbers(depth):
    if depth:
        yield from numbers(depth - 1)
    for i in range(40):
        yield i * depth


class Tree:
    def __init__(self, depth):
        self.children = [Tree(depth - 1) for _ in range(2)] if depth else []

    def walk(self, visit):
        visit(self)
        for child in self.children:
            child.walk(visit)

    def __lt__(self, other):
        return id(self) % 7 < id(other) % 7

    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return hash(len(self.children)) + sum(i for i in range(5))


def double(match):
    return match.group(0) * 2


def sorts():
    return sorted(range(200), key=lambda i: -i % 17)


def compares():
    return sorted(range(60), key=functools.cmp_to_key(lambda a, b: b - a))


def hashes(tree):
    seen = {}
    tree.walk(lambda node: seen.setdefault(node, len(seen)))
    return sorted(seen)


def decode(pairs):
    return dict(pairs)


def parses():
    text = json.dumps({str(i): [i, {"a": i}] for i in range(30)})
    return json.loads(text, object_pairs_hook=decode)


def fails(depth):
    if depth == 0:
        raise KeyError(depth)
    try:
        fails(depth - 1)
    finally:
        sum(numbers(2))


def catches():
    try:
        fails(RANDOM.randrange(8))
    except KeyError as error:
        return str(error)


def main():
    tree = Tree(4)
    print("ready", flush=True)
    while True:
        fib(RANDOM.randrange(6, 12))
        sum(numbers(RANDOM.randrange(1, 9)))
        list(map(lambda _: sorts(), [0]))  # noqa: C417
        compares()
        hashes(tree)
        re.sub("a+", double, "aab" * 40)
        parses()
        catches()


main()
