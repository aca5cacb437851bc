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

FEW = 48
"""Up to so many values, all slopes are sorted: counting would not be faster."""
SAMPLES = 12
"""Medians that are computed to guess where the one in the middle lies."""
FIRST = 0.08
"""How far from the middle of the samples, as a share of them, the first two guesses are."""
TRIES = 4
"""Guesses after the first two."""
MARGIN = 0.1
"""How far beyond the middle a guess is, as a share of what is left."""
LEFT = 10
"""Medians that are not worth another guess."""
ROWS_AT_ONCE = 64
"""Medians that are computed together. With more, memory is asked for anew each time, which takes as long as sorting."""
SECTION = 250
"""Neighbours that are compared one by one; at most 256, so that a byte can count them."""


def median_slopes(across: Numbers) -> Numbers:
    """The repeated median of every row of sorted values against 0..n-1, (b, n) -> (b,)."""
    count = across.shape[1]
    medians = np.zeros_like(across)
    unknown = np.ones(across.shape, bool)
    if count > FEW:
        medians, unknown = Search(across).narrowed()
    where = np.nonzero(unknown)
    medians[where] = inner_medians(across, *where)
    medians.sort(axis=1)
    return middle(medians)


def inner_medians(across: Numbers, rows: NDArray[np.intp], places: NDArray[np.intp]) -> Numbers:
    """`median_{j != i} (y_j - y_i) / (j - i)` for some rows and places i, not all of them in memory at once."""
    found = np.empty(len(rows), across.dtype)
    for first in range(0, len(rows), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        found[part] = medians_at(across, rows[part], places[part])
    return found


def medians_at(across: Numbers, rows: NDArray[np.intp], places: NDArray[np.intp]) -> Numbers:
    """The same, all at once."""
    slopes = across[rows]
    each = np.arange(len(rows))
    steps = np.arange(across.shape[1], dtype=across.dtype) - places[:, None].astype(across.dtype)
    steps[each, places] = 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        slopes -= across[rows, places][:, None]
        slopes /= steps
    slopes[each, places] = np.inf  # a point has no slope to itself: last in the order, then left out
    slopes.sort(axis=1)
    return middle(slopes[:, :-1])


def middle(rows: Numbers) -> Numbers:
    """The median of sorted rows, the mean of the middle two if their number is even."""
    count = rows.shape[1]
    first = rows[:, (count - 1) // 2]
    second = rows[:, count // 2]
    return first if count % 2 else (first + second) / rows.dtype.type(2)


def slopes_below(across: Numbers, guess: NDArray[np.float64]) -> NDArray[np.int32]:
    """How many slopes of each place are below the guess of its row, (b, n).

    Let `r_i` be the place of i in the order, and `f_i` those behind i that come before it there. Then `r_i - f_i` of
    the `i` in front of it come before it as well, the others after it: `f_i + i - (r_i - f_i)` slopes are below.
    """
    count = across.shape[1]
    seen = across - guess[:, None] * np.arange(count, dtype=np.float64)
    order = seen.argsort(axis=1)
    places = np.empty(across.shape, np.int16 if count <= np.iinfo(np.int16).max else np.int32)
    np.put_along_axis(places, order, np.arange(count, dtype=places.dtype)[None], axis=1)
    return 2 * falls(places, order) + (np.arange(count, dtype=np.int32) - places)


def falls(places: NDArray[np.signedinteger], order: NDArray[np.intp]) -> NDArray[np.int32]:
    """How many behind each come before it in the order that has them at these places, (b, n).

    Pairs within a section of the row are compared one by one, all that have the same distance at once. Of later
    sections, running along the order counts who belongs to one.
    """
    rows, count = places.shape
    sections = -(-count // SECTION)
    padded = np.full((sections * SECTION, rows), count, places.dtype)  # (n, b): pairs at one distance lie side by side
    padded[:count] = places.T
    stacked = padded.reshape(sections, SECTION, rows)
    few = np.zeros(stacked.shape, np.uint8)
    fall = np.empty(stacked.shape, bool)
    for distance in range(1, min(count, SECTION)):
        here = fall[:, distance:]
        np.less(stacked[:, distance:], stacked[:, :-distance], out=here)
        few[:, :-distance] += here.view(np.uint8)
    found = few.reshape(-1, rows)[:count].T.astype(np.int32)
    section = (order // SECTION).astype(places.dtype)
    before = np.empty_like(places)
    for number in range(sections - 1):
        np.cumsum(section > number, axis=1, dtype=places.dtype, out=before)
        mine = slice(number * SECTION, (number + 1) * SECTION)
        found[:, mine] += np.take_along_axis(before, places[:, mine], axis=1)
    return found


class Search:
    """Between which two slopes the median of medians lies, row by row, and who else may lie there."""

    def __init__(self, across: Numbers) -> None:
        self.across = across
        rows, self.count = across.shape
        self.low = np.full(rows, -np.inf)
        self.high = np.full(rows, np.inf)
        self.under, self.over = np.zeros(rows, np.int64), np.full(rows, self.count)
        self.below = np.zeros(across.shape, bool)
        self.above = np.zeros(across.shape, bool)
        places = ((np.arange(SAMPLES) + 0.5) * self.count / SAMPLES).astype(np.intp)
        found = inner_medians(across, np.repeat(np.arange(rows), SAMPLES), np.tile(places, rows))
        self.samples = np.sort(found.reshape(rows, SAMPLES), axis=1).astype(np.float64)
        self.rounding = 4.0 * float(np.finfo(across.dtype).eps)

    def narrowed(self) -> tuple[Numbers, Flags]:
        """The medians as far as they are told apart, infinite where they do not matter; and who is to be computed."""
        for share, side in ((0.5 - FIRST, -1.0), (0.5 + FIRST, 1.0)):
            guess = self.samples[:, int(share * SAMPLES)]
            self._try(guess + side * (self.rounding * np.abs(guess) + np.finfo(np.float64).tiny))
        for _ in range(TRIES):
            self._try(self._between())
        unknown = ~(self.below | self.above)
        medians = np.where(self.below, -np.inf, np.inf).astype(self.across.dtype)
        same = self._same()
        values = np.clip(self.samples[same, SAMPLES // 2], self.low[same], self.high[same]).astype(self.across.dtype)
        medians[same] = np.where(unknown[same], values[:, None], medians[same])
        unknown[same] = False
        return medians, unknown

    def _same(self) -> Flags:
        """Rows whose ends are the same but for rounding: so are all medians between them, as among equal values."""
        width = 3.0 * self.rounding * np.maximum(np.abs(self.low), np.abs(self.high)) + 4.0 * np.finfo(np.float64).tiny
        with np.errstate(invalid="ignore"):
            near: Flags = self.high - self.low <= width
        near &= np.isfinite(self.low) & np.isfinite(self.high)
        return near

    def _between(self) -> NDArray[np.float64]:
        """The next guess: on a line between both ends, a little beyond the middle on the side where more are left.

        Without one of the ends, a sample further out; NaN where another guess is not worth it.
        """
        wanted = self.count / 2.0
        down = wanted - self.under
        up = self.over - wanted
        both = down + up
        with np.errstate(invalid="ignore", divide="ignore"):
            margin = np.maximum(LEFT / 4.0, MARGIN * both)
            aim = np.where(down > up, down - margin, down + margin) / both
            guess = self.low + (self.high - self.low) * np.clip(aim, 0.02, 0.98)
        guess = np.where(np.isfinite(self.low), guess, self.samples[:, SAMPLES // 8])
        guess = np.where(np.isfinite(self.high), guess, self.samples[:, -SAMPLES // 8])
        return np.where((both > LEFT) & ~self._same(), guess, np.nan)

    def _try(self, guess: NDArray[np.float64]) -> None:
        """Count with a guess for every row, and let it be an end where that is certain."""
        asked = np.flatnonzero(np.isfinite(guess))
        if not len(asked):
            return
        slopes = self.count - 1
        guess = guess[asked]
        counts = slopes_below(self.across[asked], guess)
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
