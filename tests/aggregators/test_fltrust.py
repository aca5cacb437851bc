"""FLTrust against the paper's algorithm in plain double precision, and what attackers can do to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_aggregators.fltrust import FLTrust
from hypothesis import given, settings
from hypothesis import strategies as st

import crfl_core
from crfl_core.extend import ClientUpdates
from tests.aggregators.support import Array, gaussian, participants, updates_of
from tests.oracle import federation_of, played, tiny

RULE = FLTrust(learning_rate=0.3, steps=4, batch_size=6)


def algorithm_2(values: Array, own: Array) -> tuple[Array, Array]:
    """The paper's aggregation (Cao et al., 2021, Algorithm 2, lines 13 to 19), one client at a time."""
    scores, normalised = [], []
    for update in values:
        product, size, length = float(own @ update), float(np.sqrt(own @ own)), float(np.sqrt(update @ update))
        scores.append(max(0.0, product / (size * length)) if length else 0.0)
        normalised.append(update * size / length if length else update)
    total = sum(scores)
    if total == 0:
        return np.zeros_like(own), np.zeros(len(values))
    combined = sum((score * update for score, update in zip(scores, normalised, strict=True)), np.zeros_like(own))
    return combined / total, np.array(scores)


def server_update(updates: ClientUpdates) -> Array:
    """SGD of logistic regression on the root samples: `sigmoid(w x) - y`, one sample at a time."""
    current, server = updates.round, updates.round.server
    assert server.root is not None
    x, y = server.root.x.numpy(), server.root.y.numpy()
    generator = server.streams.generator("aggregation/root", round_number=current.number)
    start = current.start.double().numpy()
    model, left = start.copy(), np.zeros(0, np.int64)
    for _ in range(4):
        if not len(left):
            left = generator.permutation(len(y))
        rows, left = left[:6], left[6:]
        gradients = [(1 / (1 + np.exp(-model @ x[row])) - y[row]) * x[row] for row in rows]
        model = model - 0.3 * np.mean(gradients, axis=0)
    return np.asarray(model - start)


@pytest.mark.parametrize("clients", [1, 2, 13, 40])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_agrees_with_the_paper(clients: int, seed: int, dtype: torch.dtype, tolerance: float) -> None:
    values = gaussian(clients, 30, seed) * np.exp(gaussian(clients, 1, seed + 50))
    updates = updates_of(torch.from_numpy(values).to(dtype), number=seed + 1)
    own = server_update(updates)
    expected, scores = algorithm_2(values, own)
    found = RULE.aggregate(updates, {})
    np.testing.assert_allclose(found.update, expected, atol=tolerance)
    assert found.notes["trust"] == pytest.approx(scores.sum(), rel=1e-4, abs=1e-4)
    assert found.notes["server_norm"] == pytest.approx(np.linalg.norm(own), rel=1e-4)
    lengths = np.linalg.norm(values, axis=1)
    weights = scores / max(scores.sum(), 1e-300) * np.linalg.norm(own) / lengths
    np.testing.assert_allclose(found.weights, weights, atol=tolerance)


def test_a_whole_round_of_a_run_agrees_as_well() -> None:
    """The server trains like the median client, from the broadcast model, behind the same feature maps."""
    model = {"type": "softmax", "features": {"type": "unit-ball", "radius": 2.0}}
    config = tiny(reserve={"root": 40}, aggregation=["fltrust"], model=model, dtype="float64", attack="none")
    federation = federation_of(config)
    second = played(federation)[1]
    outcome = second.outcome
    start = outcome.before.models[0]
    own = federation.server_view(2).local_update(start, learning_rate=0.2, steps=5, batch_size=16, number=2).numpy()
    aggregate = outcome.results[0]
    assert aggregate.rule is not None
    assert aggregate.rule.notes["server_norm"] == pytest.approx(np.linalg.norm(own), rel=1e-12)
    assert np.linalg.norm(aggregate.update) <= np.linalg.norm(own)
    assert float(torch.from_numpy(own) @ aggregate.update) > 0
    assert second.record.depends == "all"
    assert not second.record.carries_state


def test_clients_that_pull_the_other_way_are_not_trusted() -> None:
    values = np.stack([-server_update(updates_of(gaussian(3, 5)))] * 3)
    found = RULE.aggregate(updates_of(values), {})
    assert not found.update.any()
    assert not found.weights.any()


def test_updates_that_are_next_to_nothing_stop_no_run() -> None:
    """Made as long as the server's they would need a factor that no float32 can hold."""
    values = torch.from_numpy(gaussian(6, 5)).float()
    values[:2] *= 1e-42
    found = RULE.aggregate(updates_of(values), {})
    assert found.weights[:2].tolist() == [0.0, 0.0]
    assert torch.isfinite(found.update).all()


def test_a_bad_update_does_not_change_how_the_server_trains() -> None:
    """A client that sends nothing usable is taken out of the round, and must not move the median of the settings."""
    plain = updates_of(gaussian(5, 4), steps=np.array([1, 1, 9, 9, 9]))
    rest = updates_of(gaussian(5, 4)[:3], steps=np.array([1, 1, 9]))
    found = [FLTrust().aggregate(given, {}).notes["server_norm"] for given in (plain, rest)]
    assert found[0] == found[1]


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 12), attackers=st.integers(0, 12), spread=st.floats(0.0, 3.0))
def test_no_attack_moves_the_aggregate_farther_than_the_breakdown(
    seed: int, clients: int, attackers: int, spread: float
) -> None:
    """Whichever of the two worlds was observed."""
    attackers = min(attackers, clients)
    own = server_update(updates_of(gaussian(clients, 6)))
    honest = own + spread * np.linalg.norm(own) * gaussian(clients, 6, seed)
    attacked = honest.copy()
    aims = gaussian(1, 6, seed + 1) if seed % 2 else own - 2 * gaussian(1, 6, seed + 1)
    attacked[:attackers] = np.where(seed % 3, aims, -np.mean(honest, axis=0))
    clean, poisoned = (RULE.aggregate(updates_of(values), {}) for values in (honest, attacked))
    moved = float((poisoned.update - clean.update).norm())
    for observed in (clean, poisoned):
        drifts = RULE.breakdown(participants(clients), observed, np.inf)
        assert drifts[0] == 0.0
        assert moved <= drifts[attackers] * (1 + 1e-9) + 1e-12


def certified(tmp_path: Path, rounds: int, continuations: int, **changes: Any) -> crfl_core.RunResult:
    """A run in which the client level of `postprocess` is asked about FLTrust."""
    asked = {"type": "postprocess", "levels": ["client"], "continuations": continuations, "selection": 20}
    config = tiny(
        dataset={"type": "digits", "test_samples": 100},
        reserve={"root": 200},
        rounds=rounds,
        partition={"type": "iid", "clients": 20},
        attack="none",
        threat={"clients": 1, "rounds": [2], "poison": "update"},
        server={"clip_norm": 8.0, "noise_std": [0.01, 0.2, *[0.01] * (rounds - 2)]},
        aggregation=["fltrust"],
        certificates=[asked],
    )
    return crfl_core.run(config | changes, out=tmp_path / "run")


def test_predictions_are_certified_against_arbitrary_clients(tmp_path: Path) -> None:
    result = certified(tmp_path, rounds=10, continuations=100)
    (guarantee,) = (one.guarantee for one in result.certified)
    assert (guarantee.radius >= 1).mean() > 0.2
    trusted = [check for check in result.audits[0].checks if "trusted" in check.name]
    assert [check.status for check in trusted] == ["declared"]


def test_neither_a_cap_nor_a_bound_on_gradients_is_needed(tmp_path: Path) -> None:
    """What the server trusts bounds every client, of any model."""
    result = certified(tmp_path, rounds=3, continuations=20, model={"type": "mlp", "hidden": [16]})
    assert not np.isfinite(result.ledger.clients.update_bound).any()
    assert result.metrics.refused == {}
    record = result.ledger.round(2)
    assert record.breakdown is not None
    assert record.breakdown[-1] == pytest.approx(2 * record.notes["server_norm"])


def test_fltrust_keeps_a_sign_flipping_minority_out() -> None:
    attack = {"type": "sign-flip", "clients": 3, "rounds": list(range(1, 11))}
    config = tiny(dataset={"type": "digits"}, reserve={"root": 100}, rounds=10, attack=attack)
    config["partition"] = {"type": "iid", "clients": 8}
    fedavg, fltrust = (
        played(federation_of(config | {"aggregation": [rule]}))[-1].record.accuracy or 0.0
        for rule in ("fedavg", "fltrust")
    )
    assert fltrust > 0.8
    assert fltrust > fedavg + 0.1
