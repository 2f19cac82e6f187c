"""Compiled programs as bytes: what is taken out of code comes back when it is linked; hostile files are
refused."""

from __future__ import annotations

import hashlib
import json
import random
import struct

import pytest

from gpuprof.bpf.program_object import (
    MAGIC,
    MAX_BYTES,
    MapSpec,
    ObjectError,
    Program,
    ProgramObject,
    helpers,
    link,
    pack,
    take,
    unpack,
)

SEED = 0x8123456789ABCDEF


def instruction(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | target, offset, value)


def load_64(target: int, value: int, source: int = 0) -> bytes:
    low, high = value & 0xFFFFFFFF, value >> 32
    return struct.pack("<BBhIIi", 0x18, source << 4 | target, 0, low, 0, 0)[:12] + struct.pack("<I", high)


EXIT = instruction(0x95)
CODE = (
    load_64(1, 7, source=1)  # 0: a map, descriptor 7
    + instruction(0x85, value=130)  # 2: a helper
    + load_64(2, SEED)  # 3: the seed
    + load_64(3, 0x1122334455667788)  # 5: another number
    + load_64(1, 9, source=1)  # 7
    + EXIT
)
NAMES = {7: "samples", 9: "counters"}
SPECS = {
    "samples": MapSpec("samples", 27, 0, 0, 4096, 0),
    "counters": MapSpec("counters", 2, 4, 8, 32, 1024),
}


def an_object() -> ProgramObject:
    return ProgramObject(SPECS, {"cpu_clock": take("cpu_clock", CODE, NAMES.__getitem__, SEED)})


def test_what_is_taken_out_comes_back() -> None:
    program = take("cpu_clock", CODE, NAMES.__getitem__, SEED)
    assert program.maps == ((0, "samples"), (7, "counters"))
    assert program.seeds == (3,)
    assert link(program, {"samples": 7, "counters": 9}, SEED) == CODE
    other = link(program, {"samples": 70, "counters": 90}, 1)
    assert struct.unpack_from("<I", other, 4)[0] == 70
    assert struct.unpack_from("<I", other, 8 * 7 + 4)[0] == 90
    assert struct.unpack_from("<I", other, 8 * 3 + 4)[0] == 1
    assert struct.unpack_from("<I", other, 8 * 4 + 4)[0] == 0
    assert other[8 * 5 : 8 * 7] == CODE[8 * 5 : 8 * 7]
    assert helpers(program) == {130}


def test_round_trip() -> None:
    assert unpack(pack(an_object())) == an_object()


@pytest.mark.parametrize(
    "code",
    [
        load_64(1, 8, source=1) + EXIT,  # a descriptor that is none of our maps
        load_64(1, 0, source=4) + EXIT,  # the address of a function
        load_64(1, 8)[:8],  # torn
        EXIT[:5],
    ],
)
def test_code_that_cannot_be_linked_again(code: bytes) -> None:
    with pytest.raises(ObjectError):
        take("cpu_clock", code, NAMES.__getitem__, SEED)


def sealed(body: bytes) -> bytes:
    return MAGIC + hashlib.sha256(body).digest() + body


def with_header(header: object, code: bytes = CODE) -> bytes:
    text = json.dumps(header).encode()
    return sealed(struct.pack("<I", len(text)) + text + code)


GOOD = {
    "maps": [["samples", 27, 0, 0, 4096, 0]],
    "programs": [["cpu_clock", len(CODE), [[0, "samples"]], [3]]],
}


@pytest.mark.parametrize(
    "header",
    [
        [],
        {},
        {"maps": [], "programs": []},
        {**GOOD, "maps": [["samples", 27, 0, 0, -1, 0]]},
        {**GOOD, "maps": [["samples", 27, 0, 0, 1 << 32, 0]]},
        {**GOOD, "maps": [["samples", 27, 0, 0, "4096", 0]]},
        {**GOOD, "maps": [["samples", 27, 0, 0, True, 0]]},
        {**GOOD, "maps": [["../etc", 27, 0, 0, 4096, 0]]},
        {**GOOD, "maps": [[["samples"], 27, 0, 0, 4096, 0]]},
        {**GOOD, "programs": [["cpu_clock", len(CODE), [[0, "nowhere"]], []]]},
        {**GOOD, "programs": [["cpu_clock", len(CODE), [[1, "samples"]], []]]},  # within an instruction
        {**GOOD, "programs": [["cpu_clock", len(CODE), [[99, "samples"]], []]]},
        {**GOOD, "programs": [["cpu_clock", len(CODE), [], [0]]]},  # the seed where a map is
        {**GOOD, "programs": [["cpu_clock", len(CODE) - 8, [], []]]},  # code left over
        {**GOOD, "programs": [["cpu_clock", len(CODE) + 8, [], []]]},
        {**GOOD, "programs": [["cpu_clock", 0, [], []]]},
        {**GOOD, "programs": [["cpu_clock", len(CODE), [], [], 1]]},
        {"maps": [[f"m{i}", 2, 4, 8, 1, 0] for i in range(500)], "programs": GOOD["programs"]},
    ],
)
def test_headers_that_lie(header: object) -> None:
    assert unpack(with_header(GOOD)).programs["cpu_clock"].code == CODE
    with pytest.raises(ObjectError):
        unpack(with_header(header))


def test_every_cut_and_flip_is_noticed() -> None:
    data = pack(an_object())
    for size in range(len(data)):
        with pytest.raises(ObjectError):
            unpack(data[:size])
    with pytest.raises(ObjectError):
        unpack(data + b"\0")
    rng = random.Random(7)
    for at in range(len(data)):
        torn = bytearray(data)
        torn[at] ^= 1 << rng.randrange(8)
        with pytest.raises(ObjectError):
            unpack(bytes(torn))


def test_noise_with_a_right_checksum_raises_nothing_else() -> None:
    rng = random.Random(11)
    body = pack(an_object())[len(MAGIC) + 32 :]
    for _ in range(2000):
        torn = bytearray(body)
        for _ in range(rng.randrange(1, 6)):
            torn[rng.randrange(len(torn))] = rng.randrange(256)
        try:
            found = unpack(sealed(bytes(torn)))
        except ObjectError:
            continue
        for program in found.programs.values():  # what passes can be linked
            link(program, dict.fromkeys(found.maps, 5), SEED)


def test_bounds() -> None:
    with pytest.raises(ObjectError):
        unpack(sealed(bytes(MAX_BYTES)))
    with pytest.raises(ObjectError):
        unpack(with_header(GOOD | {"x": [[]] * 1}, b""))
    deep = b"[" * 100_000
    with pytest.raises(ObjectError):
        unpack(sealed(struct.pack("<I", len(deep)) + deep))
    assert Program("a", EXIT, (), ()).code == EXIT
