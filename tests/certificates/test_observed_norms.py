"""What clients really submitted bounds what replacing it can do: tighter than the cap, and only for this very run."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from crfl_certificates.pathwise_linear import PathwiseLinear
from crfl_certificates.postprocess import Postprocess
from crfl_certificates.tail import Tail

from crfl_core.certification.drift import DriftBound
from crfl_core.extend import Ledger, LogitVotes
from crfl_core.records.measurements import observed_residuals
from tests.certificates.federations import certifiable
from tests.certificates.worlds import World, attacked, federation_of, honest_world


def with_residuals(ledger: Ledger, factor: float) -> Ledger:
    """The ledger of clients that submitted another part of what they may."""
    rows = ledger.clients
    return replace(ledger, clients=replace(rows, residual_norm=np.minimum(rows.cap, factor * rows.residual_norm)))


@pytest.mark.parametrize(("rounds", "attackers"), [([25], 1), ([25], 2), ([28, 29], 1), ([5, 12], 1), ([5], 4)])
def test_messages_of_some_clients_can_be_replaced_by_the_worst_and_no_certified_prediction_changes(
    rounds: list[int], attackers: int
) -> None:
    """Attackers push toward the weakest prediction that is certified against all of them, and two others."""
    attack = {"type": "submitting", "clients": list(range(attackers)), "rounds": rounds, "how": "push", "size": 1e3}
    federation = federation_of(certifiable(attack=attack))
    clean = honest_world(federation)
    threat = attacked(federation, clean).threat()
    certified = clean.certify(PathwiseLinear(), threat, "client").radius >= attackers
    top = np.sort(clean.votes(PathwiseLinear(), threat).expect(LogitVotes).logits, axis=1)
    weakest = np.argsort(np.where(certified, top[:, -1] - top[:, -2], np.inf))[:3]
    assert certified[weakest].all()
    for sample in weakest:
        world = attacked(federation, clean, int(sample))
        np.testing.assert_array_equal(world.predictions[certified], clean.predictions[certified])
        again = world.certify(PathwiseLinear(), threat, "client")
        safe = again.radius >= attackers
        np.testing.assert_array_equal(again.prediction[safe], clean.predictions[safe])


def reversed_in_the_end(scale: float = 1e6) -> tuple[World, World]:
    """Client 0 submits the opposite of what it trained in the final round, as long as the server lets it."""
    attack = {"type": "submitting", "clients": [0], "rounds": [30], "how": "reverse", "size": scale}
    training = {"learning_rate": 1.0, "steps": 1, "batch_size": 16}
    federation = federation_of(certifiable(attack=attack, training=training))
    clean = honest_world(federation)
    return clean, attacked(federation, clean)


def test_the_bound_is_attained_by_an_update_that_is_turned_round() -> None:
    """`p (||r|| + cap)` exactly; the bound by caps alone, `2 p cap`, is larger by far."""
    clean, world = reversed_in_the_end()
    threat = world.threat()
    drift = float(torch.linalg.vector_norm(world.final - clean.final))
    named = threat.model_copy(update={"clients": (0,)})
    observed, capped = (
        float(DriftBound(clean.ledger, named, 30, observed=known).sample_cost(np.array([0.0]))[0])
        for known in (True, False)
    )
    assert observed == pytest.approx(drift, rel=1e-9)
    assert observed < 0.8 * capped


def test_attackers_can_lose_certificates_by_submitting_much() -> None:
    """The same attack seen from the attacked run: its own norm is the cap now, so less is certified there."""
    clean, world = reversed_in_the_end()
    threat = world.threat()
    row = world.ledger.clients.of_round(30)
    assert row.residual_norm[0] == pytest.approx(row.cap[0])
    before, after = (DriftBound(one.ledger, threat, 30, observed=True).client_costs() for one in (clean, world))
    assert after[1] > before[1]
    small, large = (one.certify(PathwiseLinear(), threat, "client").radius for one in (world, clean))
    assert (small <= large).mean() > 0.95
    assert small.sum() < large.sum()


@pytest.mark.parametrize("kind", [Tail, Postprocess])
def test_votes_over_fresh_noise_do_not_use_what_was_submitted_under_that_of_the_run(
    kind: type[Tail] | type[Postprocess],
) -> None:
    certificate = kind(continuations=20, selection=5)
    attack = {"type": "submitting", "clients": [0], "rounds": [29], "size": 1e3}
    federation = federation_of(certifiable(attack=attack, server={"clip_norm": 20.0, "noise_std": 0.2}))
    world = attacked(federation, honest_world(federation))
    threat, votes = world.threat(), world.votes(certificate, world.threat())
    radii = [
        certificate.certify(with_residuals(world.ledger, factor), votes, threat, "client").radius
        for factor in (0.0, 1.0, 10.0)
    ]
    np.testing.assert_array_equal(radii[0], radii[1])
    np.testing.assert_array_equal(radii[1], radii[2])


def test_longer_messages_never_certify_more() -> None:
    world = honest_world(federation_of(certifiable(attack={"type": "submitting", "clients": [0], "rounds": [25]})))
    threat = world.threat(rounds=[25], poison="update")
    votes = world.votes(PathwiseLinear(), threat)
    radii = [
        PathwiseLinear().certify(with_residuals(world.ledger, factor), votes, threat, "client").radius
        for factor in (0.0, 0.5, 1.0, 2.0, 1e9)
    ]
    for shorter, longer in itertools.pairwise(radii):
        assert (longer <= shorter).all()
    assert radii[0].sum() > radii[2].sum() > radii[4].sum()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_norms_count_as_the_largest_that_they_may_have_been(dtype: Any, decay: float) -> None:
    """Against norms in exact arithmetic, as nearly as double precision has it, of what single precision submitted."""
    training = {"learning_rate": 1.0, "steps": 1, "batch_size": 16, "weight_decay": decay}
    world = honest_world(federation_of(certifiable(dtype=dtype, training=training, rounds=3, aggregation=["fedavg"])))
    rows = world.ledger.clients
    bounds = observed_residuals(world.ledger)
    assert (bounds >= rows.residual_norm).all()
    assert (bounds <= rows.residual_norm * 1.001 + 1e-6).all()
    capped = replace(world.ledger, clients=replace(rows, cap=0.5 * rows.residual_norm))
    np.testing.assert_array_equal(observed_residuals(capped), capped.clients.cap)
