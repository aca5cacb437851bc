"""Formulas on inputs of 1e-320 to 1e300: bounds do not fall below 0, are not NaN, and grow with the inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from crfl_core.certification import formulas

SIZES = 10.0 ** np.array([-320.0, -300, -200, -160, -100, 0, 100, 160, 200, 300])
BATCH = np.array([[1.0, 2.0], [0.5, -1.0]])

BOUNDS: dict[str, Callable[[float], NDArray[np.float64] | float]] = {
    "spectrum": lambda size: formulas.batch_spectrum(BATCH * size),
    "start gradient": lambda size: formulas.start_gradient(BATCH * size, [0, 1], 2),
    "update": lambda size: formulas.update_bound(0.1, 10, size),
    "update with decay": lambda size: formulas.update_bound(0.1, 10, size, 0.01),
    "moved input": lambda size: formulas.feature_shift(1.0, input_bound=size, start_norm=1.0, path=1.0),
    "move": lambda size: formulas.feature_shift(size, input_bound=1.0, start_norm=1.0, path=1.0),
    "label": lambda size: formulas.label_shift(size),
    "replacement": lambda size: formulas.replacement_shift(size, size),
    "change of spectrum": lambda size: formulas.spectrum_change("features", 1.0, input_bound=size, domain_bound=size),
    "local rounding": lambda size: (
        formulas.local_rounding(formulas.ModelSize(784, 10), formulas.LocalSteps(0.001, 30, 100, 0.0, size), 3.0).error
    ),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_on_what_inputs_can_do_grow_with_the_inputs(name: str) -> None:
    found = np.array([float(BOUNDS[name](size)) for size in SIZES])
    assert not np.isnan(found).any()
    assert (found >= 0.0).all()
    assert (np.diff(found[np.isfinite(found)]) >= 0.0).all()
    assert np.isinf(found[np.isinf(found).argmax() :]).all() or np.isfinite(found).all()


def test_spectra_are_never_below_the_exact_ones() -> None:
    """Proportional to the square of the inputs: rounded up where it underflows, infinite where it overflows."""
    exact = float(formulas.batch_spectrum(BATCH))
    for size in SIZES:
        with np.errstate(over="ignore"):
            expected = exact * size * size
        found = float(formulas.batch_spectrum(BATCH * size))
        assert found > 0.0
        assert found >= expected * (1.0 - 1e-12)
    assert formulas.batch_factor(0.05, formulas.batch_spectrum(BATCH * 1e300)) == 0.0
    assert formulas.batch_factor(0.05, formulas.batch_spectrum(BATCH * 1e-300)) == 1.0


def test_rates_fall_and_largest_attacks_stay_below_their_thresholds() -> None:
    rates = [float(formulas.largest_rate(beta)) for beta in SIZES]
    assert (np.diff(np.minimum(rates, 1e308)) <= 0.0).all()
    for unit in SIZES:
        found = float(formulas.largest_attack(1.0, per_unit=unit))
        assert found * unit <= 1.0 or np.isinf(found)
