"""What the charts look at.

The window of time in sight, the cursor, and the selected range. No drawing, no events.
"""

from __future__ import annotations

from gpuprof.tui.timescale import TimeScale, zoomed

DEFAULT_WINDOW_NS = 60 * 10**9
MIN_WINDOW_NS = 10**9


class Viewport:
    """State of the time axis of a screen `columns` cells wide.

    Live, its right edge follows `newest_ns`; otherwise it stands. While a range is being selected it stands
    too, so that what is under the pointer stays there. Cursor and range are instants, so they move with the
    charts.
    """

    def __init__(self) -> None:
        self.columns = 1
        self.window_ns = DEFAULT_WINDOW_NS
        self.oldest_ns = 0
        self.newest_ns = 0
        self.cursor_ns: int | None = None
        self.pinned: tuple[int, int] | None = None
        self._end_ns: int | None = None  # None: live
        self._held_ns: int | None = None  # right edge while selecting
        self._anchor_ns: int | None = None
        self._moving_ns: int | None = None

    # ------------------------------------------------------------------------------------------------ window

    @property
    def live(self) -> bool:
        """Whether the right edge follows the newest reading."""
        return self._end_ns is None

    @property
    def end_ns(self) -> int:
        """The instant at the right edge."""
        if self._held_ns is not None:
            return self._held_ns
        return self.newest_ns if self._end_ns is None else self._end_ns

    @property
    def scale(self) -> TimeScale:
        """Columns and times as they are now."""
        return TimeScale.ending_at(self.end_ns, self.window_ns, self.columns)

    def follow(self) -> None:
        """Go to the newest reading and stay there."""
        self._end_ns = None

    def stand(self, end_ns: int | None = None) -> None:
        """Stop at an instant (default: where the right edge is)."""
        self._end_ns = self.end_ns if end_ns is None else end_ns

    def fit(self) -> None:
        """Show everything from the oldest to the newest reading."""
        if self.newest_ns > self.oldest_ns:
            self.window_ns = max(self.newest_ns - self.oldest_ns, MIN_WINDOW_NS)
            self._end_ns = self.newest_ns if not self.live else None

    def pan(self, columns: int) -> None:
        """Look `columns` later (earlier, when negative); at the newest reading it becomes live again."""
        scale = self.scale
        end_ns = self.end_ns + columns * scale.cell_ns
        earliest = min(self.oldest_ns + self.window_ns // 4, self.newest_ns)
        if end_ns >= self.newest_ns and columns > 0:
            self.follow()
        else:
            self.stand(max(min(end_ns, self.newest_ns), earliest))

    def zoom(self, steps: int, column: int | None = None) -> None:
        """Wider by `steps` notches (negative: narrower), around a column; live, around the right edge."""
        before = self.scale
        window_ns = max(zoomed(self.window_ns, steps), MIN_WINDOW_NS)
        if window_ns == self.window_ns:
            return
        self.window_ns = window_ns
        if self._end_ns is None and self._held_ns is None:
            return
        column = before.columns - 1 if column is None else before.clamp(column)
        instant = before.time(column) + before.cell_ns // 2
        cell_ns = TimeScale.ending_at(instant, window_ns, before.columns).cell_ns
        end_ns = min((instant // cell_ns - column + before.columns) * cell_ns, self.newest_ns)
        if self._held_ns is not None:
            self._held_ns = end_ns
        if self._end_ns is not None:
            self._end_ns = end_ns

    # ------------------------------------------------------------------------------------------------ cursor

    @property
    def cursor_column(self) -> int | None:
        """Column of the cursor; may lie out of sight."""
        return None if self.cursor_ns is None else self.scale.column(self.cursor_ns)

    @property
    def cursor_instant(self) -> int | None:
        """The instant whose values the cursor reads: the middle of its column."""
        return None if self.cursor_ns is None else self.cursor_ns + self.scale.cell_ns // 2

    def put_cursor(self, column: int) -> None:
        """Place the cursor on a column."""
        scale = self.scale
        self.cursor_ns = scale.time(scale.clamp(column))

    def move_cursor(self, columns: int) -> None:
        """Move the cursor, and the end of the range that is being selected.

        The window follows at its edges.
        """
        column = self.cursor_column
        scale = self.scale
        column = scale.columns - 1 if column is None else column + columns
        if not 0 <= column < scale.columns and (self.selecting or not self.live):
            shift = column if column < 0 else column - scale.columns + 1
            end_ns = max(self.end_ns + shift * scale.cell_ns, self.oldest_ns + scale.cell_ns)
            end_ns = min(end_ns, self.newest_ns)
            if self._held_ns is not None:
                self._held_ns = end_ns
            else:
                self._end_ns = end_ns
            self.cursor_ns = min(max(scale.time(column), self.oldest_ns), self.newest_ns)
        else:
            self.put_cursor(column)
        if self.selecting:
            self._moving_ns = self.cursor_ns

    # ------------------------------------------------------------------------------------------------ range

    @property
    def selecting(self) -> bool:
        """Whether a range is being made and not pinned yet."""
        return self._anchor_ns is not None

    @property
    def range(self) -> tuple[int, int] | None:
        """The range being made, else the pinned one."""
        if self._anchor_ns is None or self._moving_ns is None:
            return self.pinned
        scale = self.scale
        columns = sorted((scale.column(self._anchor_ns), scale.column(self._moving_ns)))
        return max(scale.time(columns[0]), 0), scale.time(columns[1] + 1)

    def begin(self, anchor_column: int, moving_column: int | None = None) -> None:
        """Start a range at a column; the window stands until it is pinned or dropped."""
        if self._held_ns is None:
            self._held_ns = self.end_ns
        scale = self.scale
        # Not clamped: the far edge of a pinned range that is adjusted may be out of sight.
        self._anchor_ns = scale.time(anchor_column)
        self.extend(anchor_column if moving_column is None else moving_column)

    def extend(self, column: int) -> None:
        """Move the other end of the range to a column."""
        scale = self.scale
        self._moving_ns = scale.time(scale.clamp(column))

    def swap(self) -> None:
        """Move the other end from now on; a pinned range is taken up again by its end."""
        if self.selecting:
            self._anchor_ns, self._moving_ns = self._moving_ns, self._anchor_ns
            self.cursor_ns = self._moving_ns
        elif self.pinned is not None:
            scale = self.scale
            start, end = self.pinned
            self.begin(scale.column(start), scale.column(end - 1))
            self.cursor_ns = self._moving_ns

    def pin(self) -> tuple[int, int] | None:
        """Make the range that is being selected the pinned one, and return it."""
        if not self.selecting:
            return None
        self.pinned = self.range
        self.drop()
        return self.pinned

    def drop(self) -> None:
        """Give up the range that is being selected; the pinned one stays."""
        self._anchor_ns = self._moving_ns = self._held_ns = None
