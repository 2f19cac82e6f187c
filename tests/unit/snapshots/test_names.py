"""Names from hostile processes: what is drawn of them, and how wide it is."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from gpuprof.snapshots.names import bound, clean, fit, short_path, unbound, visible, width

HOSTILE = json.loads((Path(__file__).parent / "data" / "hostile.json").read_text())["names"]
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_drawn_on_one_line_without_control(name: str) -> None:
    for raw in (name.encode("latin-1"), name):
        drawn = clean(raw)
        assert drawn
        assert all(char.isprintable() for char in drawn)
        assert not set(drawn) & set(BIDI)
        assert width(fit(drawn, 64)) <= 64
        assert clean(drawn) == drawn


def test_what_hostile_names_look_like() -> None:
    assert clean(b"a\x1b]0;owned\x07b") == "a␛]0;owned␇b"
    assert clean(b"tab\there") == "tab␉here"
    assert clean(b"nul\0byte") == "nul␀byte"
    assert clean(b"new\nline") == "new␊line"
    assert clean(b"\x7f") == "␡"
    assert clean("café".encode()) == "café"
    assert clean(b"\xff\xfe\xfd") == r"\xff\xfe\xfd"
    assert clean("\udcff") == r"\xff"
    assert clean("\u202edesrever") == "⟨U+202E⟩desrever"
    assert clean(b" ") == "␠"
    assert clean(b"") == "(none)"
    assert clean("[bold red]x") == "[bold red]x"
    assert visible("") == ""


def test_a_long_name_is_cut_with_an_ellipsis() -> None:
    assert clean("x" * 513) == "x" * 511 + "…"
    assert clean("x" * 512) == "x" * 512
    assert len(clean(b"\x80" * 10_000_000, 64)) == 64
    assert fit("x" * 65, 64) == "x" * 63 + "…"
    assert fit("x" * 64, 64) == "x" * 64


def test_wide_characters_count_as_two_cells() -> None:
    assert width("日本") == 4
    assert width("e\u0301") == 1
    assert fit("日本語", 5) == "日本…"
    assert fit("日本語", 4) == "日…"
    assert fit("日本語", 6) == "日本語"
    assert fit("日", 1) == "…"
    assert fit("abc", 0) == ""


def test_marks_do_not_pile_up() -> None:
    assert clean("\u0301x") == "⟨U+0301⟩x"
    assert clean("e\u0301\u0302") == "e\u0301\u0302"
    assert width(clean("z" + "\u0335" * 500)) > 100  # the marks beyond the second are shown as text


def test_random_bytes_never_raise_and_cleaning_twice_changes_nothing() -> None:
    rng = random.Random(5)
    for _ in range(2000):
        raw = rng.randbytes(rng.randrange(40))
        text = "".join(chr(rng.choice([rng.randrange(0x300), rng.randrange(0x110000)])) for _ in range(10))
        for name in (raw, text):
            drawn = clean(name, 24)
            assert len(drawn) <= 24
            assert clean(drawn, 24) == drawn
            assert drawn.isprintable()


def test_a_number_stays_with_its_unit() -> None:
    text = (
        "GPU 0 idle 7.9 of 53.0 s; 57 % in main (a.py:9), 2 such gaps in the last 5 min · 12 GiB, 3 sets, 2 B"
    )
    words = bound(text).split(" ")
    assert {word for word in words if "\u00a0" in word} == {
        "53.0\u00a0s;", "57\u00a0%", "5\u00a0min", "12\u00a0GiB,", "2\u00a0B",
    }  # fmt: skip
    assert unbound(bound(text)) == text


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/usr/lib/python3/json/decoder.py", "decoder.py"),
        ("/usr/lib/python3/json/__init__.py", "json/__init__.py"),
        ("train/__main__.py", "train/__main__.py"),
        ("__init__.py", "__init__.py"),
        ("", ""),
    ],
)
def test_files_that_many_packages_have_are_shown_with_their_folder(path: str, short: str) -> None:
    assert short_path(path) == short
