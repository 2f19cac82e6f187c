"""Code objects of living CPython processes of every version here, against what the process says of itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import CodeType

import pytest

from gpuprof.sampler.maps import read_maps
from gpuprof.sampler.python_code import RECHECK_NS, CodeReader
from gpuprof.sampler.python_lines import LineTable, _shared
from gpuprof.sampler.python_runtime import UnsupportedPython, find_python

Child = Callable[[str, str], tuple[subprocess.Popen[bytes], bytes]]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="reads the memory of another process")

# Prints for each function: address of its code, first line, qualified name, file, line of each instruction.
DESCRIBE = r"""
import dis, json, sys, argparse, json.decoder, threading
class Größe:
    class Inner:
        def method(self):
            def nested():
                for i in range(3):
                    yield (i,
                           i + 1,
                           [j for j in
                            range(i)])
            try:
                x = (1 +
                     2 / self.zero)
            except ZeroDivisionError as error:
                raise ValueError() from error
            finally:
                print("x")
            return nested
def lots():
    a = 1
{many}
    return a
def far():
    return [
{gap}
        1]
def codes(code):
    yield code
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from codes(constant)
old = sys.version_info < (3, 10)
out = []
for function in (Größe.Inner.method, lots, far, argparse.ArgumentParser.parse_known_args,
                 json.decoder.JSONArray, threading.Thread.__init__):
    for code in codes(function.__code__):
        lines = {}
        if old:
            starts = list(dis.findlinestarts(code))
            for (start, line), (end, _) in zip(starts, starts[1:] + [(len(code.co_code), 0)]):
                lines.update((offset, line) for offset in range(start, end, 2))
        else:
            for start, end, line in code.co_lines():
                if line is not None:
                    lines.update((offset, line) for offset in range(start, end, 2))
        name = getattr(code, "co_qualname", code.co_name)
        out.append((id(code), code.co_firstlineno, name, code.co_filename, sorted(lines.items())))
print(json.dumps([list(sys.version_info[:2]), out]), flush=True)
sys.stdin.read()
"""
DESCRIBE = DESCRIBE.replace("{many}", "\n".join(f"    a = a + {i}" for i in range(400)))
DESCRIBE = DESCRIBE.replace("{gap}", "\n" * 700)


def test_names_files_and_lines(interpreter: str, child: Child) -> None:
    process, line = child(interpreter, DESCRIBE)
    version, functions = json.loads(line)
    layout = find_python(process.pid, read_maps(process.pid))
    assert layout is not None
    assert list(layout.version) == version
    reader = CodeReader(process.pid, layout)
    unit = 1 if layout.version == (3, 9) else 2
    checked = 0
    for address, first_line, name, file, lines in functions:
        code = reader.get(address, first_line)
        assert code is not None
        assert (code.name, code.file, code.first_line) == (name, file, first_line)
        for offset, expected in lines:
            assert code.line(offset // unit) == expected, (name, offset)
            checked += 1
    assert checked > 500
    reader.close()


def test_what_is_not_a_code_object_is_refused(interpreter: str, child: Child) -> None:
    code = """
import sys
def f(): pass
print(id(f), id(f.__code__), f.__code__.co_firstlineno, flush=True)
sys.stdin.read()
"""
    process, line = child(interpreter, code)
    function, address, first_line = map(int, line.split())
    layout = find_python(process.pid, read_maps(process.pid))
    assert layout is not None
    reader = CodeReader(process.pid, layout)
    assert reader.get(address, first_line) is not None
    assert reader.get(function, 0) is None  # an object of another type
    assert reader.get(address, first_line + 1) is None  # reused for another function
    assert reader.get(address + 8, first_line) is None
    assert reader.get(8, 0) is None
    assert reader.get((1 << 47) + 8, 0) is None
    process.kill()
    process.wait()
    assert reader.get(address, first_line) is not None  # known from before
    assert reader.get(function, 1) is None
    reader.close()


def test_a_code_object_is_read_again_after_a_while(interpreter: str, child: Child) -> None:
    process, line = child(
        interpreter,
        "import sys\ndef f(): pass\n"
        "print(id(f.__code__), f.__code__.co_firstlineno, flush=True)\nsys.stdin.read()",
    )
    address, first_line = map(int, line.split())
    layout = find_python(process.pid, read_maps(process.pid))
    assert layout is not None
    reader = CodeReader(process.pid, layout)
    first = reader.get(address, first_line, 0)
    assert reader.get(address, first_line, RECHECK_NS - 1) is first
    # The same object at the second look is kept; with another layout it looks like another one.
    assert reader.get(address, first_line, RECHECK_NS) is first
    reader.layout = replace(layout, co_filename=layout.co_qualname)
    again = reader.get(address, first_line, 2 * RECHECK_NS)
    assert again is not None
    assert again.file == "f"
    reader.close()


def test_an_unknown_version_is_refused_by_name(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    process, _ = child(sys.executable, "import sys\nprint(1, flush=True)\nsys.stdin.read()")
    monkeypatch.setattr("gpuprof.sampler.python_runtime._images", {})
    for table in ("_STATIC", "_DEBUG"):
        monkeypatch.setattr(f"gpuprof.sampler.python_runtime.{table}", {})
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    with pytest.raises(UnsupportedPython, match=re.escape(own)):
        find_python(process.pid, read_maps(process.pid))


def test_a_process_without_python_has_none() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert find_python(process.pid, read_maps(process.pid)) is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("version", [(3, 9), (3, 10), (3, 11)])
@pytest.mark.parametrize(
    "table", [b"", b"\xff", b"\xff" * 1000, bytes(range(256)) * 4, b"\xf0\xff\xff\xff\xff\xff\xff"]
)
def test_torn_line_tables(version: tuple[int, int], table: bytes) -> None:
    lines = LineTable(version, table, 10)
    assert all(line >= 0 for line in (lines.line(offset) for offset in (-1, 0, 1, 1000, 1 << 30)))


def own_codes(count: int, table: bytes) -> list[CodeType]:
    """Code objects of this process, all with the same line table but with first lines of their own."""
    code = own_codes.__code__
    return [
        code.replace(co_firstlineno=n + 1, co_linetable=table, co_exceptiontable=b"") for n in range(count)
    ]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="makes a location table")
@pytest.mark.parametrize(("count", "lines"), [(40, 500_000), (20_500, 3)])
def test_what_is_kept_of_a_process_is_bounded(count: int, lines: int) -> None:
    """A process may have any number of code objects, and one large line table may serve many of them."""
    python = find_python(os.getpid(), read_maps(os.getpid()))
    assert python is not None
    codes = own_codes(count, b"\xe8\x02" * lines)  # each entry: no columns, the next line
    reader = CodeReader(os.getpid(), python)
    shared = len(_shared)
    most_codes = most_bytes = 0
    for code in codes:
        found = reader.get(id(code), code.co_firstlineno)
        assert found is not None
        assert found.line(lines - 1) == code.co_firstlineno + lines
        most_codes = max(most_codes, len(reader._codes))
        most_bytes = max(most_bytes, reader.nbytes)
    reader.close()
    assert reader.nbytes == sum(entry.nbytes for entry in reader._codes.values())
    assert most_codes == min(20_000, count, (48 << 20) // (8 * lines))
    assert most_bytes <= 48 << 20
    if lines > 3:
        assert len(_shared) == shared  # too large to be kept for others
