"""As far from the farthest honest update as two honest ones are apart."""

from __future__ import annotations

from torch import Tensor

from crfl_attacks.hidden import Hidden


class MinMax(Hidden):
    """Min-max (Shejwalkar & Houmansadr, 2021): hides from rules that look at the largest distances.

    All attackers submit the mean of the honest updates plus the largest multiple of a perturbation that keeps the
    largest distance to an honest update within the largest distance between two honest ones.
    """

    def remoteness(self, squared: Tensor) -> Tensor:
        """The largest squared distance."""
        return squared.amax(-1)
