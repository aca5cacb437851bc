"""Certifying 1,000,000 samples from stored votes by the margin, KL, Gaussian and hockey-stick rules: pure formulas."""

from __future__ import annotations

import numpy as np

from benchmarks.timing import best_times, report
from crfl_core import formulas

SAMPLES = 1_000_000
CLASSES = 10
MODELS = 1000
ALPHA = 0.001


def main() -> None:
    generator = np.random.default_rng(0)
    logits = generator.standard_normal((SAMPLES, CLASSES))
    norms = generator.random(SAMPLES) + 0.5
    winners = generator.integers(MODELS // 2, MODELS + 1, SAMPLES)
    counts = np.zeros((SAMPLES, CLASSES), np.int64)
    counts[:, 0] = winners
    counts[:, 1] = MODELS - winners

    def cost(delta: formulas.Array) -> formulas.Array:
        shift = formulas.feature_shift(delta, input_bound=1.0, start_norm=3.0, path=0.03, domain_bound=1.0)
        return 7.5e-4 * np.asarray(shift)

    def radii(threshold: formulas.Array) -> None:
        formulas.feature_radius(formulas.largest_attack(threshold), cost)

    bounds = formulas.two_stage(counts, counts, ALPHA)
    rules = {
        "margin": lambda: radii(np.asarray(formulas.margin_threshold(logits, norms))),
        "KL": lambda: radii(0.01 * np.sqrt(2.0 * formulas.kl_budget(bounds.p_a, bounds.p_b))),
        "Gaussian": lambda: radii(0.01 * np.asarray(formulas.gaussian_threshold(bounds.p_a, bounds.p_b))),
        "hockey stick": lambda: radii(
            0.01 * np.asarray(formulas.hockey_stick_threshold(bounds.p_a, bounds.p_b, np.full(90, 6.0)))
        ),
        "two-stage bounds": lambda: formulas.two_stage(counts, counts, ALPHA),
    }
    times = best_times(rules, turns=2)
    print("seconds for 1,000,000 samples: " + "  ".join(f"{name} {seconds:.2f}" for name, seconds in times.items()))
    together = times["margin"] + times["KL"] + times["Gaussian"]
    report("seconds for 1,000,000 samples: margin + KL + Gaussian", together, "below 2")
