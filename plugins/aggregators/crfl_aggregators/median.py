"""Coordinate-wise median."""

from __future__ import annotations

from crfl_aggregators.trimmed_mean import Trimming


class Median(Trimming):
    """Median of every coordinate (Yin et al., 2018).

    `aggregate_j = median_i u_ij`; for an even number of clients the mean of the two in the middle. It is the trimmed
    mean that trims as much as it can.
    """

    def trimmed(self, rows: int) -> int:
        """All but one or two."""
        return (rows - 1) // 2
