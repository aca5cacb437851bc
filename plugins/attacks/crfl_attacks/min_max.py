"""Min-max and min-sum: attacks that push against the honest mean as far as distances between updates hide it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from crfl_attacks.byzantine import Byzantine
from crfl_core.extend import AttackerView


class DistanceConstrained(Byzantine):
    """Attackers that submit `mean + gamma p`, with the largest gamma that distances hide.

    p points away from the honest mean. No attacker is farther from the others than an honest update is; `remoteness`
    says what that means.
    """

    perturbation: Perturbation = Field(
        "unit", description="p: minus the honest mean at length 1, minus its standard deviation, or minus its signs"
    )

    @abstractmethod
    def remoteness(self, squared: Tensor) -> Tensor:
        """Measure how far an update is from all honest ones.

        The squared distances (..., n) become one number each, (...).
        """

    def direction(self, known: AttackerView) -> Tensor:
        """Return the perturbed mean."""
        honest = known.honest.values
        if not len(honest):  # no honest client to hide among
            return -known.own_updates
        push = perturbation(honest, self.perturbation)
        return honest.mean(0) + self.gamma(honest.double(), push.double()) * push

    def gamma(self, honest: Tensor, push: Tensor) -> float:
        """Find the largest factor that hides.

        `||mean + gamma p - u_i||^2` is quadratic in it for every honest u_i.
        """
        away = honest.mean(0) - honest
        constant = away.square().sum(1)
        slope = away @ push
        curvature = push.square().sum()
        squared = torch.cdist(honest, honest, compute_mode="donot_use_mm_for_euclid_dist").square()
        most = self.remoteness(squared).max()
        start = float((squared.max() / curvature).sqrt()) if bool(curvature > 0) else 0.0  # twice that is too far

        def hides(factor: float) -> bool:
            return bool(self.remoteness(constant + 2 * factor * slope + factor**2 * curvature) <= most)

        return search_largest(hides, start)


class MinMax(DistanceConstrained):
    """Min-max (Shejwalkar & Houmansadr, 2021): hides from rules that look at the largest distances.

    All attackers submit the mean of the honest updates plus the largest multiple of a perturbation that keeps the
    largest distance to an honest update within the largest distance between two honest ones.
    """

    def remoteness(self, squared: Tensor) -> Tensor:
        """Return the largest squared distance."""
        return squared.amax(-1)


class MinSum(DistanceConstrained):
    """Min-sum (Shejwalkar & Houmansadr, 2021): hides from rules that add up distances, as Krum does.

    All attackers submit the mean of the honest updates plus the largest multiple of a perturbation that keeps the sum
    of squared distances to the honest updates within the largest such sum of an honest one.
    """

    def remoteness(self, squared: Tensor) -> Tensor:
        """Return the sum of squared distances."""
        return squared.sum(-1)


Perturbation = Literal["unit", "std", "sign"]
"""Against the mean of the honest updates: the mean itself at length 1, their spread, or the signs of the mean."""


SEARCH_TOLERANCE = 1e-6


def perturbation(honest: Tensor, kind: Perturbation) -> Tensor:
    """Compute the direction of a kind for honest updates (n, P); (P,).

    Kinds are those of Shejwalkar & Houmansadr (2021, section IV-A).
    """
    mean = honest.mean(0)
    if kind == "std":
        return -honest.std(0, correction=0)
    if kind == "sign":
        return -mean.sign()
    length = mean.norm()
    return -mean / length if bool(length > 0) else -mean


def search_largest(allowed: Callable[[float], bool], start: float) -> float:
    """Search the largest allowed gamma below `2 start`, up to a tolerance.

    0 must be allowed, and all that lies below an allowed gamma.

    The search of the paper (Algorithm 1): forward where it is allowed and back where it is not, by steps that halve,
    until the last success is near. What is returned was tried, or is 0.

    >>> round(search_largest(lambda gamma: gamma**2 <= 3.0, start=1.0), 5)
    1.73205
    """
    gamma = start
    step = start
    success = 0.0
    while abs(gamma - success) > SEARCH_TOLERANCE * start:
        step /= 2
        if allowed(gamma):
            success = gamma
            gamma += step
        else:
            gamma -= step
    return success
