"""As far from all honest updates together as the most remote of them."""

from __future__ import annotations

from torch import Tensor

from crfl_attacks.hidden import Hidden


class MinSum(Hidden):
    """Min-sum (Shejwalkar & Houmansadr, 2021): hides from rules that add up distances, as Krum does.

    All attackers submit the mean of the honest updates plus the largest multiple of a perturbation that keeps the sum
    of squared distances to the honest updates within the largest such sum of an honest one.
    """

    def remoteness(self, squared: Tensor) -> Tensor:
        """The sum of squared distances."""
        return squared.sum(-1)
