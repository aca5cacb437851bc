"""The threat of a run: what was measured is rounded up, what is assumed enlarged by more, and nothing is believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from crfl_certificates.pathwise_linear import PathwiseLinear

from crfl_core import Threat
from crfl_core.certification import threat_resolution as threats
from crfl_core.certification.certifier import audit_certificate
from crfl_core.certification.drift import DriftBound
from crfl_core.extend import Ledger, RealisedAttack
from crfl_core.records.measurements import share_error
from crfl_core.records.threat import ThreatSettings
from crfl_core.runs.worlds import with_attack
from crfl_core.training.attackers import sum_poisoned_shares
from crfl_core.training.steering import Steering
from tests.certificates.federations import small
from tests.certificates.ledgers import synthetic_ledger
from tests.certificates.test_corners import Flipping
from tests.certificates.worlds import World, attacked, federation_of, honest_world, play


def thirds(dtype: Any = "float64") -> World:
    """Attackers that poison a share of their batches that no floating-point number is equal to, and scale by 3."""
    attack = {
        "type": "steering",
        "clients": [0],
        "rounds": [2],
        "kind": "features+labels",
        "ratio": 1 / 3,
        "delta": 0.3,
        "scale": 3.0,
    }
    federation = federation_of(
        small(dtype=dtype, training={"learning_rate": 0.5, "steps": 7, "batch_size": 3}, attack=attack)
    )
    return attacked(federation, honest_world(federation))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_was_measured_is_never_less_than_what_was_done(dtype: Any) -> None:
    world = thirds(dtype)
    done = threats.measure_attack(world.ledger)
    assert done.poison_ratio.max() >= 1 / 3
    assert done.delta.max() >= world.ledger.clients.delta.max()
    threat = world.threat()
    assert threat.poison_ratio == pytest.approx(1 / 3, rel=1e-5)
    assert threat.scale == 3.0  # multiplying is exact


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_threat_that_states_what_an_attack_did_covers_it_and_no_less_will_do(dtype: Any) -> None:
    world = thirds(dtype)
    stated = ThreatSettings(poison_ratio=1 / 3, scale=3.0, delta=0.3)
    assert world.uncovered(stated) == ()
    for less in ({"poison_ratio": 1 / 3 * (1 - 1e-4)}, {"scale": 3.0 * (1 - 1e-4)}, {"delta": 0.3 * (1 - 1e-3)}):
        (reason,) = world.uncovered(stated.model_copy(update=less))
        assert reason.startswith(next(iter(less)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_certificates_are_handed_no_less_than_what_counts_as_covered(dtype: Any) -> None:
    """At the edge: the smallest threat that still covers the attack costs no less than the attack itself."""
    world = thirds(dtype)
    done = world.threat()
    for key in ("poison_ratio", "scale"):
        low, high = 0.99 * getattr(done, key), getattr(done, key)
        for _ in range(60):  # the smallest number that is covered
            middle = (low + high) / 2
            covered = world.uncovered(ThreatSettings(**{key: middle})) == ()
            low, high = (low, middle) if covered else (middle, high)
        handed = threats.enlarge_threat(world.threat(**{key: high}), world.ledger)
        assert getattr(handed, key) >= getattr(done, key)
        costs = [DriftBound(world.ledger, one, 4).feature_cost(np.array([0.3]))[0] for one in (done, handed)]
        assert costs[1] >= costs[0]


class Modest(Flipping):
    """States less than it did."""

    def threat(self, realised: RealisedAttack) -> Threat:
        return super().threat(realised).model_copy(update={"scale": 1.0, "poison": "features", "poison_ratio": 0.0})


class Boastful(Flipping):
    """States more than it did, which is its right."""

    def threat(self, realised: RealisedAttack) -> Threat:
        return super().threat(realised).model_copy(update={"scale": 50.0, "poison": "update"})


def test_an_attack_that_states_less_than_was_measured_covers_nothing() -> None:
    federation = federation_of(small())
    options: dict[str, Any] = {"clients": (0,), "rounds": (2,), "scale": 4.0, "flips": 2}
    worlds = {kind: play(with_attack(federation, kind(**options))) for kind in (Modest, Boastful, Flipping)}
    assert set(worlds[Modest].uncovered(ThreatSettings())) == {
        "scale 4 is above the assumed 1",
        "poison_ratio 0.34375 is above the assumed 0",
        "poison 'labels' is not covered by 'features'",
    }
    for kind in (Boastful, Flipping):
        assert worlds[kind].uncovered(ThreatSettings()) == ()
    assert worlds[Boastful].threat().scale == 50.0


def test_replacing_the_model_is_a_scale_that_was_measured() -> None:
    federation = federation_of(small())
    world = play(with_attack(federation, Steering(kind="labels", clients=(0,), rounds=(2,), scale="replace")))
    weight = world.ledger.clients.of_round(2).weight[0]
    assert 1 / weight <= world.threat().scale == pytest.approx(1 / weight, rel=1e-6)


@pytest.mark.parametrize("kind", ["labels", "replacement"])
def test_an_input_bound_below_the_poison_that_was_fed_is_refused(kind: str) -> None:
    """Also if other inputs of the run, which are not poisoned, are longer."""
    attack = {"type": "steering", "clients": [0], "rounds": [2], "kind": kind, "ratio": 0.5}
    config = small(model={"type": "softmax"}, training={"learning_rate": 0.01, "steps": 2}, attack=attack)
    federation = federation_of(config)
    world = attacked(federation, honest_world(federation))
    longest = float(world.ledger.clients.poisoned_norm.max())
    assert kind != "labels" or longest <= max(world.ledger.facts.feature_norms)
    for bound, held in ((longest * 0.99, False), (longest, True), (longest * 1.01, True)):
        handed = threats.enlarge_threat(world.threat(input_bound=bound), world.ledger)
        refusal = audit_certificate(PathwiseLinear(), world.ledger, handed).refusal
        assert (not refusal) == held
        assert held or refusal.startswith("input norms: found largest")


def with_bad_updates(*losses: tuple[int, int], attackers: tuple[int, ...] = ()) -> Ledger:
    """A ledger in which clients lost their update in some rounds, (client, round), and others attacked in round 1."""
    ledger = synthetic_ledger(cap=4.0)
    rows = ledger.clients
    bad = np.array([(client, number) in losses for client, number in zip(rows.client, rows.round, strict=True)])
    attacking = np.isin(rows.client, attackers) & (rows.round == 1)
    return replace(ledger, clients=replace(rows, quarantined=bad, attacking=attacking))


@pytest.mark.parametrize(
    ("losses", "attackers", "assumed", "held"),
    [
        ([(0, 1), (0, 2), (0, 3)], (), 1, True),
        ([(0, 1), (1, 2), (2, 3)], (), 1, False),
        ([(0, 1), (1, 2), (2, 3)], (), 2, False),
        ([(0, 1), (1, 2), (2, 3)], (), 3, True),
        ([(0, 1), (1, 2), (2, 3)], (), (0, 1, 2), True),
        ([(0, 1), (1, 2), (2, 3)], (), (0, 1), False),
        ([(0, 2)], (1,), 1, False),
        ([(0, 2)], (0,), 1, True),
        ([(0, 2)], (1,), 2, True),
    ],
)
def test_clients_that_lost_an_update_are_counted_over_the_whole_run(
    losses: list[tuple[int, int]], attackers: tuple[int, ...], assumed: Any, held: bool
) -> None:
    """Each of them submitted something that no honest client submits, in whatever round, beside those who attacked."""
    threat = Threat(clients=assumed, rounds=(1, 2, 3), poison="update")
    found = audit_certificate(PathwiseLinear(), with_bad_updates(*losses, attackers=attackers), threat)
    assert (not found.refusal) == held
    if not held:
        assert f"{len(losses)} bad updates of {len({client for client, _ in losses})} clients" in found.refusal


@pytest.mark.parametrize(("poisoned", "batch", "steps"), [(5, 100, 30), (1, 10, 7), (1, 3, 10), (7, 49, 11)])
def test_the_poison_ratio_is_a_quotient_of_counts(poisoned: int, batch: int, steps: int) -> None:
    """5 of 100 samples are 0.05, and no sum of 30 numbers in single precision."""
    sizes = np.full((1, steps), batch)
    (share,) = sum_poisoned_shares(np.full((1, steps), poisoned), sizes)
    assert share / steps == pytest.approx(poisoned / batch, rel=2e-16)


def test_short_batches_and_missing_steps_count_as_what_they_are() -> None:
    counts, sizes = np.array([[5, 2, 0], [4, 4, 4]]), np.array([[100, 3, 0], [8, 8, 8]])
    assert sum_poisoned_shares(counts, sizes).tolist() == [0.05 + 2 / 3, 1.5]


def test_a_run_says_exactly_what_share_of_its_batches_was_poisoned() -> None:
    attack = {"type": "steering", "clients": [0], "rounds": [2], "kind": "features", "ratio": 0.05, "delta": 0.3}
    for dtype in ("float32", "float64"):
        training = {"learning_rate": 0.1, "steps": 2, "batch_size": 20}
        config = small(dtype=dtype, rounds=2, training=training, attack=attack)
        federation = federation_of(config)
        assert attacked(federation, honest_world(federation)).threat().poison_ratio == 0.05


@pytest.mark.parametrize(("exact", "least", "most"), [(False, 1e-7, 1e-5), (True, 1e-16, 1e-14)])
def test_shares_of_older_ledgers_are_allowed_more(exact: bool, least: float, most: float) -> None:
    ledger = synthetic_ledger()
    facts = ledger.facts.model_copy(update={"exact_shares": exact})
    assert least < share_error(replace(ledger, facts=facts)) < most
