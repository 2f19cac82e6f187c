"""When the store of symbol tables gives free memory back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpuprof.sampler import symbol_store
from gpuprof.sampler.symbol_store import SymbolStore


def test_free_memory_is_given_back_now_and_then_and_after_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns, trims = 10**12, []
    monkeypatch.setattr(symbol_store, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    monkeypatch.setattr(symbol_store, "memory", SimpleNamespace(trim=lambda: trims.append(now_ns)))
    store = SymbolStore()
    for now_ns in range(10**12, 10**12 + 13 * 10**9, 10**9):  # noqa: B007 - the clock reads it
        store.trim()
    assert [(at - 10**12) // 10**9 for at in trims] == [0, 5, 10]
    large = SimpleNamespace(nbytes=1 << 20)
    store._binaries["a"] = large  # type: ignore[assignment]
    store.trim()
    store.trim()
    assert trims[3:] == [now_ns]
