"""What other threads may ask of the binaries while theirs adds and drops some."""

from __future__ import annotations

from collections.abc import Hashable

from gpuprof.sampler.unwind_binaries import UnwindBinaries


class Growing:
    """A binary during whose look another one comes."""

    def __init__(self, by_key: dict[Hashable, object]) -> None:
        self._by_key = by_key

    @property
    def problem(self) -> str | None:
        self._by_key[len(self._by_key)] = Growing(self._by_key)
        return None


def test_a_binary_that_comes_meanwhile_does_no_harm() -> None:
    binaries = UnwindBinaries.__new__(UnwindBinaries)
    by_key: dict[Hashable, object] = {}
    by_key[0] = Growing(by_key)
    binaries._by_key = by_key  # type: ignore[assignment]
    assert not binaries.full
    assert binaries.problems() == {}
    assert len(by_key) == 4
