"""Numbers with their units, in few characters."""

from __future__ import annotations

from gpuprof.tui.units import nice_ceiling, number, prefixed, with_unit


class TestNumbers:
    def test_values(self) -> None:
        assert with_unit(71.7, "%") == "72 %"
        assert with_unit(0.42, "%") == "0.4 %"
        assert with_unit(None, "W") == "–"
        assert with_unit(1.24e9, "B/s") == "1.24 GB/s"
        assert with_unit(38.24, "GiB") == "38.2 GiB"
        assert prefixed(999_999) == "1M"
        assert number(0.0) == "0"
        for value in (1e300, -1e300, 1e-300, float("inf"), float("nan"), 123456789.0):
            for unit in ("%", "B/s", "GiB", ""):
                assert len(with_unit(value, unit)) <= 14

    def test_nice_ceilings(self) -> None:
        assert nice_ceiling(714) == 800
        assert nice_ceiling(100) == 100
        assert nice_ceiling(0) == 1
        assert nice_ceiling(1.7e308) >= 1.7e308
        assert nice_ceiling(5e-324) > 0
