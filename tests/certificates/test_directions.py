"""Backward and forward: what holds about a run that was attacked, and about one that might have been.

Forward, all bounds come from the ledger of the world without an attack, and the attack comes afterwards.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crfl_certificates.paper import Paper
from crfl_certificates.pathwise_linear import PathwiseLinear
from crfl_certificates.pathwise_smoothed import PathwiseSmoothed
from crfl_certificates.postprocess import Postprocess
from crfl_certificates.tail import Tail
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import crfl_core
from crfl_core import Threat
from crfl_core.certification import threat_resolution as threats
from crfl_core.certification.certifier import Audit, audit_certificate
from crfl_core.certification.drift import DriftBound
from crfl_core.extend import Certificate, Check, ConfigError, Level, RunError
from crfl_core.plugin_api.certificate import Direction
from tests.certificates.drawn_worlds import ROUNDING_FACTOR, data_attacks, drift_between, scenarios, update_attacks
from tests.certificates.federations import certifiable, small
from tests.certificates.ledgers import synthetic_ledger
from tests.certificates.worlds import PLUGINS, World, attacked, federation_of, honest_world, play

SOUND: tuple[Certificate, ...] = (PathwiseLinear(), PathwiseSmoothed(), Tail(), Postprocess())
CAP = [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}]
NOISY = {"clip_norm": 4.0, "noise_std": 0.05, "cap_updates": False}


def readings(world: World, threat: Threat, level: Level = "client") -> dict[str, tuple[Direction, ...]]:
    """The directions in which each sound certificate may be read."""
    return {
        type(one).__name__: found.directions[level]
        for one in SOUND
        for found in [audit_certificate(one, world.ledger, threat)]
    }


def pair(config: dict[str, Any], sample: int = 0) -> tuple[World, World]:
    """The world without an attack, and what an attack makes of it."""
    try:
        federation = federation_of(config)
        clean = honest_world(federation)
        return clean, attacked(federation, clean, sample)
    except (ConfigError, RunError):  # no attacker was drawn in any round, or no honest client
        assume(False)
        raise


def assert_forward(clean: World, threat: Threat, level: Level, size: float, other: World) -> bool:
    """What the clean run certifies forward against an attack of this size is predicted under it; True if it claims."""
    claims = False
    for certificate in (PathwiseLinear(), PathwiseSmoothed()):
        found = audit_certificate(certificate, clean.ledger, threat)
        if "forward" in found.directions[level]:
            claims = True
            guarantee = certificate.certify(clean.ledger, clean.votes(certificate, threat), threat, level)
            certified = guarantee.radius >= size
            np.testing.assert_array_equal(guarantee.prediction[certified], other.predictions[certified])
    return claims


@settings(max_examples=60, deadline=None)
@given(config=update_attacks(), sample=st.integers(0, 59))
def test_capped_messages_in_place_of_those_of_some_clients_change_no_certified_prediction(
    config: dict[str, Any], sample: int
) -> None:
    """Observed norms and all: the ledger has never seen the attack. With a cap that is too large nothing is claimed."""
    clean, world = pair(config, sample)
    threat = world.threat()
    if assert_forward(clean, threat, "client", threat.attackers, world):
        for scenario in scenarios(clean, threat):
            actual = drift_between(world, clean, scenario.horizon) - scenario.rounding
            assert actual <= scenario.client_costs()[threat.attackers] * ROUNDING_FACTOR
    else:
        assert config["aggregation"][0]["bound"] == 500.0


@settings(max_examples=60, deadline=None)
@given(config=data_attacks(), sample=st.integers(0, 59))
def test_poisoned_data_to_come_change_no_certified_prediction(config: dict[str, Any], sample: int) -> None:
    """Attackers that keep to the protocol, as the forward reading assumes them; several rounds and scales as well."""
    for own in ("learning_rate", "steps"):
        config["attack"].pop(own, None)
    clean, world = pair(config, sample)
    threat, delta = world.threat(), float(threats.measure_attack(world.ledger).delta.max())
    if assert_forward(clean, threat, "sample", threat.poison_ratio, world):
        for scenario in scenarios(clean, threat):
            actual = drift_between(world, clean, scenario.horizon) - scenario.rounding
            assert actual <= scenario.sample_cost(np.array([threat.poison_ratio]))[0] * ROUNDING_FACTOR
            assert actual <= scenario.client_costs()[threat.attackers] * ROUNDING_FACTOR
    assert_forward(clean, threat, "client", threat.attackers, world)
    lipschitz = clean.ledger.facts.feature_lipschitz is not None
    if lipschitz and assert_forward(clean, threat, "feature", delta, world):
        for scenario in scenarios(clean, threat):
            actual = drift_between(world, clean, scenario.horizon) - scenario.rounding
            assert actual <= scenario.feature_cost(np.array([delta]))[0] * ROUNDING_FACTOR


def test_a_run_without_attackers_may_be_read_in_both_directions() -> None:
    world = play(federation_of(small(server=NOISY, aggregation=CAP)))
    for poison in ("update", "features+labels"):
        threat = Threat(clients=2, rounds=(2,), poison=poison)
        for level in ("feature", "sample", "client"):
            assert set(readings(world, threat, level).values()) == {("backward", "forward")}
    assert audit_certificate(Paper(), world.ledger, Threat(clients=1, rounds=(2,), poison="features")).directions == {
        "feature": ()
    }


def clean_world(**changes: Any) -> World:
    return play(federation_of(small(**{"server": NOISY, "aggregation": CAP} | changes)))


@pytest.mark.parametrize(
    ("changes", "threat", "reason"),
    [
        ({"server": NOISY | {"bad_update": "drop"}}, {"poison": "update"}, "bad updates keep their weight"),
        ({"server": NOISY | {"bad_update": "drop"}}, {"poison": "labels"}, "bad updates keep their weight"),
        ({"aggregation": [{"type": "update-cap", "bound": 50.0}, {"type": "fedavg"}]}, {}, "a cap above what honest"),
        ({}, {"clean_world": "scaled", "scale": 2.0}, "attackers scale in it"),
    ],
)
def test_what_only_binds_what_happened_is_refused_forward(
    changes: dict[str, Any], threat: dict[str, Any], reason: str
) -> None:
    world = clean_world(**changes)
    assumed = Threat(**({"clients": 1, "rounds": (2,), "poison": "update"} | threat))
    assert set(readings(world, assumed).values()) == {("backward",)}
    (failed,) = (
        check for check in audit_certificate(PathwiseLinear(), world.ledger, assumed).checks if check.status == "failed"
    )
    assert failed.direction == "forward"
    assert reason in f"{failed.name}: {failed.measured}"
    assert failed.remedy


def test_without_a_cap_what_was_submitted_bounds_the_past_and_nothing_bounds_what_comes() -> None:
    world = play(federation_of(certifiable(aggregation=[{"type": "fedavg"}])))
    threat = Threat(clients=1, rounds=(25,), poison="update")
    found = readings(world, threat)
    assert found == {"PathwiseLinear": ("backward",), "PathwiseSmoothed": ("backward",), "Tail": (), "Postprocess": ()}
    assert (world.certify(PathwiseLinear(), threat, "client").radius >= 1).mean() > 0.3


def test_an_attacked_run_may_be_read_forward_if_any_update_is_expected_of_its_attackers() -> None:
    """Two different poisonings of the same client can be twice as far apart as each is from clean."""
    attack = {"type": "steering", "clients": [0], "rounds": [2], "kind": "labels", "ratio": 0.5}
    federation = federation_of(small(server=NOISY, aggregation=CAP, attack=attack))
    world = attacked(federation, honest_world(federation))
    expected = {
        (("poison", "labels"), ("clients", 2)): ("backward",),
        (("poison", "update"), ("clients", 2)): ("backward", "forward"),
        (("poison", "update"), ("clients", (0, 3))): ("backward", "forward"),
        (("poison", "update"), ("clients", (1, 3))): ("backward",),
        (("poison", "update"), ("rounds", (3,))): ("backward",),
    }
    for changes, directions in expected.items():
        threat = world.threat().model_copy(update=dict(changes))
        assert audit_certificate(PathwiseLinear(), world.ledger, threat).directions["client"] == directions, changes


def test_a_breakdown_from_what_was_observed_says_nothing_about_another_attack() -> None:
    world = clean_world(aggregation=[{"type": "rfa"}], partition={"type": "iid", "clients": 6})
    assert readings(world, Threat(clients=1, rounds=(2,)))["Postprocess"] == ("backward",)


@pytest.mark.parametrize(
    ("poison", "level", "input_bound", "forward"),
    [
        ("features", "feature", 1.0, True),
        ("features", "feature", 6.0, False),
        ("features", "sample", 6.0, True),
        ("labels", "feature", 6.0, True),
        ("update", "feature", 6.0, True),
    ],
)
def test_several_attacked_rounds_need_steps_that_are_non_expansive_on_poisoned_inputs(
    poison: Any, level: Level, input_bound: float, forward: bool
) -> None:
    """The second attacked round of a world that was never seen starts from a model that was never seen.

    The shift of a gradient is then taken on the clean trajectory, and what remains is a poisoned step. With eta = 0.5
    and inputs up to 6 it may expand.
    """
    ledger = synthetic_ledger(cap=4.0, feature_norm_bound=1.0)
    threat = Threat(clients=1, rounds=(1, 3), poison=poison, input_bound=input_bound)
    assert ("forward" in audit_certificate(PathwiseLinear(), ledger, threat).directions[level]) == forward
    single = threat.model_copy(update={"rounds": (3,)})
    assert "forward" in audit_certificate(PathwiseLinear(), ledger, single).directions[level]


def test_scaled_updates_that_start_from_unseen_models_need_no_weight_decay() -> None:
    threat = Threat(clients=1, rounds=(1, 3), poison="labels", scale=3.0)
    for decay, forward in ((0.0, True), (0.1, False)):
        found = audit_certificate(PathwiseLinear(), synthetic_ledger(cap=4.0, decay=decay), threat)
        assert ("forward" in found.directions["sample"]) == forward


def with_checks(*checks: Check, sound: bool = True) -> Audit:
    return Audit("mine", sound, "" if sound else "not a proof", ("feature", "client"), checks)


def failed(direction: Direction | None = None, level: Level | None = None) -> Check:
    return Check("something", "failed", "this", "that", "do it", level=level, direction=direction)


FORWARD = Check("attacks to come are bounded", "held", direction="forward")


def test_the_forward_reading_is_not_claimed_if_nothing_is_checked_about_it() -> None:
    assert with_checks().directions == {"feature": ("backward",), "client": ("backward",)}


@pytest.mark.parametrize(
    ("checks", "directions"),
    [
        ([], {"feature": ("backward", "forward"), "client": ("backward", "forward")}),
        ([failed("forward")], {"feature": ("backward",), "client": ("backward",)}),
        ([failed("forward", "feature")], {"feature": ("backward",), "client": ("backward", "forward")}),
        ([failed("backward")], {"feature": ("forward",), "client": ("forward",)}),
        ([failed("backward"), failed("forward", "client")], {"feature": ("forward",), "client": ()}),
        ([failed("backward"), failed("forward")], {"feature": (), "client": ()}),
        ([failed(None, "client")], {"feature": ("backward", "forward"), "client": ()}),
        ([failed()], {"feature": (), "client": ()}),
    ],
)
def test_a_check_refuses_a_direction_a_level_or_all(
    checks: list[Check], directions: dict[Level, tuple[Direction, ...]]
) -> None:
    """What may be read in no direction is refused, and says why."""
    found = with_checks(*checks, FORWARD)
    assert found.directions == directions
    for level, left in directions.items():
        assert bool(found.refusal or found.refusal_at(level)) == (not left)
    assert bool(found.refusal) == (set(directions.values()) == {()})


def test_a_certificate_that_claims_no_soundness_is_read_in_no_direction() -> None:
    found = with_checks(sound=False)
    assert found.directions == {"feature": (), "client": ()}
    assert not found.refusal


def test_the_forward_reading_counts_the_cap_where_it_is_below_the_honest_bound() -> None:
    """A cap that shortens honest updates bounds both worlds alike, as `postprocess` may have it."""
    world = clean_world(aggregation=[{"type": "update-cap", "bound": 0.01}, {"type": "fedavg"}])
    threat = Threat(clients=1, rounds=(2,), poison="update")
    assert audit_certificate(Postprocess(), world.ledger, threat).directions["client"] == ("backward", "forward")
    costs = DriftBound(world.ledger, threat, 2).client_costs()
    weights = world.ledger.clients.of_round(2).weight_bound
    assert costs[1] == pytest.approx(2 * 0.01 * weights.max())


def test_every_number_says_in_which_direction_it_may_be_read(tmp_path: Path) -> None:
    """In results, curves, tables of certificates, and the audit, of an attacked run and of its clean twin."""
    attack = {"type": "steering", "clients": [0], "rounds": [2], "kind": "labels"}
    certificates = [{"type": "pathwise-linear"}, {"type": "paper"}]
    for name, changes, stated in (
        ("attacked", {"attack": attack}, ["backward"]),
        ("clean", {"threat": {"rounds": [2]}}, ["backward", "forward"]),
    ):
        config = small(server={"clip_norm": 4.0, "noise_std": 0.05}, certificates=certificates, **changes)
        run = crfl_core.run(config, out=tmp_path / name, plugins=PLUGINS)
        found = [(one.certificate, list(one.directions)) for one in run.certified]
        found += [(one.certificate, list(one.directions)) for one in run.metrics.curves]
        assert len(found) >= 8
        for certificate, directions in found:
            assert directions == (stated if certificate == "pathwise-linear" else [])
        linear, paper = json.loads((run.path / "audit.json").read_text())["certificates"]
        assert linear["directions"] == dict.fromkeys(("feature", "sample", "client"), stated)
        assert paper["directions"] == {"feature": []}
        assert {audit.certificate: audit.directions for audit in run.audits}["paper"] == {"feature": ()}
        header, first, *_ = (run.path / "certificates" / "pathwise-linear.csv").read_text().splitlines()
        assert dict(zip(header.split(","), first.split(","), strict=True))["directions"] == "+".join(stated)
