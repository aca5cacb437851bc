"""From the drift that a prediction tolerates to the answer at each level."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core.plugin_api.certificate import ABSTAIN, Guarantee, Level

Array = NDArray[np.float64]


class DriftCosts(Protocol):
    """The drift that an attack causes, as a function of what is asked for.

    `rounding` is what floating-point arithmetic adds to any of them, `terms` how many numbers were added up for one.
    """

    @property
    def rounding(self) -> float:
        """What rounding adds."""

    @property
    def terms(self) -> int:
        """How many numbers were added up."""

    def feature_cost(self, delta: Array) -> Array:
        """For perturbations of inputs by at most delta."""

    def sample_cost(self, ratio: Array) -> Array:
        """For a share of replaced samples."""

    def sample_costs(self) -> Array:
        """For 0, 1, 2, ... replaced samples of every attacker."""

    def client_costs(self) -> Array:
        """For 0, 1, 2, ... arbitrary clients."""


def build_guarantee(
    costs: DriftCosts, level: Level, first: NDArray[np.int64], threshold: Array, p_a: Array, p_b: Array
) -> Guarantee:
    """The answer for every sample; `threshold` is the drift below which nothing changes."""
    drift = np.asarray(formulas.largest_attack(threshold, rounding=costs.rounding, terms=costs.terms))
    count: Array | None = None
    if level == "feature":
        radius = formulas.feature_radius(drift, costs.feature_cost)
    elif level == "sample":
        radius = formulas.sample_ratio(drift, costs.sample_cost)
        count = np.asarray(formulas.sample_count(drift, costs.sample_costs()))
    else:
        radius = count = np.asarray(formulas.client_count(drift, costs.client_costs()))
    with np.errstate(divide="ignore", invalid="ignore"):
        log_radius = np.log(radius)
    certain = ~np.isnan(drift)
    return Guarantee(
        prediction=np.where(certain, first, ABSTAIN),
        radius=np.asarray(radius),
        log_radius=log_radius,
        p_a=p_a,
        p_b=p_b,
        count=count,
    )
