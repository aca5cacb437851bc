"""The levels of a guarantee: what a radius counts, and how a tolerated drift becomes a radius at each level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core.plugin_api.certificate import ABSTAIN, Guarantee, Level

Array = NDArray[np.float64]


class LevelWords(NamedTuple):
    """Words of reports for a radius: its unit, a heading for a row of radii, and its exact meaning."""

    unit: str
    heading: str
    meaning: str


LEVEL_WORDS: Mapping[str, LevelWords] = {
    "client": LevelWords("clients", "clients that attack", "malicious clients"),
    "sample": LevelWords("poison ratio", "poisoned share of a batch", "poisoned share of an attacker's samples"),
    "feature": LevelWords("radius", "change of a poisoned input", "change of a poisoned input, Euclidean norm"),
    "backdoor": LevelWords("trigger norm", "norm of a trigger", "trigger on the test input, Euclidean norm"),
}
"""Words for the radius of each level, strongest attackers first."""


class DriftCosts(Protocol):
    """Drift that an attack causes in parameter space, as a function of the size of the attack.

    `rounding` is what floating-point arithmetic adds to each drift, `terms` how many numbers were added up for one.
    """

    @property
    def rounding(self) -> float:
        """Return the drift that rounding adds."""

    @property
    def terms(self) -> int:
        """Return the largest number of terms in a sum."""

    def feature_cost(self, delta: Array) -> Array:
        """Return the drift for every bound delta on moved inputs.

        Poisoned inputs move by at most delta.
        """

    def sample_cost(self, ratio: Array) -> Array:
        """Return the drift for every replaced share of the batches."""

    def sample_costs(self) -> Array:
        """Return the drift if 0, 1, 2, ... samples are replaced.

        They are samples of every attacker.
        """

    def client_costs(self) -> Array:
        """Return the drift caused by 0, 1, 2, ... arbitrary clients."""


def build_guarantee(
    costs: DriftCosts, level: Level, first: NDArray[np.int64], threshold: Array, p_a: Array, p_b: Array
) -> Guarantee:
    """Turn tolerated drifts into a guarantee for every sample at one level.

    `threshold` (m,) is the drift below which the prediction `first` does not change. An attack of a size up to the
    radius causes a smaller drift, rounding included. Samples without any such attack abstain.
    """
    drift = np.asarray(formulas.largest_attack(threshold, rounding=costs.rounding, terms=costs.terms))
    count: Array | None = None
    if level == "feature":
        radius = formulas.feature_radius(drift, costs.feature_cost)
    elif level == "sample":
        radius = formulas.sample_ratio(drift, costs.sample_cost)
        count = np.asarray(formulas.sample_count(drift, costs.sample_costs()))
    else:
        radius = np.asarray(formulas.client_count(drift, costs.client_costs()))
        count = radius
    with np.errstate(divide="ignore", invalid="ignore"):
        log_radius = np.log(radius)
    is_certain = ~np.isnan(drift)
    return Guarantee(
        prediction=np.where(is_certain, first, ABSTAIN),
        radius=np.asarray(radius),
        log_radius=log_radius,
        p_a=p_a,
        p_b=p_b,
        count=count,
    )
