"""Updates that turn the aggregate against the descent direction."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from crfl_attacks.byzantine import Byzantine
from crfl_core.extend import AttackerView


class InnerProductManipulation(Byzantine):
    """Fall of empires (Xie et al., 2019): all attackers submit -epsilon times the mean of the honest updates.

    A mean over everybody then has a negative inner product with the honest one as soon as epsilon exceeds the ratio of
    honest to malicious weight. A small epsilon is nearer to the honest updates than they are to each other.
    """

    epsilon: float = Field(0.5, gt=0, description="length in units of the honest mean")

    def direction(self, known: AttackerView) -> Tensor:
        """Against the honest mean; against their own where there are only attackers."""
        values = known.honest.values if len(known.honest.values) else known.own_updates
        return -self.epsilon * values.mean(0)
