"""The paper's route, Kullback-Leibler divergence and its contraction, for several attacked rounds.

See docs/certificates.md#contraction-without-convexity. The threshold that it is compared with is `kl_budget`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas._arrays import floats
from crfl_core.certification.formulas.hockey_stick import log_theta


def kl_divergence(drifts: ArrayLike, noise_stds: ArrayLike, clip_norms: ArrayLike) -> float:
    """A bound on the KL divergence between the two worlds' final noisy models, in either direction.

    `sum_k Delta_k^2 / (2 sigma_k^2) prod (2 Phi(rho_t / sigma_t) - 1)`, the product over the rounds after k in which
    nobody attacks. One entry per round; all noise must be drawn again in the votes. Infinite if a drift meets no noise
    in its round, unless a later clip to norm 0 forgets it.

    >>> round(kl_divergence([0.1, 0.0, 0.1], [0.1, 0.1, 0.1], [0.1, 0.1, 0.1]), 6)
    0.841345
    """
    each, stds, norms = floats(drifts, noise_stds, clip_norms)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        injected = np.where(each > 0, np.square(each / stds) / 2.0, 0.0)
        ratio = np.where(stds > 0, norms / stds, np.inf)
        # 2 Phi(x) - 1 is theta_1(2 x); its logarithm stays exact where it rounds to 1, as in the paper's experiments.
        factors = np.where(each > 0, 0.0, log_theta(0.0, 2.0 * ratio))
        later = np.append(factors[1:], 0.0)[::-1].cumsum()[::-1]
        surviving = np.exp(np.log(injected) + later)
    return float(np.where((injected == 0) | np.isneginf(later), 0.0, surviving).sum())
