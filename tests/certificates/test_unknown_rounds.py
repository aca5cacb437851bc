"""Attacks in one round, or in a few, it is not known which: against every choice of rounds, one by one."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from crfl_certificates.paper import Paper
from crfl_certificates.pathwise_linear import PathwiseLinear
from crfl_certificates.pathwise_smoothed import PathwiseSmoothed
from crfl_certificates.postprocess import Postprocess
from crfl_certificates.tail import Tail
from rich.console import Console

import crfl_core
from crfl_core import RunResult, Threat
from crfl_core.certification import certifier
from crfl_core.certification.drift import DriftBound
from crfl_core.extend import Certificate, ConfigError, Ledger, Level
from crfl_core.reporting import terminal_tables as tables
from crfl_core.reporting.csv_files import audit_entries
from crfl_core.runs import certify
from tests.certificates.federations import certifiable, small
from tests.certificates.ledgers import synthetic_ledger
from tests.certificates.worlds import World, attacked, federation_of, honest_world

Crfl = Callable[..., CompletedProcess[str]]
ROUNDS = 5


def uneven_ledger(seed: int, **changes: Any) -> Ledger:
    """Five rounds in which rates, caps, participants and start models differ; weight decay lets some be forgotten."""
    random = np.random.default_rng(seed)
    present = tuple(tuple(sorted(random.choice(4, random.integers(2, 5), replace=False))) for _ in range(ROUNDS))
    ledger = synthetic_ledger(participants=present, cap=2.0, decay=0.05, **changes)
    rows, size = ledger.clients, len(ledger.clients)
    rates = (0.5 * random.uniform(0.2, 1.0, ROUNDS))[rows.round - 1]
    caps = rows.update_bound * random.uniform(1.0, 3.0, size)
    submitted = random.uniform(0.0, 1.5, size)
    changed = replace(rows, learning_rate=rates, honest_rate=rates, cap=caps, residual_norm=np.minimum(caps, submitted))
    norms = random.uniform(0.1, 3.0, ROUNDS)
    records = tuple(
        record.model_copy(update={"start_norm": norm, "start_operator_norm": norm})
        for record, norm in zip(ledger.rounds, norms.tolist(), strict=True)
    )
    return Ledger(ledger.facts, records, changed)


def any_of(threat: Threat, count: int, rounds: int = ROUNDS) -> Threat:
    return threat.model_copy(update={"rounds": tuple(range(1, rounds + 1)), "rounds_at_most": count})


def choices(threat: Threat, count: int) -> list[Threat]:
    """The same threat for every choice of that many rounds."""
    return [
        threat.model_copy(update={"rounds": chosen}) for chosen in itertools.combinations(range(1, ROUNDS + 1), count)
    ]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("count", [1, 2, 4])
def test_poisoned_data_in_unknown_rounds_cost_what_the_worst_choice_of_rounds_does(seed: int, count: int) -> None:
    ledger = uneven_ledger(seed)
    threat = Threat(clients=2 if seed % 2 else (0, 3), rounds=(1,), poison_ratio=0.3, scale=1.5 if seed % 3 else 1.0)
    unknown = DriftBound(ledger, any_of(threat, count), ROUNDS, observed=True)
    known = [DriftBound(ledger, one, ROUNDS, observed=True) for one in choices(threat, count)]
    deltas, shares = np.array([0.0, 0.1, 1.0, np.inf]), np.linspace(0.0, 1.0, 5)
    for costs, of in (
        (unknown.feature_cost(deltas), [one.feature_cost(deltas) for one in known]),
        (unknown.sample_cost(shares), [one.sample_cost(shares) for one in known]),
        (unknown.sample_costs(), [one.sample_costs() for one in known]),
    ):
        np.testing.assert_allclose(costs, np.max(of, axis=0), rtol=1e-12)
    assert unknown.rounding >= max(one.rounding for one in known)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("poison", ["update", "replacement"])
def test_clients_in_unknown_rounds_cost_no_less_than_any_choice_and_exactly_that_for_one_or_all(
    seed: int, poison: str
) -> None:
    ledger = uneven_ledger(seed)
    threat = Threat(clients=1, rounds=(1,)).model_copy(update={"poison": poison})
    for count in range(1, ROUNDS + 1):
        unknown = DriftBound(ledger, any_of(threat, count), ROUNDS, observed=True).client_costs()
        worst = np.max(
            [DriftBound(ledger, one, ROUNDS, observed=True).client_costs() for one in choices(threat, count)], axis=0
        )
        if count in (1, ROUNDS):
            np.testing.assert_allclose(unknown, worst, rtol=1e-12)
        assert (unknown >= worst * (1 - 1e-12)).all()


def test_an_attack_in_one_unknown_round_meets_no_other_that_would_expand_its_gap() -> None:
    ledger = uneven_ledger(0)
    threat = Threat(clients=1, rounds=(1,), scale=10.0, clean_world="scaled")
    one, two = (DriftBound(ledger, any_of(threat, count), ROUNDS) for count in (1, 2))
    every = DriftBound(ledger, threat.model_copy(update={"rounds": tuple(range(1, ROUNDS + 1))}), ROUNDS)
    assert (one.lipschitz <= 1.0).all()
    assert (two.lipschitz == every.lipschitz).all()
    assert every.lipschitz.max() > 1.0


def independent_costs(config: dict[str, Any], count: int) -> float:
    """What one capped client of equal weight costs in the `count` worst rounds, from the settings alone."""
    training, rounds, clients = config["training"], config["rounds"], config["partition"]["clients"]
    rate, decay, norm = training["learning_rate"], training["weight_decay"], config["model"]["features"]["radius"]
    kept = (1 - rate * decay) ** training["steps"]
    longest = np.sqrt(2) * norm * sum(rate * (1 - rate * decay) ** step for step in range(training["steps"]))
    faded = [2 / clients * longest * kept ** (rounds - number) for number in range(1, rounds + 1)]
    return float(sum(sorted(faded)[-count:]))


@pytest.fixture(scope="module")
def clean() -> World:
    # without noise, so that nothing but the attack parts the worlds, and with inputs that reach their bound
    settings = {"server": {"clip_norm": 20.0, "noise_std": 0.0, "cap_updates": False}, "rounds": 12}
    attack = {"type": "submitting", "clients": [3], "rounds": [5], "how": "push"}
    return honest_world(federation_of(certifiable(**settings, attack=attack)))


@pytest.mark.parametrize("count", [1, 3, 12])
def test_the_cost_of_one_client_is_that_of_the_worst_rounds_by_hand(clean: World, count: int) -> None:
    threat = any_of(Threat(clients=1, rounds=(1,), poison="update"), count, rounds=12)
    found = DriftBound(clean.ledger, threat, 12).client_costs()[1]
    by_hand = independent_costs(certifiable(rounds=12), count)
    norms = max(clean.ledger.facts.feature_norms) / 3.0
    assert found == pytest.approx(by_hand * norms, rel=0.02)


@pytest.mark.parametrize("certificate", [PathwiseLinear(), PathwiseSmoothed()], ids=["linear", "smoothed"])
@pytest.mark.parametrize("level", ["feature", "sample", "client"])
def test_one_unknown_round_is_certified_as_the_worst_of_all_single_rounds(
    certificate: Certificate, level: Level
) -> None:
    clean = honest_world(federation_of(certifiable(rounds=6)))
    threat = Threat(clients=1, rounds=(1,), poison="features+labels", poison_ratio=0.5)
    found = clean.certify(certificate, any_of(threat, 1, rounds=6), level).radius
    single = [threat.model_copy(update={"rounds": (number,)}) for number in range(1, 7)]
    worst = np.min([clean.certify(certificate, one, level).radius for one in single], axis=0)
    assert (np.isnan(found) == np.isnan(worst)).mean() > 0.98
    both = ~np.isnan(found) & np.isfinite(worst)
    assert (found[both] <= worst[both]).all()
    np.testing.assert_allclose(found[both], worst[both], rtol=1e-6)


def test_no_round_to_attack_in_changes_what_is_certified_for_any_round(clean: World) -> None:
    """One capped client pushes straight at each prediction in turn, in every single round."""
    threat = any_of(Threat(clients=1, rounds=(1,), poison="update"), 1, rounds=12)
    stood = clean.certify(PathwiseLinear(), threat, "client").radius >= 1
    assert stood.mean() > 0.2
    bound = DriftBound(clean.ledger, threat, 12, observed=False).client_costs()[1]
    reached = 0.0
    for number in range(1, 13):
        for sample in np.flatnonzero(stood)[:: max(1, int(stood.sum()) // 3)]:
            settings = certifiable(
                rounds=12,
                server={"clip_norm": 20.0, "noise_std": 0.0, "cap_updates": False},
                attack={"type": "submitting", "clients": [3], "rounds": [number], "how": "push"},
            )
            world = attacked(federation_of(settings), clean, int(sample))
            drift = float((world.final - clean.final).norm())
            assert drift <= bound
            reached = max(reached, drift / bound)
            assert (world.predictions[stood] == clean.predictions[stood]).all()
    assert reached > 0.5


def test_the_paper_counts_its_worst_round() -> None:
    settings = {"server": {"clip_norm": 4.0, "noise_std": 0.3, "cap_updates": False}}
    clean = honest_world(federation_of(small(**settings, votes={"models": 200})))
    threat = Threat(clients=1, rounds=(1,), poison="features", poison_ratio=0.1)
    found = clean.certify(Paper(), any_of(threat, 1, rounds=4), "feature").radius
    single = [threat.model_copy(update={"rounds": (number,)}) for number in range(1, 5)]
    each = [clean.certify(Paper(), one, "feature").radius for one in single]
    np.testing.assert_array_equal(found, np.min(each, axis=0))
    two = clean.certify(Paper(), any_of(threat, 2, rounds=4), "feature").radius
    assert (two[~np.isnan(two)] < found[~np.isnan(two)]).all()
    assert "exactly one" in " ".join(
        certifier.audit_certificate(Paper(), clean.ledger, any_of(threat, 2, rounds=4)).conditions
    )


@pytest.mark.parametrize("certificate", [Tail(), Postprocess()], ids=["tail", "postprocess"])
def test_certificates_that_draw_noise_again_say_why_they_have_to_know_the_round(certificate: Certificate) -> None:
    refusal = certifier.audit_certificate(
        certificate, uneven_ledger(1), any_of(Threat(clients=1, rounds=(1,)), 1)
    ).refusal
    assert "found any one of rounds 1..5" in refusal
    assert "each possible one needs a stored model and continuations of its own" in refusal
    assert "'pathwise-linear'" in refusal


def test_fresh_noise_after_all_rounds_that_may_be_attacked_needs_no_known_round() -> None:
    ledger = synthetic_ledger()
    early = Threat(clients=1, rounds=(1, 2), rounds_at_most=1)
    assert not certifier.audit_certificate(Tail(resample_from=2), ledger, early).refusal
    assert "within 1..1" in certifier.audit_certificate(Tail(resample_from=1), ledger, early).refusal


def test_a_run_that_was_attacked_more_often_is_not_covered_and_no_clean_world() -> None:
    attack = {"type": "submitting", "clients": [3], "rounds": [2, 4], "how": "push"}
    federation = federation_of(certifiable(rounds=5, attack=attack))
    world = attacked(federation, honest_world(federation))
    once, twice = (any_of(Threat(clients=1, rounds=(1,), poison="update"), count) for count in (1, 2))
    done = world.threat(scale=1.0)
    assert once.excess(done) == ("2 rounds were attacked, at most 1 assumed",)
    assert twice.excess(done) == ()
    forward = {
        count: certifier.audit_certificate(PathwiseLinear(), world.ledger, one)
        for count, one in ((1, once), (2, twice))
    }
    assert forward[1].directions_at("client") == ("backward",)
    assert set(forward[2].directions_at("client")) == {"backward", "forward"}


def test_bad_updates_in_more_rounds_than_assumed_are_refused() -> None:
    attack = {"type": "submitting", "clients": [3], "rounds": [2, 4], "how": "not-finite"}
    federation = federation_of(certifiable(rounds=5, attack=attack))
    world = attacked(federation, honest_world(federation))
    once, twice = (any_of(Threat(clients=1, rounds=(1,), poison="update"), count) for count in (1, 2))
    assert "bad updates" in certifier.audit_certificate(PathwiseLinear(), world.ledger, once).refusal
    assert not certifier.audit_certificate(PathwiseLinear(), world.ledger, twice).refusal


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    settings = certifiable(
        dataset={"type": "digits", "train_samples": 600, "test_samples": 60},
        server={"clip_norm": 20.0, "noise_std": 0.01, "cap_updates": False},
        certificates=[
            {"type": "pathwise-linear", "levels": ["client"]},
            {"type": "tail", "continuations": 8, "selection": 8, "levels": ["client"]},
        ],
    )
    return crfl_core.run(settings, out=tmp_path_factory.mktemp("unknown") / "run")


def test_a_finished_run_answers_for_any_for_a_few_and_for_every_round(run: RunResult) -> None:
    asked: list[certify.Attacked] = ["any", 3, "every"]
    answers = [crfl_core.certify(run, rounds=rounds) for rounds in asked]
    assert [answer.threat.rounds_text for answer in answers] == [
        "any one of rounds 1..30",
        "any 3 of rounds 1..30",
        "rounds 1..30",
    ]
    assert {answer.needs for answer in answers} == {"formulas"}
    rates = [sum(answer.curves[0].certified_rate) for answer in answers]
    assert rates[0] > rates[1] > rates[2] > 0
    assert "needs a stored model and continuations of its own" in answers[0].refused["tail"]
    written = crfl_core.certify(run, ["threat.rounds={any = 3, first = 1, last = 30}"])
    assert written.curves == answers[1].curves


def test_more_unknown_rounds_than_there_are_is_an_error(run: RunResult) -> None:
    with pytest.raises(ConfigError, match=r"threat\.rounds: found at most 31 attacked rounds, but there are 30"):
        crfl_core.certify(run, rounds=31)
    with pytest.raises(ConfigError, match=r"threat\.rounds"):
        crfl_core.certify(run, rounds=0)


def test_the_command_line_asks_the_same(run: RunResult, crfl: Crfl, tmp_path: Path) -> None:
    assert "any one of rounds 1..30" in crfl("certify", str(run.path), "--any-round").stdout
    assert "any 2 of rounds 1..30" in crfl("certify", str(run.path), "--rounds-at-most", "2").stdout
    assert "rounds 1..30" in crfl("certify", str(run.path), "--every-round").stdout
    both = crfl("certify", str(run.path), "--any-round", "--every-round")
    assert both.returncode != 0
    assert "give one of --any-round, --rounds-at-most and --every-round" in both.stderr


@pytest.fixture(scope="module")
def attacked_run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """The same with an attack in an early round, which is nearly forgotten in the end."""
    settings = certifiable(
        dataset={"type": "digits", "train_samples": 600, "test_samples": 60},
        attack={"type": "model-replacement", "clients": [0], "rounds": [3], "poisoned_per_batch": 2},
        training={"learning_rate": 1.0, "steps": 1, "batch_size": 16, "weight_decay": 0.1},
        certificates=[{"type": "pathwise-linear", "levels": ["client"]}, {"type": "tail", "continuations": 8}],
    )
    return crfl_core.run(settings, out=tmp_path_factory.mktemp("unknown") / "run")


def test_a_run_shows_what_holds_for_any_round_beside_the_round_of_its_attack(attacked_run: RunResult) -> None:
    asked = crfl_core.certify(attacked_run, rounds="any")
    for shown, other in zip(attacked_run.metrics.curves[:2], asked.curves, strict=False):
        assert shown.rounds == "round 3"
        common = [radius for radius in shown.radii if radius in other.radii]
        assert [shown.any_round_accuracy[shown.radii.index(one)] for one in common] == [
            other.certified_accuracy[other.radii.index(one)] for one in common
        ]
        assert sum(shown.any_round_rate) < sum(shown.certified_rate)
    assert all(not curve.any_round_rate for curve in attacked_run.metrics.curves if curve.certificate == "tail")
    table = show(attacked_run)
    assert "any round" in table
    assert "round 3" in table


def test_the_csv_has_a_radius_for_any_round_where_it_was_asked(attacked_run: RunResult) -> None:
    asked = {one.test_set: one.guarantee.radius for one in crfl_core.certify(attacked_run, rounds="any").certified}
    for name in ("pathwise-linear", "tail"):
        with (attacked_run.path / "certificates" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        for test_set in ("clean", "backdoored"):
            column = [row["any_round_radius"] for row in rows if row["set"] == test_set]
            expected = asked[test_set] if name == "pathwise-linear" else np.full(len(column), np.nan)
            np.testing.assert_array_equal([float(cell or "nan") for cell in column], expected)
        if name == "pathwise-linear":
            assert any(row["any_round_radius"] != row["radius"] for row in rows)


def test_stated_rounds_get_the_same_answer(attacked_run: RunResult) -> None:
    stated = crfl_core.certify(attacked_run, ["threat.rounds=[3]"])
    assert not any(curve.any_round_rate for curve in stated.curves)
    assert [one.certified_rate for one in stated.curves] == [one.certified_rate for one in attacked_run.metrics.curves]


def show(run: RunResult) -> str:
    console = Console(record=True, width=200, file=io.StringIO())
    tables.show_guarantees(console, run.metrics.curves, audit_entries(run.audits))
    return console.export_text()
