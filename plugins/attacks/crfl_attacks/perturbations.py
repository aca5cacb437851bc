"""Directions away from what honest clients want, and the search for how far to go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

Perturbation = Literal["unit", "std", "sign"]
"""Against the mean of the honest updates: the mean itself at length 1, their spread, or the signs of the mean."""

TOLERANCE = 1e-6


def perturbation(honest: Tensor, kind: Perturbation) -> Tensor:
    """The direction of a kind for honest updates (n, P), as in Shejwalkar & Houmansadr (2021, section IV-A); (P,)."""
    mean = honest.mean(0)
    if kind == "std":
        return -honest.std(0, correction=0)
    if kind == "sign":
        return -mean.sign()
    length = mean.norm()
    return -mean / length if bool(length > 0) else -mean


def largest(allowed: Callable[[float], bool], start: float) -> float:
    """About the largest gamma below `2 start` that is allowed, given that 0 is and that no gap lies between.

    The search of the paper (Algorithm 1): go on where it is allowed and back where it is not, by steps that halve,
    until the last success is near. What is returned was tried, or is 0.

    >>> round(largest(lambda gamma: gamma**2 <= 3.0, start=1.0), 5)
    1.73205
    """
    gamma = start
    step = start
    success = 0.0
    while abs(gamma - success) > TOLERANCE * start:
        step /= 2
        if allowed(gamma):
            success = gamma
            gamma += step
        else:
            gamma -= step
    return success
