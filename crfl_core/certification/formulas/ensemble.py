"""How many clients an ensemble over random subsets stands: docs/certificates/every-round.md#random-subsets.

Ensemble federated learning (Cao, Jia and Gong 2021): a model is trained by k of n clients, and the class wins that is
predicted by most of the `binom(n, k)` models that there could be. A few hundred of them are trained and their votes
counted; `confidence` turns counts into the bounds that are needed here.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.rounding import UNIT

WHOLE = 2**51
"""Up to this number of subsets, shares of them are counted in whole subsets."""


def ensemble_count(p_a: ArrayLike, p_b: ArrayLike, clients: int, subset: int) -> Array:
    """The largest number m of clients that may do anything without changing what the ensemble predicts.

    `p_a` bounds the share of subsets that vote for the predicted class from below, `p_b` that of any other class from
    above, and `subset` is k. Only subsets that hold one of the m clients can change their vote, so m is certified if

        p_A' - p_B' > 2 - 2 binom(n - m, k) / binom(n, k),

    where the bounds were rounded to whole subsets, `p_A'` up and `p_B'` down. NaN where `p_a <= p_b`. Not improvable if
    nothing but the two bounds is known, as the authors prove. Rounded to the safe side.

    >>> ensemble_count([0.99, 0.7, 0.5], [0.01, 0.2, 0.5], clients=1000, subset=10)
    array([64., 28., nan])
    """
    if not 1 <= subset <= clients:
        raise ValueError(f"a subset must have 1 to {clients} clients, found {subset}")
    first, second = floats(p_a, p_b)
    subsets = math.comb(clients, subset)
    reached = [2 * (subsets - math.comb(clients - number, subset)) for number in range(clients + 1)]
    if subsets <= WHOLE:
        # The product was rounded, and must not become the next whole number for that.
        lead = np.ceil(first * subsets * (1.0 - 4.0 * UNIT)) - np.floor(second * subsets * (1.0 + 4.0 * UNIT))
        limits = np.array(reached, np.float64)
    else:
        lead = np.nextafter(first - second, -np.inf)
        limits = np.nextafter([each / subsets for each in reached], np.inf)
        limits[0] = 0.0
    number = np.searchsorted(limits, lead, side="left") - 1.0
    return np.where((number >= 0.0) & (first > second), number, np.nan)[()]
