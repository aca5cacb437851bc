"""The repeated median of slopes (Siegel, 1982) of many sorted sequences at once, without sorting all slopes.

For values `y_0 <= ... <= y_{n-1}` it is the median over i of `m_i = median_{j != i} (y_j - y_i) / (j - i)`. A pair `i <
j` has a slope below t where `y_j - t j < y_i - t i`, so comparing the places of `y_i - t i` in their order counts, for
every i, how many of its slopes are below t, and tells on which side of t its median lies. A few such t leave few `m_i`
that can be the one in the middle; only those are computed, with the arithmetic of the definition. Comparing places is
a hundred times cheaper than sorting slopes (Matousek, Mount and Netanyahu, 1998, count inversions to the same end).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.floating]
Flags = NDArray[np.bool_]

SORT_ALL_UP_TO = 48
"""Up to this number of values, all slopes are sorted: counting would not be faster."""
SAMPLED_MEDIANS = 12
"""Medians that are computed to guess where the one in the middle lies."""
FIRST_GUESS_OFFSET = 0.08
"""Distance of the first two guesses from the middle of the samples, as a share of them."""
MORE_GUESSES = 4
"""Guesses after the first two."""
GUESS_MARGIN = 0.1
"""Distance of a guess beyond the middle, as a share of what is left."""
FEW_CANDIDATES = 10
"""Medians that are not worth another guess."""
ROWS_AT_ONCE = 64
"""Medians that are computed together. With more, allocating memory takes as long as sorting."""
SECTION_LENGTH = 250
"""Neighbours that are compared one by one; at most 256, so that a byte can count them."""


def median_slopes(across: Numbers) -> Numbers:
    """Compute the repeated median of every row, (b, n) -> (b,).

    The values of a row are sorted and taken against 0..n-1.
    """
    count = across.shape[1]
    medians = np.zeros_like(across)
    unknown = np.ones(across.shape, bool)
    if count > SORT_ALL_UP_TO:
        medians, unknown = MedianSearch(across).narrow()
    where = np.nonzero(unknown)
    medians[where] = point_medians(across, *where)
    medians.sort(axis=1)
    return row_medians(medians)


def point_medians(across: Numbers, rows: NDArray[np.intp], places: NDArray[np.intp]) -> Numbers:
    """Compute the median slope through some points of some rows.

    For place i this is `median_{j != i} (y_j - y_i) / (j - i)`. At most `ROWS_AT_ONCE` rows are in memory at once.
    """
    found = np.empty(len(rows), across.dtype)
    for first in range(0, len(rows), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        found[part] = medians_at(across, rows[part], places[part])
    return found


def medians_at(across: Numbers, rows: NDArray[np.intp], places: NDArray[np.intp]) -> Numbers:
    """Compute the medians of `point_medians` for one block."""
    slopes = across[rows]
    each = np.arange(len(rows))
    steps = np.arange(across.shape[1], dtype=across.dtype) - places[:, None].astype(across.dtype)
    steps[each, places] = 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        slopes -= across[rows, places][:, None]
        slopes /= steps
    slopes[each, places] = np.inf  # a point has no slope to itself: last in the order, then left out
    slopes.sort(axis=1)
    return row_medians(slopes[:, :-1])


def row_medians(rows: Numbers) -> Numbers:
    """Return the median of sorted rows.

    It is the mean of the middle two if their number is even.
    """
    count = rows.shape[1]
    first = rows[:, (count - 1) // 2]
    second = rows[:, count // 2]
    return first if count % 2 else (first + second) / rows.dtype.type(2)


def count_slopes_below(across: Numbers, guess: NDArray[np.float64]) -> NDArray[np.int32]:
    """Count each place's slopes below the guess of its row, (b, n).

    Let `r_i` be the place of i in the order, and `f_i` those behind i that come before it there. Then `r_i - f_i` of
    the `i` in front of it come before it as well, the others after it: `f_i + i - (r_i - f_i)` slopes are below.
    """
    count = across.shape[1]
    seen = across - guess[:, None] * np.arange(count, dtype=np.float64)
    order = seen.argsort(axis=1)
    places = np.empty(across.shape, np.int16 if count <= np.iinfo(np.int16).max else np.int32)
    np.put_along_axis(places, order, np.arange(count, dtype=places.dtype)[None], axis=1)
    return 2 * count_inversions(places, order) + (np.arange(count, dtype=np.int32) - places)


def count_inversions(places: NDArray[np.signedinteger], order: NDArray[np.intp]) -> NDArray[np.int32]:
    """Count each place's later places that come before it, (b, n).

    Later means later in the row, and before means before in the order. Pairs within a section of the row are compared
    one by one, all that have the same distance at once. For later sections, a run along the order counts the places
    that belong to each.
    """
    rows, count = places.shape
    sections = -(-count // SECTION_LENGTH)
    padded = np.full(
        (sections * SECTION_LENGTH, rows), count, places.dtype
    )  # (n, b): pairs at one distance lie side by side
    padded[:count] = places.T
    stacked = padded.reshape(sections, SECTION_LENGTH, rows)
    few = np.zeros(stacked.shape, np.uint8)
    fall = np.empty(stacked.shape, bool)
    for distance in range(1, min(count, SECTION_LENGTH)):
        here = fall[:, distance:]
        np.less(stacked[:, distance:], stacked[:, :-distance], out=here)
        few[:, :-distance] += here.view(np.uint8)
    found = few.reshape(-1, rows)[:count].T.astype(np.int32)
    section = (order // SECTION_LENGTH).astype(places.dtype)
    before = np.empty_like(places)
    for number in range(sections - 1):
        np.cumsum(section > number, axis=1, dtype=places.dtype, out=before)
        mine = slice(number * SECTION_LENGTH, (number + 1) * SECTION_LENGTH)
        found[:, mine] += np.take_along_axis(before, places[:, mine], axis=1)
    return found


class MedianSearch:
    """Search for two slopes that the median of medians lies between, row by row."""

    def __init__(self, across: Numbers) -> None:
        self.across = across
        rows, self.count = across.shape
        self.low = np.full(rows, -np.inf)
        self.high = np.full(rows, np.inf)
        self.under, self.over = np.zeros(rows, np.int64), np.full(rows, self.count)
        self.below = np.zeros(across.shape, bool)
        self.above = np.zeros(across.shape, bool)
        places = ((np.arange(SAMPLED_MEDIANS) + 0.5) * self.count / SAMPLED_MEDIANS).astype(np.intp)
        found = point_medians(across, np.repeat(np.arange(rows), SAMPLED_MEDIANS), np.tile(places, rows))
        self.samples = np.sort(found.reshape(rows, SAMPLED_MEDIANS), axis=1).astype(np.float64)
        self.rounding = 4.0 * float(np.finfo(across.dtype).eps)

    def narrow(self) -> tuple[Numbers, Flags]:
        """Return the known medians and the flags of the unknown ones.

        Medians that do not matter are infinite.
        """
        for share, side in ((0.5 - FIRST_GUESS_OFFSET, -1.0), (0.5 + FIRST_GUESS_OFFSET, 1.0)):
            guess = self.samples[:, int(share * SAMPLED_MEDIANS)]
            self._apply_guess(guess + side * (self.rounding * np.abs(guess) + np.finfo(np.float64).tiny))
        for _ in range(MORE_GUESSES):
            self._apply_guess(self._next_guess())
        unknown = ~(self.below | self.above)
        medians = np.where(self.below, -np.inf, np.inf).astype(self.across.dtype)
        same = self._is_narrow()
        values = np.clip(self.samples[same, SAMPLED_MEDIANS // 2], self.low[same], self.high[same]).astype(
            self.across.dtype
        )
        medians[same] = np.where(unknown[same], values[:, None], medians[same])
        unknown[same] = False
        return medians, unknown

    def _is_narrow(self) -> Flags:
        """Find rows whose ends are equal but for rounding.

        This happens among equal values. All medians between the ends are equal too.
        """
        width = 3.0 * self.rounding * np.maximum(np.abs(self.low), np.abs(self.high)) + 4.0 * np.finfo(np.float64).tiny
        with np.errstate(invalid="ignore"):
            near: Flags = self.high - self.low <= width
        near &= np.isfinite(self.low) & np.isfinite(self.high)
        return near

    def _next_guess(self) -> NDArray[np.float64]:
        """Compute the next guess.

        It lies on a line between both ends, a little beyond the middle, where more candidates are left. Without one of
        the ends, it is a sample further out. It is NaN where another guess is not worth it.
        """
        wanted = self.count / 2.0
        down = wanted - self.under
        up = self.over - wanted
        both = down + up
        with np.errstate(invalid="ignore", divide="ignore"):
            margin = np.maximum(FEW_CANDIDATES / 4.0, GUESS_MARGIN * both)
            aim = np.where(down > up, down - margin, down + margin) / both
            guess = self.low + (self.high - self.low) * np.clip(aim, 0.02, 0.98)
        guess = np.where(np.isfinite(self.low), guess, self.samples[:, SAMPLED_MEDIANS // 8])
        guess = np.where(np.isfinite(self.high), guess, self.samples[:, -SAMPLED_MEDIANS // 8])
        return np.where((both > FEW_CANDIDATES) & ~self._is_narrow(), guess, np.nan)

    def _apply_guess(self, guess: NDArray[np.float64]) -> None:
        """Count the slopes below a guess for every row.

        The guess becomes an end of the row's interval where that is certain.
        """
        asked = np.flatnonzero(np.isfinite(guess))
        if not len(asked):
            return
        slopes = self.count - 1
        guess = guess[asked]
        counts = count_slopes_below(self.across[asked], guess)
        below = counts >= slopes // 2 + 1
        above = counts < (slopes + 1) // 2
        is_low = self.count - above.sum(axis=1) <= (self.count - 1) // 2
        is_high = below.sum(axis=1) >= self.count // 2 + 1
        is_low &= guess > self.low[asked]
        is_high &= guess < self.high[asked]
        rows = asked[is_low]
        self.low[rows] = guess[is_low]
        self.below[rows] = below[is_low]
        self.under[rows] = below[is_low].sum(axis=1)
        rows = asked[is_high]
        self.high[rows] = guess[is_high]
        self.above[rows] = above[is_high]
        self.over[rows] = self.count - above[is_high].sum(axis=1)
