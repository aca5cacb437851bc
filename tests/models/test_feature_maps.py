"""Feature maps: fixed functions with a norm bound and a Lipschitz constant that really hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from crfl_models.feature_maps.rescaling import Identity, Logarithm, UnitBall
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from crfl_core.extend import FeatureMap
from crfl_core.plugin_api.feature_map import FeatureMaps
from tests.oracle import federation_of, tiny

inputs = arrays(np.float64, (2, 5), elements=st.floats(-20, 20, width=32))
positive = st.floats(0.1, 10)
maps = st.lists(
    st.one_of(
        st.just(Identity()),
        positive.map(lambda radius: UnitBall(radius=radius)),
        positive.map(lambda scale: Logarithm(scale=scale)),
    ),
    max_size=3,
)


@settings(deadline=None, max_examples=60)
@given(x=inputs, chosen=maps)
def test_bound_and_lipschitz_constant_hold_for_every_chain(x: np.ndarray, chosen: list[FeatureMap]) -> None:
    chain = FeatureMaps(chosen, 5)
    first, second = torch.from_numpy(x)
    one, other = chain(first), chain(second)
    largest = max(float(first.norm()), float(second.norm()))
    assert max(float(one.norm()), float(other.norm())) <= chain.norm_bound(largest) * (1 + 1e-9) + 1e-12
    assert chain.lipschitz is not None
    assert float((one - other).norm()) <= chain.lipschitz * float((first - second).norm()) * (1 + 1e-9) + 1e-12


@settings(deadline=None, max_examples=30)
@given(x=inputs, radius=st.floats(0.1, 10))
def test_unit_ball_divides_by_the_larger_of_norm_and_radius(x: np.ndarray, radius: float) -> None:
    mapped = UnitBall(radius=radius).bind(5)(torch.from_numpy(x))
    expected = [row / max(float(np.linalg.norm(row)), radius) for row in x]
    np.testing.assert_allclose(mapped, expected, rtol=1e-12, atol=1e-15)


def test_the_logarithm_keeps_signs_and_its_slope_is_largest_at_zero() -> None:
    link = Logarithm(scale=4.0).bind(3)
    np.testing.assert_allclose(link(torch.tensor([-2.0, 0.0, 2.0])), [-math.log(9), 0.0, math.log(9)], rtol=1e-6)
    small = torch.full((3,), 1e-6, dtype=torch.float64)
    assert link.lipschitz is not None
    assert float(link(small).norm()) == pytest.approx(link.lipschitz * float(small.norm()), rel=1e-5)
    assert link.norm_bound(2.0) == pytest.approx(math.sqrt(3) * math.log(9))
    assert link.norm_bound(math.inf) == math.inf


def test_unbounded_inputs_land_in_the_unit_ball() -> None:
    assert UnitBall(radius=2.0).bind(5).norm_bound(math.inf) == 1.0
    assert Identity().bind(5).norm_bound(math.inf) == math.inf


def test_the_order_of_maps_counts() -> None:
    x = torch.full((4,), 3.0)
    inner, outer = UnitBall(radius=4.0), UnitBall(radius=0.5)
    assert float(FeatureMaps([inner, outer], 4)(x).norm()) == pytest.approx(1.0)
    assert float(FeatureMaps([outer, inner], 4)(x).norm()) == pytest.approx(0.25)


def test_training_and_test_inputs_go_through_the_maps_and_the_ledger_knows() -> None:
    """The default radius of the digits config: inputs inside the ball of radius 4 are divided by 4."""
    federation = federation_of(tiny(model={"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}}))
    norms = federation.data.x.norm(dim=1).clamp(min=4.0)
    torch.testing.assert_close(federation.features, federation.data.x / norms[:, None])
    facts = federation.facts
    assert (facts.feature_norm_bound, facts.feature_lipschitz) == (1.0, 0.25)
    assert max(facts.feature_norms) == pytest.approx(1.0, abs=1e-6)  # on the sphere, up to float32
    assert max(facts.input_norms) == pytest.approx(float(federation.data.x.norm(dim=1).max()))
