"""The mathematics of certification: pure functions on numpy arrays, float64, in log space where it matters."""

from crfl_core.certification.formulas.confidence import Bounds, hoeffding
from crfl_core.certification.formulas.paper import gradient_lipschitz, kl_budget, log_contraction, log_radius

__all__ = ["Bounds", "gradient_lipschitz", "hoeffding", "kl_budget", "log_contraction", "log_radius"]
