"""`crfl attack`: no certified prediction changes in a replay, and a certificate that is wrong is refuted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
import torch
from crfl_certificates.backdoor import Backdoor
from crfl_certificates.group_vote import GroupVote
from crfl_certificates.pathwise_linear import PathwiseLinear

import crfl_core
from crfl_core import RunResult
from crfl_core.extend import BoundMap, ConfigError, CrflError, FeatureMap, Guarantee, Ledger, Level, Threat, Votes
from crfl_core.runs.attack import AttackedStatement, AttackReport, attack_certificates
from tests.certificates.federations import ZerosAndOnes
from tests.oracle import tiny

Crfl = Callable[..., CompletedProcess[str]]
NOISY = {"clip_norm": 4.0, "noise_std": 0.1}
EASY = {"dataset": {"type": "zeros-and-ones", "train_samples": 280, "test_samples": 60}}
"""Two digits, which even few rounds tell apart with a large margin."""
MANY = {"partition": {"type": "iid", "clients": 70}}
PLUGINS: dict[str, Any] = {"zeros-and-ones": ZerosAndOnes}


def linear(**changes: Any) -> dict[str, Any]:
    """Twenty clients whose server caps updates, for ten rounds that forget: much is certified."""
    defaults: dict[str, Any] = {
        "rounds": 10,
        "dtype": "float64",
        "dataset": {"type": "digits", "test_samples": 80},
        "partition": {"type": "iid", "clients": 20},
        "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 3.0}},
        "training": {"learning_rate": 1.0, "steps": 1, "batch_size": 16, "weight_decay": 0.1},
        "server": {"clip_norm": 20.0, "noise_std": 0.001},
        "attack": "none",
        "threat": {"clients": 1, "rounds": [2], "poison": "update"},
        "certificates": ["pathwise-linear"],
    }
    return tiny(**(defaults | changes))


def grouped(**changes: Any) -> dict[str, Any]:
    """Nine groups of two clients."""
    defaults: dict[str, Any] = {
        "rounds": 2,
        "dataset": {"type": "digits", "test_samples": 80},
        "partition": {"type": "iid", "clients": 18},
        "groups": {"count": 9},
        "training": {"learning_rate": 0.5, "steps": 20, "batch_size": 32},
        "attack": "none",
        "certificates": ["group-vote"],
    }
    return tiny(**(defaults | changes))


def attacked(config: dict[str, Any], path: Path, **options: Any) -> AttackReport:
    run = crfl_core.run(config, out=path / "run", plugins=PLUGINS)
    return attack_certificates(run, **options)


def found(report: AttackReport, level: Level = "client") -> AttackedStatement:
    """The only statement at a level."""
    (one,) = (one for one in report.statements if one.level == level)
    return one


@pytest.mark.parametrize(
    "changes",
    [
        {},
        EASY | {"threat": {"clients": 2, "rounds": "any", "poison": "update"}},
        EASY | {"threat": {"clients": 1, "rounds": {"any": 2}, "poison": "update"}},
        EASY | MANY | {"threat": {"clients": 1, "rounds": "every", "poison": "update"}},
        EASY | {"threat": {"clients": [3, 4], "rounds": [1, 2], "poison": "update"}},
        {"certificates": ["pathwise-smoothed"]},
        EASY | {"server": NOISY, "certificates": [{"type": "pathwise-smoothed", "method": "monte-carlo"}]},
        {"engine": {"type": "stacked"}},
        {"engine": {"type": "local", "chunk_clients": 3}},
        {"training": {"learning_rate": 1.0, "steps": 1, "weight_decay": 0.1, "participation": 0.5}},
        {"server": {"clip_norm": 20.0, "noise_std": 0.001, "optimiser": {"type": "rate", "learning_rate": 0.5}}},
    ],
    ids=[
        "one round",
        "any round",
        "any two",
        "every round",
        "named",
        "smoothed",
        "sampled",
        "stacked",
        "chunks",
        "part",
        "rate",
    ],
)
def test_no_prediction_of_one_model_changes(changes: dict[str, Any], tmp_path: Path) -> None:
    report = attacked(linear(**changes), tmp_path, replays=2)
    one = found(report)
    assert one.flipped == 0
    assert one.certified > 0
    assert one.strongest is not None
    assert 0.05 < one.strongest <= 1.0


def test_poisoned_data_change_nothing_that_is_certified_against_them(tmp_path: Path) -> None:
    threat = {"clients": 1, "rounds": [2], "poison": "features", "poison_ratio": 0.5}
    report = attacked(linear(threat=threat), tmp_path, replays=2)
    assert {one.level for one in report.statements} == {"client", "sample", "feature"}
    for one in report.statements:
        assert one.attack == "poisoned data"
        assert one.certified > 0
        assert one.flipped == 0
        assert one.strongest is not None
        assert 0.05 < one.strongest <= 1.0


@pytest.mark.parametrize(
    ("certificate", "aggregation"),
    [("tail", ["fedavg"]), ("postprocess", ["fedavg"]), ("postprocess", ["rfa"]), ("postprocess", ["krum"])],
)
def test_votes_over_fresh_noise_stay_with_what_is_certified(
    certificate: str, aggregation: list[str], tmp_path: Path
) -> None:
    config = linear(
        rounds=4,
        **EASY,
        partition={"type": "iid", "clients": 8},
        # Updates are short in the attacked round, so that its noise hides what a rule may let through.
        training={"learning_rate": [1.0, 0.01, 1.0, 1.0], "steps": 1, "batch_size": 16, "weight_decay": 0.05},
        server=NOISY,
        aggregation=aggregation,
        certificates=[{"type": certificate, "continuations": 200, "selection": 20}],
    )
    one = found(attacked(config, tmp_path, replays=1))
    assert one.flipped == 0
    assert one.certified > 0
    assert one.strongest is not None
    assert 0.0 <= one.strongest <= 1.0  # Krum may choose the same update, whatever is pushed


@pytest.mark.parametrize(
    "rule", ["fedavg", "krum", "median", "trimmed-mean", "rfa", "foolsgold", "centered-clipping", "dnc", "flame"]
)
def test_a_client_moves_one_group_behind_any_rule(rule: str, tmp_path: Path) -> None:
    config = grouped(partition={"type": "iid", "clients": 30}, groups={"count": 6}, aggregation=[rule])
    one = found(attacked(config, tmp_path))
    assert one.flipped == 0
    assert one.certified > 40


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": "mlp"},
        {"dtype": "float64", "engine": {"type": "local", "chunk_clients": 2}},
        {"groups": {"count": 9, "weights": [5, 1, 1, 1, 1, 1, 1, 1, 1]}},
        {"training": {"learning_rate": 0.5, "steps": 20, "participation": 0.5}},
    ],
    ids=["softmax", "mlp", "chunks", "weights", "part"],
)
def test_the_vote_of_groups_stands_and_loses_all_that_attackers_can_take(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    one = found(attacked(grouped(**changes), tmp_path, clients=2))
    assert one.flipped == 0
    assert one.certified > 30
    assert one.changed > 0
    assert one.strongest is not None
    assert 0.5 <= one.strongest <= 1.0


def triggered(**changes: Any) -> dict[str, Any]:
    """Nine clients with a linear model each, behind a map with a Lipschitz constant."""
    defaults: dict[str, Any] = {
        "partition": {"type": "iid", "clients": 9},
        "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 3.0}},
        "training": {"learning_rate": 2.0, "steps": 40, "batch_size": 32},
        "threat": {"clients": 1, "rounds": [1]},
        "certificates": ["backdoor"],
    }
    return grouped(**(defaults | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"threat": {"clients": [0, 4], "rounds": [1]}},
        {"model": {"type": "softmax", "bias": False, "features": {"type": "random-fourier", "outputs": 200}}},
        {"model": {"type": "softmax", "features": "scattering"}},
        {"dtype": "float64", "model": "softmax"},
    ],
    ids=["ball", "two named", "cosines", "wavelets", "no maps"],
)
def test_malicious_clients_and_triggers_change_nothing_within_the_radius(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    one = found(attacked(triggered(**changes), tmp_path), "backdoor")
    assert one.attack == "pushed updates and triggers"
    assert one.flipped == 0
    assert one.certified > 5
    assert one.changed > 0
    assert one.strongest is not None
    assert 0.5 <= one.strongest <= 1.0


def test_the_triggers_of_an_attacked_run_are_tried_on_the_clean_one(tmp_path: Path) -> None:
    attack = {"type": "model-replacement", "clients": [0], "rounds": [2], "poisoned_per_batch": 8, "scale": 5.0}
    report = attacked(triggered(attack=attack, threat={}), tmp_path, replays=1)
    (own,) = (one for one in report.statements if one.attack == "the attack of the run and triggers")
    assert own.certified > 30
    assert own.flipped == 0


class Enlarged(Backdoor):
    """Promises triggers of twice the norm."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        true = super().certify(ledger, votes, threat, level)
        return Guarantee(**vars(true) | {"radius": 2.0 * true.radius})


def test_a_radius_for_triggers_that_is_too_large_is_refuted(tmp_path: Path) -> None:
    config = triggered(certificates=["wrong"])
    run = crfl_core.run(config, out=tmp_path / "run", plugins={"wrong": Enlarged})
    one = found(attack_certificates(run, replays=1), "backdoor")
    assert one.flipped > 10
    assert len(one.flipped_samples) == one.flipped


class BoundHalves(BoundMap):
    """Halves inputs in NumPy, through which PyTorch finds no gradient."""

    lipschitz = 0.5

    def __init__(self, inputs: int) -> None:
        self.outputs = inputs

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(0.5 * x.numpy())

    def norm_bound(self, inputs: float) -> float:
        return 0.5 * inputs


class Halves(FeatureMap):
    def bind(self, inputs: int) -> BoundMap:
        return BoundHalves(inputs)


def test_triggers_need_feature_maps_with_a_gradient(tmp_path: Path) -> None:
    config = triggered(model={"type": "softmax", "features": "halves"}, certificates=["group-vote", "backdoor"])
    run = crfl_core.run(config, out=tmp_path / "run", plugins={"halves": Halves})
    report = attack_certificates(run, replays=1)
    assert "its feature maps have none" in report.not_attacked["backdoor (backdoor level, every round)"]
    assert found(report).certified > 30


class Overstated(GroupVote):
    """Promises one client more than it may."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        true = super().certify(ledger, votes, threat, level)
        return Guarantee(**vars(true) | {"radius": true.radius + 1})


class Careless(PathwiseLinear):
    """Promises that no number of clients changes anything."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        true = super().certify(ledger, votes, threat, level)
        return Guarantee(**vars(true) | {"radius": np.full_like(true.radius, 99.0)})


@pytest.mark.parametrize(
    ("certificate", "config"),
    [(Overstated, grouped()), (Careless, linear(threat={"clients": 8, "rounds": [9, 10], "poison": "update"}))],
)
def test_a_wrong_certificate_is_refuted(certificate: type[Any], config: dict[str, Any], tmp_path: Path) -> None:
    run = crfl_core.run(config | {"certificates": ["wrong"]}, out=tmp_path / "run", plugins={"wrong": certificate})
    one = found(attack_certificates(run))
    assert one.flipped > 0
    assert len(one.flipped_samples) == one.flipped


def test_an_attacked_run_is_compared_with_its_clean_replay_as_well(tmp_path: Path) -> None:
    attack = {"type": "model-replacement", "clients": [0], "rounds": [2], "poisoned_per_batch": 1, "scale": 1.0}
    report = attacked(linear(attack=attack, threat={}), tmp_path, replays=1)
    own = [one for one in report.statements if one.attack == "the attack of the run"]
    assert {one.level for one in own} >= {"client", "sample"}
    assert sum(one.certified for one in own) > 0
    assert report.flipped == 0
    assert {one.rounds for one in report.statements} >= {"round 2", "any one of rounds 1..10"}


def test_it_says_what_it_cannot_attack(tmp_path: Path) -> None:
    certificates = ["paper", "pathwise-linear", {"type": "group-vote"}]
    report = attacked(linear(certificates=certificates), tmp_path, replays=1)
    reasons = report.not_attacked
    assert reasons["paper (feature level, round 2)"] == "it claims no soundness"
    assert "set groups.count" in reasons["group-vote (client level, every round)"]
    assert "client level" in reasons["pathwise-linear (sample level, round 2)"]
    far = attacked(linear(threat={"clients": 20, "rounds": [10], "poison": "update"}), tmp_path / "far", replays=1)
    assert not far.statements
    assert "nothing is certified against 20 malicious client(s)" in str(far.not_attacked)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Shared by the tests below, which do not change it."""
    return crfl_core.run(grouped(), out=tmp_path_factory.mktemp("attacked") / "run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 19}, "clients must be 1 to 18, the clients of the run, found 19"),
        ({"replays": 0}, "replays must be at least 1, found 0"),
        ({"certificates": ["tail"]}, "has no certificate 'tail': it has group-vote"),
    ],
)
def test_wrong_arguments_are_refused(run: RunResult, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        attack_certificates(run, **options)


def test_a_machine_with_other_bits_is_refused(run: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flip that comes from another processor would say nothing about certificates."""
    other = crfl_core.load(run.path)
    monkeypatch.setattr(other, "parameters", torch.nextafter(run.parameters, torch.tensor(torch.inf)), raising=False)
    with pytest.raises(CrflError, match="ends with another model than the run"):
        attack_certificates(other)


def test_the_command_prints_a_verdict_and_writes_nothing(run: RunResult, crfl: Crfl) -> None:
    before = sorted(run.path.rglob("*"))
    process = crfl("attack", str(run.path), "--replays", "1", "--clients", "2")
    assert process.returncode == 0, process.stderr
    assert "certified predictions attacked, 0 flipped; the strongest attack reached" in process.stdout
    assert sorted(run.path.rglob("*")) == before
    as_json = crfl("attack", str(run.path), "--replays", "1", "--json")
    assert json.loads(as_json.stdout)["statements"][0]["flipped"] == 0


def test_the_command_fails_if_a_certified_prediction_changes(
    run: RunResult, crfl: Crfl, monkeypatch: pytest.MonkeyPatch
) -> None:
    certify = GroupVote.certify

    def promise_more(self: GroupVote, *given: Any) -> Guarantee:
        true = certify(self, *given)
        return Guarantee(**vars(true) | {"radius": true.radius + 1})

    monkeypatch.setattr(GroupVote, "certify", promise_more)
    process = crfl("attack", str(run.path))
    assert process.returncode == 2, process.stdout
    assert " 0 flipped" not in process.stdout
