"""Names of functions as they are shown: demangled (C++, Rust, Fortran modules, Cython), without compiler
suffixes, templates folded.

Folding: template arguments longer than a few characters become <…>, and parameter lists and return types are
left out, so that the instantiations of one function are one row: `void at::native::fill<float, 4>(int) const`
is `at::native::fill<…>`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from gpuprof.sampler.cython_names import cython_name
from gpuprof.snapshots.names import clean

MAX_MANGLED = 4096  # bytes; longer names are shown as they are
MAX_EXPANDED = 1 << 20  # longer ones, by a careful guess, are shown as they are
MAX_EXPANDED_RUST = 1 << 16  # that demangler is written in Python
MAX_SHOWN = 512
_SHORT_ARGUMENTS = 12

# What GCC and LLVM append to the name of a part or a copy of a function.
_SUFFIX = re.compile(
    r"(?:\.(?:cold|part|constprop|isra|lto_priv|localalias|llvm|specialized|clone|resolver)(?:\.\d+)*)+$"
)
_RUST_LEGACY = re.compile(r"^_ZN.*17h[0-9a-f]{16}E$")
_FORTRAN = re.compile(r"^__([a-z0-9_]+)_MOD_([a-z0-9_]+)$")
_OPERATOR = re.compile(
    r"operator(?:\s*(?:\(\)|\[\]|<=>|<<=|>>=|->\*|->|<<|>>|<=|>=|<|>)|\s+(?:new|delete)(?:\[\])?)(?=[\s(<]|$)"
)
_CPP_TOKEN = re.compile(
    rb"(?P<reference>[ST][0-9A-Z]{0,8}_)|(?P<literal>L[a-z]n?[0-9]+E)|(?P<identifier>[0-9]{1,9})|(?P<open>[INXJF])"
    rb"|(?P<close>E)|(?P<other>S[a-z]|.)",
    re.DOTALL,
)
_RUST_TOKEN = re.compile(
    rb"(?P<reference>B[0-9a-zA-Z]{0,8}_)|(?P<number>[sLG][0-9a-zA-Z]{0,8}_|K[a-z]n?[0-9a-f]{0,32}_)"
    rb"|(?P<identifier>[0-9]{1,9}_?)|(?P<open>[ITFD])|(?P<close>E)|(?P<other>.)",
    re.DOTALL,
)
_DEVICE_STUB = "__device_stub__"
_UNBRACKETED = {b"M", b"X", b"Y"}
_MAX_UNBRACKETED = 8
_WORDS_BEFORE = (
    "non-virtual thunk to ",
    "virtual thunk to ",
    "guard variable for ",
    "covariant return thunk to ",
)


def display_name(raw: bytes) -> str:
    """The name of a function for display, from the bytes of a symbol table. Never raises."""
    name = raw[: MAX_MANGLED + 1].decode("utf-8", "backslashreplace")
    if len(raw) <= MAX_MANGLED:
        name = _SUFFIX.sub("", name.partition("@")[0] or name)
        if name.startswith("_R") or _RUST_LEGACY.match(name):
            name = _demangle_rust(name)
        elif name.startswith(("_Z", "__Z", "___Z")):
            full = _demangle_cpp(name)
            name = fold(full) if full != name else outer_name(name)
        elif (fortran := _FORTRAN.match(name)) is not None:
            name = f"{fortran[1]}::{fortran[2]}"
        elif name.startswith(_DEVICE_STUB):  # what nvcc puts where a kernel is launched from
            name = f"{fold(_demangle_cpp('_' + name.removeprefix(_DEVICE_STUB)))} [launch]"
        else:
            name = cython_name(name) or name
    else:
        name = outer_name(name)
    return clean(name, MAX_SHOWN)


def demangled(raw: bytes) -> str:
    """A C++ name whole, with parameters and template arguments; as it is where it is not one, or too long."""
    name = raw[:MAX_MANGLED].decode("utf-8", "backslashreplace")
    return _demangle_cpp(name) if name.startswith("_Z") else name


def outer_name(mangled: str) -> str:
    """The qualified name at the front of a mangled name that is too long to demangle, without its arguments.

    Nested names of the Itanium C++ ABI (5.1.3) begin _ZN, then each part with its length before it; I opens
    template arguments. The name as it is where it does not begin so.
    """
    parts: list[str] = []
    at = len("_ZN")
    while (
        mangled.startswith("_ZN") and (number := re.compile(r"[1-9]\d{0,3}").match(mangled, at)) is not None
    ):
        end = number.end() + int(number[0])
        parts.append(mangled[number.end() : end])
        at = end
    if not parts or at > len(mangled):
        return mangled
    text = "::".join("(anonymous namespace)" if part == "_GLOBAL__N_1" else part for part in parts)
    return f"{text}<…>" if mangled.startswith("I", at) else text


def fold(name: str) -> str:
    """A demangled C++ name without parameters and return type, long template arguments as <…>."""
    if "<" not in name and "(" not in name:
        return name
    for words in _WORDS_BEFORE:
        name = name.removeprefix(words)
    parts: list[str] = []  # of the current nesting level
    outer: list[tuple[str, list[str]]] = []  # (bracket, parts of the level around it)
    at, size = 0, len(name)
    while at < size:
        char = name[at]
        if char == "o" and (operator := _OPERATOR.match(name, at)) is not None and _starts_word(name, at):
            parts.append(operator[0].replace(" ", "\0"))  # kept together when the return type is cut
            at = operator.end()
            continue
        if char in "(<":
            if name.startswith("(anonymous namespace)", at):
                parts.append("(anonymous\0namespace)")
                at += len("(anonymous namespace)")
                continue
            outer.append((char, parts))
            parts = []
        elif char == ">" and outer and outer[-1][0] == "<":
            inside = "".join(parts)
            parts = outer.pop()[1]
            inside = inside if len(inside) <= _SHORT_ARGUMENTS else "…"
            parts.append(f"<{inside}>".replace(" ", "\0"))
        elif char == ")" and outer and outer[-1][0] == "(":
            parts = outer.pop()[1]
        else:
            parts.append(char)
        at += 1
    if outer:
        return name  # brackets that do not match: not a name this knows how to read
    return _without_return_type("".join(parts)).replace("\0", " ")


def fold_rust(name: str) -> str:
    """A demangled Rust path with long generic arguments as <…>; `<Type>::method` is `Type::method`."""
    parts: list[str] = []
    outer: list[
        tuple[bool, list[str]]
    ] = []  # (generic arguments, not a self type; parts of the level around)
    for at, char in enumerate(name):
        before = name[at - 1] if at else ""
        if char == "<":
            generic = before.isalnum() or before in {"_", "}", "]"} or name[max(at - 2, 0) : at] == "::"
            if generic and parts and "".join(parts[-2:]) == "::":
                del parts[-2:]
            outer.append((generic, parts))
            parts = []
        elif char == ">" and before != "-" and outer:
            inside = "".join(parts)
            generic, parts = outer.pop()
            if generic:
                inside = inside if len(inside) <= _SHORT_ARGUMENTS else "…"
                parts.append(f"<{inside}>")
            elif " as " in inside or parts:
                parts += ["<", inside, ">"]
            else:
                parts.append(inside)
        else:
            parts.append(char)
    return name if outer else "".join(parts)


def _without_return_type(name: str) -> str:
    for suffix in (" &&", " &", " const", " volatile"):
        name = name.removesuffix(suffix)
    name = re.sub(r" \[clone [^\]]*\]", "", name).rstrip()
    if (at := name.rfind("operator ")) >= 0 and _starts_word(
        name, at
    ):  # a conversion, "operator bool": keep its type
        head = name[:at].rpartition(" ")[2]
        return head + name[at:]
    return name.rpartition(" ")[2] or name


def _starts_word(name: str, at: int) -> bool:
    return at == 0 or not (name[at - 1].isalnum() or name[at - 1] == "_")


def _demangle_cpp(name: str) -> str:
    demangle = _cpp_demangler()
    mangled = name[name.index("_Z") :].encode()
    if demangle is None or expanded_size(mangled) > MAX_EXPANDED:
        return name
    try:
        return str(demangle(mangled).decode("utf-8", "backslashreplace"))
    except Exception:  # noqa: BLE001 - the library raises what it likes on a name that only looks mangled
        return name


def expanded_size(mangled: bytes, token_of: re.Pattern[bytes] = _CPP_TOKEN) -> int:
    """About how long a mangled name is when demangled; never less than a quarter of it.

    A back reference repeats what was named before, so that a few bytes can stand for gigabytes. Each is taken
    to repeat the largest bracket so far; where there are many ways to combine two parts without a bracket
    (pointers to members in C++, impl paths in Rust), each may double it.
    """
    size = largest = unbracketed = 0
    at = 2
    groups: list[int] = []  # sizes at which the open brackets began
    while at < len(mangled) and size <= MAX_EXPANDED:
        token = token_of.match(mangled, at)
        if token is None:
            break
        at = token.end()
        kind = token.lastgroup
        if kind == "identifier":
            length = min(int(token[0].rstrip(b"_")), len(mangled) - at)
            at += length
            size += length
            largest = max(largest, length)
        elif kind == "reference":
            size += largest + 4
            if unbracketed > _MAX_UNBRACKETED:
                largest *= 2
        elif kind == "open":
            groups.append(size)
        elif kind == "close":
            if groups:
                groups.pop()
            largest = max(largest, size - (groups[-1] if groups else 0) + 4)
        else:
            unbracketed += token[0] in _UNBRACKETED
            size += 12
    return size


def _demangle_rust(name: str) -> str:
    if expanded_size(name.encode(), _RUST_TOKEN) > MAX_EXPANDED_RUST:
        return name
    try:
        import rust_demangler
        from rust_demangler import rust_v0

        vars(rust_v0)["print"] = (
            _silent  # it writes what it cannot read to stdout, which is not its to write to
        )
        text = str(rust_demangler.demangle(name))
    except Exception:  # noqa: BLE001 - as above, RecursionError included
        return name
    return fold_rust(re.sub(r"::h[0-9a-f]{16}$", "", text))


def _silent(*_: object) -> None:
    pass


@lru_cache(maxsize=1)
def _cpp_demangler() -> Any:
    """cxxfilt's demangleb; None where libstdc++ cannot be found. Imported late: it looks for the library by
    running ldconfig.
    """
    try:
        import cxxfilt

        cxxfilt.demangleb(b"_Z1fv")
    except Exception:  # noqa: BLE001 - a missing library must not cost the stacks
        return None
    return cxxfilt.demangleb
