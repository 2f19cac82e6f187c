"""Display names."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import cxxfilt
import pytest

from gpuprof.sampler.demangle import MAX_EXPANDED, MAX_SHOWN, display_name, expanded_size, fold, fold_rust

LIBRARIES = [Path("/lib/x86_64-linux-gnu/libstdc++.so.6"), Path("/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1")]


def cpp_names(library: Path) -> list[bytes]:
    if shutil.which("nm") is None:
        return []
    lines = subprocess.run(["nm", "-D", library], capture_output=True, check=True).stdout.splitlines()
    names = [line.split()[-1].partition(b"@")[0] for line in lines if line.split()]
    return [name for name in names if name.startswith(b"_Z")][::7]


@pytest.mark.parametrize(
    ("mangled", "shown"),
    [
        (b"main", "main"),
        (b"_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<…>::push_back"),
        (b"_ZN2at6native12_GLOBAL__N_13fooIfEEvi", "at::native::(anonymous namespace)::foo<float>"),
        (b"_ZNK3fooclEi", "foo::operator()"),
        (b"_ZN1AcvbEv", "A::operator bool"),
        (b"_ZZ4mainENKUliE_clEi", "main::{lambda#1}::operator()"),
        (b"_ZlsRSoRK1A", "operator<<"),
        (b"_ZN1AptEv", "A::operator->"),
        (b"_ZN3c1010DispatcherD2Ev", "c10::Dispatcher::~Dispatcher"),
        (b"_ZTv0_n24_NSt13basic_fstreamIcSt11char_traitsIcEED0Ev", "std::basic_fstream<…>::~basic_fstream"),
        (b"_ZN4core3ptr13drop_in_place17h0123456789abcdefE", "core::ptr::drop_in_place"),
        (b"_RNvC6_123foo3bar", "123foo::bar"),
        (b"__mod_MOD_func", "mod::func"),
        (b"_PyEval_EvalFrameDefault.cold", "_PyEval_EvalFrameDefault"),
        (b"f.constprop.0.isra.0.cold", "f"),
        (b"write@@GLIBC_2.2.5", "write"),
        (b"main.(*T).Run", "main.(*T).Run"),  # Go
        (b"_Zgarbage", "_Zgarbage"),
        (b"_Rgarbage", "_Rgarbage"),
        (b"\xff\x1b[31m", "\\xff␛[31m"),
    ],
)
def test_display_name(mangled: bytes, shown: str) -> None:
    assert display_name(mangled) == shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<rustc_ast::LoweringContext>::lower", "rustc_ast::LoweringContext::lower"),
        ("<&Owner as core::fmt::Debug>::fmt", "<&Owner as core::fmt::Debug>::fmt"),
        (
            "<alloc::raw_vec::RawVec<hir::hir::WherePredicate>>::grow_one",
            "alloc::raw_vec::RawVec<…>::grow_one",
        ),
        (
            "core::ptr::drop_in_place::<std::io::default_write_fmt::Adapter<Vec<u8>>>",
            "core::ptr::drop_in_place<…>",
        ),
        ("core::ops::call<fn(u32) -> u32>", "core::ops::call<…>"),
        ("a<b", "a<b"),
    ],
)
def test_fold_rust(name: str, shown: str) -> None:
    assert fold_rust(name) == shown


@pytest.mark.parametrize("name", ["a<b", "f(", ")(", "operator", "<>", "", "> <", "operator<("])
def test_fold_takes_anything(name: str) -> None:
    assert isinstance(fold(name), str)


def test_long_names_are_cut() -> None:
    assert len(display_name(b"_Z" + b"1a" * 100_000)) <= MAX_SHOWN
    assert len(display_name(b"a" * 3000)) <= MAX_SHOWN


DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.mark.parametrize(
    "mangled",
    [
        # Each part names the one before twice: 2^36 in all.
        "_Z1f1AIiiE" + "".join(f"S_IS{digit}_S{digit}_E" for digit in DIGITS),
        "_Z1f1A" + "".join(f"MS{digit}_S{digit}_" for digit in DIGITS),
        "_Z1fF1AS_E" + "".join(f"FS{digit}_S{digit}_E" for digit in DIGITS),
    ],
)
def test_a_name_that_would_fill_the_memory_is_left_as_it_is(mangled: str) -> None:
    assert display_name(mangled.encode()).startswith("_Z1f")


def test_the_guess_of_the_size_is_right_for_real_names() -> None:
    names = [name for library in LIBRARIES if library.exists() for name in cpp_names(library)]
    if not names:
        pytest.skip("no C++ library to read")
    refused = sum(expanded_size(name) > MAX_EXPANDED for name in names)
    assert refused / len(names) < 0.002
    for name in names:
        assert 4 * expanded_size(name) >= len(cxxfilt.demangleb(name))


def rust_bomb(levels: int) -> str:
    """A tuple of two of a tuple of two ... by back references (the offset of the part before, in base 62)."""
    name, before = "_RINvC1a1f", 0
    for level in range(levels):
        here = len(name) - 2
        reference = f"B{base62(before - 1)}_"
        name += f"T{reference}{reference}E" if level else "TmmE"
        before = here
    return name + "E"


def base62(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return (digits[number // 62] if number >= 62 else "") + digits[number % 62]


def test_rust_names_that_explode_or_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert display_name(rust_bomb(3).encode()) == "a::f<…>"
    assert display_name(rust_bomb(30).encode()).startswith("_RINvC1a1f")
    display_name(b"_RINvNtCs1_4core3ptr13drop_in_placeDG_INtNtNtCs1_4core3ops8function2FnpEp6OutputuEL_E")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("compiled", "source"),
    [  # as Cython 3 named the functions of a module pkg/mod.pyx, and of CuPy
        ("__pyx_f_3pkg_3mod_6Solver_solve_x", "pkg.mod.Solver.solve_x"),
        ("__pyx_f_3pkg_3mod_helper_fn", "pkg.mod.helper_fn"),
        ("__pyx_pw_3pkg_3mod_6Solver_3__call__", "pkg.mod.Solver.__call__"),
        ("__pyx_pw_3pkg_3mod_6Solver_1step", "pkg.mod.Solver.step"),
        ("__pyx_pf_3pkg_3mod_6Solver_step", "pkg.mod.Solver.step"),
        ("__pyx_pf_3pkg_3mod_bar", "pkg.mod.bar"),
        ("__pyx_pw_3pkg_3mod_1bar", "pkg.mod.bar"),
        ("__pyx_pw_3pkg_3mod_3bar_1inner", "pkg.mod.bar.inner"),
        ("__pyx_pw_3pkg_3mod_3solve_x", "pkg.mod.solve_x"),
        ("__pyx_pw_3pkg_3mod_5solve_x", "pkg.mod.solve_x"),  # 5, which is also the length of "solve"
        ("__pyx_pf_3pkg_3mod_2solve_x", "pkg.mod.solve_x"),
        ("__pyx_pw_3pkg_3mod_6Solver_5value_1__get__", "pkg.mod.Solver.value.__get__"),
        ("__pyx_pw_3pkg_3mod_12__pyx_fuse_0__pyx_f_3pkg_3mod_twice", "pkg.mod.twice"),
        (
            "__pyx_f_4cupy_4cuda_8function_8Function_linear_launch",
            "cupy.cuda.function.Function.linear_launch",
        ),
        ("__pyx_f_4cupy_4cuda_8function__launch", "cupy.cuda.function._launch"),
        ("__pyx_f_", "__pyx_f_"),
        ("__pyx_f_999a", "__pyx_f_999a"),
        ("__pyx_tp_new_3pkg_3mod_Solver", "__pyx_tp_new_3pkg_3mod_Solver"),
        ("__device_stub__Z12known_kernelPf", "known_kernel [launch]"),
    ],
)
def test_names_that_compilers_made_of_the_source(compiled: str, source: str) -> None:
    assert display_name(compiled.encode()) == source
