"""`report --json --depth N`: below N rows one that says what was summed, and no other value."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpuprof.snapshots.frames import Query
from gpuprof.snapshots.report import json_report, json_text

ALL = Query(1, "cpu", 0, 1 << 60)


def walked(node: dict[str, Any], level: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    yield level, node
    for child in node["children"]:
        yield from walked(child, level + 1)


def test_what_is_deeper_is_one_row(planted: Any, row: Any) -> None:
    planted.add(*(row(time, "main f g") for time in (1, 2)), row(3, "main f h i"), row(4, "main"))
    whole = json_report(planted.history, ALL)
    assert "cut" not in json_report(planted.history, ALL, depth=5)  # process, main, f, h, i
    report = json_report(planted.history, ALL, depth=3)
    (process,) = report["root"]["children"]
    (main,) = process["children"]
    assert (main["self"], main["total"]) == (1, 4)
    (f,) = main["children"]
    assert (f["name"], f["self"], f["total"]) == ("f", 0, 3)
    assert f["children"] == [{"name": "deeper (3)", "kind": "other", "self": 3, "total": 3, "children": []}]
    assert report["cut"] == "what is more than 3 rows deep is summed in deeper (n); --folded has it all"
    assert {name: report[name] for name in report if name not in {"root", "cut"}} == {
        name: whole[name] for name in whole if name != "root"
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("depth", [1, 2, 4, 7])
def test_kept_rows_are_as_they_were(planted: Any, random_rows: Any, seed: int, depth: int) -> None:
    planted.add(*random_rows(seed, 300))
    query = replace(ALL, by_thread=True)

    def plain(node: dict[str, Any]) -> tuple[Any, ...]:
        return tuple((name, value) for name, value in node.items() if name != "children")

    whole = list(walked(json_report(planted.history, query)["root"]))
    cut = list(walked(json_report(planted.history, query, depth=depth)["root"]))
    kept = [(level, plain(node)) for level, node in cut if level <= depth]
    assert kept == [(level, plain(node)) for level, node in whole if level <= depth]
    deeper = [node for level, node in cut if level > depth]
    assert sum(node["self"] for node in deeper) == sum(node["self"] for level, node in whole if level > depth)
    count = sum(int(node["name"].removeprefix("deeper (").removesuffix(")")) for node in deeper)
    assert count == sum(level > depth for level, _ in whole)


def test_what_the_help_says_of_jq(planted: Any, row: Any) -> None:
    """jq before 1.7 counts an object two levels and a list one, and takes 256 of them."""
    planted.add(row(1, "f " * 500))
    text = json_text(json_report(planted.history, ALL, depth=80))
    level = deepest = 0
    for char in text:  # no name here has a bracket
        level += {"{": 2, "[": 1, "}": -2, "]": -1}.get(char, 0)
        deepest = max(deepest, level)
    assert deepest <= 256
    if shutil.which("jq"):
        done = subprocess.run(["jq", ".total"], input=text, capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.stderr) == ("1", "")
    assert json.loads(text)["total"] == 1
