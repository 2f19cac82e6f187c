"""Every unwind row of the libraries that stacks go through, against binutils' reader of the same section.

Both directions: at each address where readelf begins a row, and at the last address before its next one, our
rule says the same (CFA, return address, rbp). For large libraries see tests/bench/readelf_rows.py.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

READER = Path(__file__).parents[2] / "bench" / "readelf_rows.py"
pytestmark = pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")


def libraries() -> dict[str, str]:
    """libc, libpython (or the program that holds it) and libstdc++ of this machine."""
    mapped = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if " r-xp " in line
    }
    found = {}
    for path in sorted(mapped):
        name = Path(path).name
        if name.startswith(("libc.so", "libc-", "libpython3", "python3")):
            found[name] = path
    if shutil.which("gcc") is not None:
        done = subprocess.run(
            ["gcc", "-print-file-name=libstdc++.so.6"], capture_output=True, text=True, check=False
        )
        if done.stdout.startswith("/"):
            found["libstdc++.so.6"] = done.stdout.strip()
    return found


LIBRARIES = libraries()


@pytest.fixture(scope="module")
def reader() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readelf_rows", READER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["readelf_rows"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", LIBRARIES)
def test_no_row_is_wrong(name: str, reader: ModuleType) -> None:
    result = reader.compare(LIBRARIES[name])
    assert result.rows > (1000 if ".so" in name else 2)  # a program may only load its libpython
    assert result.wrong == [], f"{len(result.wrong)} of {result.rows}"
    assert result.left_out <= result.rows * 0.001


def test_a_wrong_row_is_noticed(reader: ModuleType) -> None:
    """The judge itself: it refuses a rule that differs in any part."""
    true = reader.Row(0x1000, 0x1010, "rsp+16", {"rbp": "c-16", "ra": "c-8"}, False)
    right = reader.packed(cfa=1, rbp=1, rbp_offset=-16, cfa_offset=16)
    assert reader.agrees(right, true) == "same"
    for changed in (
        reader.packed(cfa=2, rbp=1, rbp_offset=-16, cfa_offset=16),
        reader.packed(cfa=1, rbp=1, rbp_offset=-16, cfa_offset=24),
        reader.packed(cfa=1, rbp=1, rbp_offset=-24, cfa_offset=16),
        reader.packed(cfa=1, rbp=0, rbp_offset=0, cfa_offset=16),
        reader.packed(cfa=6, rbp=0, rbp_offset=0, cfa_offset=0),
    ):
        assert reader.agrees(changed, true) == "wrong"
    assert reader.agrees(0, true) == "left out"
