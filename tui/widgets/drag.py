"""A drag of the mouse over the charts, which selects a range of time; no events, no drawing."""

from __future__ import annotations

from gpuprof.tui.widgets.viewport import Viewport


class Drag:
    """From the press of the button to its release, in columns of a viewport."""

    def __init__(self, view: Viewport) -> None:
        self._view = view
        self._from: int | None = None
        self._moved = False

    @property
    def is_held(self) -> bool:
        """Whether the button is down."""
        return self._from is not None

    def press(self, column: int) -> None:
        """The button goes down on a column."""
        self._from, self._moved = column, False
        pinned, scale = self._view.pinned, self._view.scale
        if pinned is not None:
            # Near an edge of the pinned range the drag moves that edge.
            left, right = scale.column(pinned[0]), scale.column(pinned[1] - 1)
            if right - left >= 3 and abs(column - left) <= 1:
                self._from = right
            elif right - left >= 3 and abs(column - right) <= 1:
                self._from = left

    def move(self, column: int) -> bool:
        """The pointer is on a column; whether the range has changed by it."""
        view = self._view
        if self._from is None:
            return False
        if self._moved:
            before = view.range
            view.extend(column)
            return view.range != before
        if column == self._from:
            return False
        self._moved = True
        view.cursor_ns = None
        view.begin(self._from, column)
        return True

    def release(self) -> int | None:
        """The button goes up: the column that was clicked, or None where a range is to be pinned."""
        column, self._from = self._from, None
        if self._moved or column is None:
            return None
        if self._view.selecting:
            self._view.extend(column)
            return None
        return column
