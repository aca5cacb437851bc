"""What min-max and min-sum share: a perturbed mean that is no farther from honest updates than these can be."""

from __future__ import annotations

from abc import abstractmethod

import torch
from pydantic import Field
from torch import Tensor

from crfl_attacks.byzantine import Byzantine
from crfl_attacks.perturbations import Perturbation, largest, perturbation
from crfl_core.extend import AttackerView


class Hidden(Byzantine):
    """All attackers submit `mean + gamma p`, where p points away from the honest mean and gamma is as large as hides.

    The most that an honest update is away from the others is not exceeded; `remoteness` says what that means.
    """

    perturbation: Perturbation = Field(
        "unit", description="p: minus the honest mean at length 1, minus its standard deviation, or minus its signs"
    )

    @abstractmethod
    def remoteness(self, squared: Tensor) -> Tensor:
        """How far something is from all honest updates, given its squared distances: (..., n) -> (...)."""

    def direction(self, known: AttackerView) -> Tensor:
        """The perturbed mean."""
        honest = known.honest.values
        if not len(honest):  # nobody to hide among
            return -known.own_updates
        push = perturbation(honest, self.perturbation)
        return honest.mean(0) + self.gamma(honest.double(), push.double()) * push

    def gamma(self, honest: Tensor, push: Tensor) -> float:
        """The largest factor that hides: `||mean + gamma p - u_i||^2` is quadratic in it for every honest u_i."""
        away = honest.mean(0) - honest
        constant = away.square().sum(1)
        slope = away @ push
        curvature = push.square().sum()
        squared = torch.cdist(honest, honest, compute_mode="donot_use_mm_for_euclid_dist").square()
        most = self.remoteness(squared).max()
        start = float((squared.max() / curvature).sqrt()) if bool(curvature > 0) else 0.0  # twice that is too far

        def hides(factor: float) -> bool:
            return bool(self.remoteness(constant + 2 * factor * slope + factor**2 * curvature) <= most)

        return largest(hides, start)
