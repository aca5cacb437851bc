"""Updates that are optimised through the server's own rule."""

from __future__ import annotations

from typing import Annotated, ClassVar, get_args

import torch
from pydantic import Field
from torch import Tensor

from crfl_attacks.byzantine import Byzantine
from crfl_attacks.min_max import Perturbation, perturbation
from crfl_core.extend import Aggregator, AttackerView, Knowledge, PluginField


class Adaptive(Byzantine):
    """Tailored to a rule (Fang et al., 2020; Shejwalkar & Houmansadr, 2021): the aggregate goes back as far as it can.

    Attackers know the rule and all updates. They all submit `mean + gamma p` with the perturbation p and the gamma for
    which the aggregate, through the run's own chain, lies farthest against the mean of the honest updates. gamma is
    searched over powers of two and then between the best of them and the next.
    """

    knowledge: ClassVar[Knowledge] = "rule"

    rule: Annotated[Aggregator, PluginField("aggregator")] | None = Field(
        None, description="the rule that attackers believe in; unset: the run's own aggregation, stages included"
    )
    perturbation: Perturbation | None = Field(None, description="as in min-max; unset: whichever does most")
    reach: float = Field(
        10.0, gt=0, description="longest perturbation tried, in units of the largest distance between honest updates"
    )
    halvings: int = Field(12, ge=1, description="how often it is halved, and then how many steps refine the best")

    def direction(self, known: AttackerView) -> Tensor:
        """Return the best candidate that was tried."""
        honest = known.honest.values
        if not len(honest):
            return -known.own_updates
        kinds: tuple[Perturbation, ...] = get_args(Perturbation) if self.perturbation is None else (self.perturbation,)
        tried = [self._best(known, perturbation(honest, kind)) for kind in kinds]
        return max(tried, key=lambda one: one[0])[1]

    def _best(self, known: AttackerView, push: Tensor) -> tuple[float, Tensor]:
        """Find the best multiple of one perturbation.

        Return how far the aggregate goes back, and the update.
        """
        honest = known.honest.values
        mean = honest.mean(0)
        length = float(push.norm())
        longest = self.reach * float(torch.cdist(honest, honest).max()) / length if length > 0 else 0.0

        def harm(gamma: float) -> float:
            candidates = (mean + gamma * push).expand_as(known.own_updates)
            return -float(known.aggregate(self.apply_scale(known, candidates), self.rule).double() @ mean.double())

        found = {gamma: harm(gamma) for gamma in (0.0, *(longest / 2**power for power in range(self.halvings)))}
        best = max(found, key=lambda gamma: found[gamma])
        low = best
        high = min(2 * best, longest)
        for _ in range(self.halvings if low < high else 0):
            middle = (low + high) / 2
            found[middle] = harm(middle)
            low, high = (middle, high) if found[middle] >= found[low] else (low, middle)
        best = max(found, key=lambda gamma: found[gamma])
        return found[best], mean + best * push

    def apply_scale(self, known: AttackerView, candidates: Tensor) -> Tensor:
        """Multiply candidates by the attackers' scales, as they arrive at the server."""
        return self.scales(known.weights)[:, None].to(candidates) * candidates
