"""What arbitrary clients cost over several rounds by the norms that were observed, against attackers in such rounds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from crfl_core.certification.formulas import (
    Array,
    byzantine_terms,
    fixed_attackers_drift,
    later_products,
    retention,
    round_contraction,
    update_bound,
    variable_attackers_drift,
)

FEATURES, CLASSES, CLIENTS, ROUNDS, RATE, STEPS = 4, 3, 6, 5, 0.8, 3


@dataclass
class Federation:
    """Softmax regression on unit inputs with weight decay, a centred cap, a clip and noise that all worlds share."""

    generator: np.random.Generator
    decay: float
    clip_norm: float

    def __post_init__(self) -> None:
        x = self.generator.normal(size=(CLIENTS, 5, FEATURES))
        self.x = x / np.linalg.norm(x, axis=2, keepdims=True)
        self.labels = np.eye(CLASSES)[self.generator.integers(CLASSES, size=(CLIENTS, 5))]
        self.weights = self.generator.dirichlet(np.ones(CLIENTS))
        self.noise = 0.1 * self.generator.normal(size=(ROUNDS, FEATURES, CLASSES))
        self.kept = float(retention(RATE, STEPS, self.decay))
        self.bound = float(update_bound(RATE, STEPS, 1.0, self.decay))
        self.lipschitz = np.full(ROUNDS, round_contraction(self.weights, np.full(CLIENTS, self.kept)))

    def honest(self, start: Array) -> Array:
        """The centred residuals of honest training, (clients, features, classes)."""
        models = np.broadcast_to(start, (CLIENTS, FEATURES, CLASSES))
        for _ in range(STEPS):
            residual = softmax(self.x @ models, axis=2) - self.labels
            models = (1.0 - RATE * self.decay) * models - RATE * self.x.transpose(0, 2, 1) @ residual / 5
        residuals: Array = models - self.kept * start
        return residuals

    def broadcast(self, start: Array, residuals: Array, number: int) -> Array:
        model = self.kept * start + np.tensordot(self.weights, residuals, axes=1)
        noisy: Array = model / max(1.0, float(np.linalg.norm(model)) / self.clip_norm) + self.noise[number]
        return noisy

    def capped(self, message: Array) -> Array:
        return message / max(1.0, float(np.linalg.norm(message)) / self.bound)


def replaced(federation: Federation, attackers: list[list[int]]) -> tuple[float, Array]:
    """How far the final models end apart if attackers push away from an observed honest run, and its norms."""
    observed = other = np.zeros((FEATURES, CLASSES))
    norms = np.zeros((ROUNDS, CLIENTS))
    for number, chosen in enumerate(attackers):
        messages, others = federation.honest(observed), federation.honest(other)
        norms[number] = np.linalg.norm(messages, axis=(1, 2))
        away = other - observed if number and federation.generator.uniform() < 0.8 else -messages[chosen].sum(axis=0)
        for client in chosen:
            others[client] = federation.capped(1e9 * (away + 1e-3 * federation.generator.normal(size=away.shape)))
        observed, other = federation.broadcast(observed, messages, number), federation.broadcast(other, others, number)
    return float(np.linalg.norm(observed - other)), norms


@pytest.mark.parametrize("clip_norm", [0.7, 100.0])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_replacing_the_messages_of_any_clients_stays_within_the_drift_of_the_observed_norms(
    decay: float, clip_norm: float
) -> None:
    largest = 0.0
    for seed in range(40):
        federation = Federation(np.random.default_rng(seed), decay, clip_norm)
        number = int(federation.generator.integers(1, CLIENTS + 1))
        same = federation.generator.permutation(CLIENTS)[:number].tolist()
        gap, norms = replaced(federation, [same] * ROUNDS)
        assert (norms <= federation.bound).all()
        terms = byzantine_terms(federation.weights, np.minimum(federation.bound, norms), federation.bound)
        fades = later_products(federation.lipschitz)
        drift = fixed_attackers_drift(terms, fades, clip_norms=np.full(ROUNDS, clip_norm))[number]
        assert gap <= drift * (1.0 + 1e-12)
        largest = max(largest, gap / drift)
        gap, norms = replaced(
            federation, [federation.generator.permutation(CLIENTS)[:number].tolist() for _ in range(ROUNDS)]
        )
        terms = byzantine_terms(federation.weights, np.minimum(federation.bound, norms), federation.bound)
        assert gap <= variable_attackers_drift(terms, fades, clip_norms=np.full(ROUNDS, clip_norm))[number] * (
            1.0 + 1e-12
        )
    assert largest > (0.6 if clip_norm > 1.0 else 0.1)


def test_an_attacked_run_stays_within_the_drift_of_its_own_norms_from_its_clean_world() -> None:
    """Backward: nothing caps the attackers, whose messages are of any size, and honest ones take their place."""
    for seed in range(30):
        federation = Federation(np.random.default_rng(seed), 0.05, 1e9)
        attacked = clean = np.zeros((FEATURES, CLASSES))
        norms = np.zeros((ROUNDS, CLIENTS))
        for number in range(ROUNDS):
            messages = federation.honest(attacked)
            messages[:2] = federation.generator.normal(size=messages[:2].shape) * 10.0 ** (seed % 7)
            norms[number] = np.linalg.norm(messages, axis=(1, 2))
            clean = federation.broadcast(clean, federation.honest(clean), number)
            attacked = federation.broadcast(attacked, messages, number)
        terms = byzantine_terms(federation.weights, norms, federation.bound)[:, :2].sum(axis=1)
        drift = (terms * later_products(federation.lipschitz)).sum()
        assert np.linalg.norm(attacked - clean) <= drift * (1.0 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    terms=st.lists(st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4), min_size=1, max_size=3),
    fades=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3),
)
def test_the_worst_attackers_are_found_among_all_sets(terms: list[list[float]], fades: list[float]) -> None:
    each, fade = np.array(terms), np.array(fades[: len(terms)])
    lasting, changing = fixed_attackers_drift(each, fade), variable_attackers_drift(each, fade)
    for number in range(5):
        sets = [list(chosen) for chosen in combinations(range(4), number)]
        assert lasting[number] == pytest.approx(max((fade @ each[:, chosen]).sum() for chosen in sets))
        worst = [max(row[chosen].sum() for chosen in sets) for row in each]
        assert changing[number] == pytest.approx(fade @ worst)


def test_a_clip_bounds_what_the_attackers_of_a_round_leave() -> None:
    terms, fades = [[3.0, 3.0], [0.5, 0.25]], [0.5, 1.0]
    assert variable_attackers_drift(terms, fades, clip_norms=[1.0, 1.0]).tolist() == [0.0, 1.5, 1.75]
    assert fixed_attackers_drift(terms, fades, clip_norms=[1.0, 1.0]).tolist() == [0.0, 1.5, 1.75]
    assert fixed_attackers_drift(terms, fades).tolist() == [0.0, 2.0, 3.75]


def test_attackers_can_lose_certificates_by_inflating_their_own_norms() -> None:
    quiet, loud = (byzantine_terms(0.1, np.minimum(1.0, norm), 1.0) for norm in (0.2, 1e6))
    assert quiet == pytest.approx(0.12)
    assert loud == pytest.approx(0.2)  # and not more than without observed norms
