"""Display names."""

from __future__ import annotations

import pytest

from gpuprof.sampler.demangle import MAX_SHOWN, display_name, fold


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


@pytest.mark.parametrize("name", ["a<b", "f(", ")(", "operator", "<>", "", "> <", "operator<("])
def test_fold_takes_anything(name: str) -> None:
    assert isinstance(fold(name), str)


def test_long_names_are_cut() -> None:
    assert len(display_name(b"_Z" + b"1a" * 100_000)) <= MAX_SHOWN
    assert len(display_name(b"a" * 3000)) <= MAX_SHOWN
