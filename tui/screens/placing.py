"""How the room on the main screen is divided: rows for charts and tree, and a place for the process table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual.widget import Widget

SIDE_BY_SIDE_COLUMNS = 130
LEAST_SIDE_COLUMNS = 110  # below, the table stands beside the tree not even when asked for
LEAST_COLUMNS, LEAST_ROWS = 40, 10  # below, nothing of use can be shown
TINY_ROWS = 14
NOTICE_ROWS_SMALL = 2
LEAST_TREE_ROWS = 9
LEAST_CHART_ROWS = 5

TablePlace = Literal["auto", "beside", "alone", "none"]  # beside the tree, or in its place


def most_header_rows(height: int) -> int:
    """The most rows of the header on a screen of so many."""
    return max(2, min(9, height // 4))


def most_notice_rows(height: int) -> int:
    """The most rows of notices below the header."""
    return NOTICE_ROWS_SMALL if height < 30 else 9


def set_height(widget: Widget, rows: int) -> None:
    """Give a widget so many rows; nothing is laid out anew where it has them."""
    height = widget.styles.height
    if height is None or height.value != rows:
        widget.styles.height = rows


@dataclass(frozen=True, slots=True)
class Places:
    """`chart_rows`: height of the charts; `beside`, `alone`: where the table is shown, if at all, and its
    width; `has_legend`: whether the tree has room for its legend.
    """

    chart_rows: int
    beside: bool
    alone: bool
    table_width: int | str
    has_legend: bool


@dataclass(slots=True)
class Placing:
    """What the user has chosen: where the table stands, and the charts' share of the height."""

    table: TablePlace = "auto"
    chart_share: float = 0.5

    def places(self, width: int, height: int, taken_rows: int) -> Places:
        """Divide a screen, whose header and summary take `taken_rows`."""
        left = height - taken_rows - 1  # the footer
        least = LEAST_CHART_ROWS if height >= TINY_ROWS else 2
        charts = max(least, min(round(left * self.chart_share), left - LEAST_TREE_ROWS))
        alone = self.table == "alone"
        return Places(
            chart_rows=max(1, charts),
            beside=(self.table == "beside" and width >= LEAST_SIDE_COLUMNS)
            or (self.table == "auto" and width >= SIDE_BY_SIDE_COLUMNS),
            alone=alone,
            table_width="1fr" if alone else max(50, min(84, width * 3 // 8)),
            has_legend=left - charts >= LEAST_TREE_ROWS + 1,
        )

    def give_charts(self, steps: int) -> None:
        """A larger (positive) or smaller share of the height for the charts."""
        self.chart_share = min(0.9, max(0.1, self.chart_share + 0.08 * steps))

    def next_table(self, width: int) -> None:
        """The next place of the table, of those that a screen of this width has."""
        wide = width >= SIDE_BY_SIDE_COLUMNS
        shown = "beside" if self.table == "auto" and wide else "none" if self.table == "auto" else self.table
        order: list[TablePlace] = ["none", "beside", "alone"]
        if width < LEAST_SIDE_COLUMNS:
            order.remove("beside")
        place = order.index(shown) if shown in order else 0
        self.table = order[(place + 1) % len(order)]
