"""The Condorcet vote of groups in a run: what is predicted, certified, attacked and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from crfl_certificates.group_vote import GroupVote
from numpy.typing import NDArray
from torch import Tensor

import crfl_core
from crfl_core import RunResult
from crfl_core.errors import ConfigError, CrflError
from crfl_core.extend import (
    Aggregator,
    AttackerView,
    ClientUpdates,
    GroupRankings,
    Guarantee,
    RuleResult,
    State,
    formulas,
)
from crfl_core.runs.attack import attack_certificates
from crfl_core.runs.planned_ledger import plan_audits
from crfl_core.testing import check_plugin
from tests.oracle import federation_of, tiny

Crfl = Callable[..., CompletedProcess[str]]
CONDORCET = {"count": 9, "voting": "condorcet"}


def grouped(**changes: Any) -> dict[str, Any]:
    """Nine clients, each with a model of its own, on 300 digits; they vote by pairs of classes."""
    defaults: dict[str, Any] = {
        "dataset": {"type": "digits", "test_samples": 120},
        "partition": {"type": "iid", "clients": 9},
        "groups": CONDORCET,
        "training": {"learning_rate": 0.5, "steps": 20, "batch_size": 32},
        "attack": "none",
        "certificates": ["group-vote"],
    }
    return tiny(**(defaults | changes))


def trained(config: dict[str, Any], path: Path, **plugins: Any) -> RunResult:
    return crfl_core.run(config, out=path, plugins=plugins)


def rankings(run: RunResult) -> GroupRankings:
    return run.votes(run.certifier.questions[0].request)["clean"].expect(GroupRankings)


def clean_guarantee(run: RunResult, name: str = "group-vote") -> Guarantee:
    return next(one for one in run.certified if (one.test_set, one.certificate) == ("clean", name)).guarantee


def elected(ranks: NDArray[Any], weights: NDArray[Any]) -> list[int]:
    """By the definition, one pair of classes after the other."""
    winners = []
    for table in ranks.astype(int):
        classes = range(table.shape[1])

        def beats(one: int, other: int, table: NDArray[Any] = table) -> bool:
            ahead = weights[table[:, one] < table[:, other]].sum()
            return bool(2 * ahead - weights.sum() >= (other < one))

        found = [one for one in classes if all(beats(one, other) for other in classes if other != one)]
        firsts = np.array([weights[table[:, one] == 0].sum() for one in classes])
        winners.append(found[0] if found else int(firsts.argmax()))
    return winners


class Turning(ModelReplacement):
    """Submits whatever moves the model of its group away, as far as it can go."""

    def craft(self, known: AttackerView, state: State) -> Tensor:
        generator = torch.Generator().manual_seed(known.round.number)
        return -30.0 * known.own_updates + torch.randn(
            known.own_updates.shape, generator=generator, dtype=known.own_updates.dtype
        )


@pytest.mark.parametrize(
    "groups",
    [CONDORCET, CONDORCET | {"weights": [3, 1, 1, 2, 1, 1, 1, 2, 1]}, {"by": "subsets", "count": 12, "size": 2}],
    ids=["equal", "weights", "subsets"],
)
def test_no_certified_prediction_changes_under_attack_in_every_round(groups: dict[str, Any], tmp_path: Path) -> None:
    config = grouped(groups=groups | {"voting": "condorcet"}, partition={"type": "iid", "clients": 18})
    clean = trained(config, tmp_path / "clean")
    assert not clean.metrics.refused
    guarantee = clean_guarantee(clean)
    collective = clean.metrics.collective[0]
    reached, changed = 0, 0
    facts = clean.ledger.facts.groups
    assert facts is not None
    first = [members[0] for members in facts.members]
    for number, clients in enumerate([first[:1], first[-1:], [first[1], first[5]], [first[2], first[4], first[7]]]):
        attack = {"type": "turning", "clients": clients, "rounds": [1, 2, 3, 4]}
        attacked = trained(config | {"attack": attack}, tmp_path / str(number), turning=Turning)
        stands = guarantee.radius >= len(clients)
        reached += int(stands.sum())
        found = clean_guarantee(attacked).prediction
        assert (found == guarantee.prediction)[stands].all()
        changed += int((found != guarantee.prediction).sum())
        if len(clients) in collective.clients:
            least = collective.collective_accuracy[collective.clients.index(len(clients))]
            assert least is not None
            assert attacked.metrics.accuracy >= least
    assert reached > 100
    assert changed > 5  # or the attack would show nothing
    assert not any(collective.exact)


def test_accuracy_prediction_and_certificate_are_about_the_same_winner(tmp_path: Path) -> None:
    weights = [3, 1, 1, 2, 1, 1, 1, 2, 1]
    partition = {"type": "dirichlet", "clients": 9, "alpha": 1.0}
    run = trained(grouped(groups=CONDORCET | {"weights": weights}, partition=partition), tmp_path / "run")
    votes = rankings(run)
    expected = elected(votes.ranks, np.array(weights))
    assert clean_guarantee(run).prediction.tolist() == expected
    assert run.metrics.accuracy == pytest.approx(float((np.array(expected) == votes.labels).mean()))
    assert run.metrics.voting == "condorcet"
    x = crfl_core.load(run.path).config.dataset.read().test_x
    fresh = crfl_core.predict(run, np.asarray(x))
    assert fresh.classes.tolist() == fresh.certified[0].guarantee.prediction.tolist()
    plurality = formulas.vote_counts(votes.ballots, 10, weights).argmax(axis=1)
    assert (plurality != expected).any()  # or this test would not tell the rules apart


def test_the_rule_is_part_of_the_training_and_no_question_changes_it(tmp_path: Path) -> None:
    run = trained(grouped(), tmp_path / "run")
    assert run.ledger.facts.groups is not None
    assert run.ledger.facts.groups.voting == "condorcet"
    with pytest.raises(ConfigError, match="groups"):
        crfl_core.certify(run, overrides=["groups.voting='plurality'"])
    check = next(check for check in run.audits[0].checks if check.name == "voting rule is fixed before round 1")
    assert check.status == "held"
    assert "Condorcet" in check.measured


def test_the_rule_changes_no_bit_of_the_models(tmp_path: Path) -> None:
    pairs = trained(grouped(), tmp_path / "pairs")
    plurality = trained(grouped(groups={"count": 9}), tmp_path / "plurality")
    assert torch.equal(plurality.parameters, pairs.parameters)
    assert plurality.metrics.voting == "plurality"


class Failing(Aggregator):
    """Breaks down where one client takes part."""

    client: int = 4

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        if self.client in updates.round.clients.ids and updates.round.number == 2:
            raise ValueError("no such client")
        weights = torch.full((len(updates.values),), 1 / len(updates.values), dtype=torch.float64)
        return RuleResult(weights.to(updates.values) @ updates.values, weights, state=state)


def test_a_failed_group_ranks_the_classes_by_number(tmp_path: Path) -> None:
    """Its ballot is the same whatever happens in the other groups, and theirs do not change."""
    whole = rankings(
        trained(grouped(aggregation=[{"type": "failing", "client": 99}]), tmp_path / "whole", failing=Failing)
    )
    run = trained(grouped(aggregation=["failing"]), tmp_path / "run", failing=Failing)
    (failed,) = run.ledger.failed_groups
    votes = rankings(run)
    assert (votes.ranks[:, failed] == np.arange(10)).all()
    assert (votes.ballots[:, failed] == 0).all()
    others = np.delete(np.arange(9), failed)
    assert (votes.ranks[:, others] == whole.ranks[:, others]).all()
    assert run.metrics.accuracy == pytest.approx(float((clean_guarantee(run).prediction == votes.labels).mean()))
    assert any("rank the classes by number" in check.measured for check in run.audits[0].checks)


def test_groups_that_certify_themselves_count_for_more(tmp_path: Path) -> None:
    config = {
        "groups": {"count": 3, "voting": "condorcet"},
        "dtype": "float64",
        "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
        "training": {"learning_rate": 1.0, "steps": 20, "batch_size": 32, "weight_decay": 0.05},
        "server": {"clip_norm": 50.0, "noise_std": 0.0},
        "aggregation": [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}],
        "threat": {"clients": 1, "rounds": [1], "poison": "update"},
        "rounds": 8,
    }
    refined = {"type": "group-vote", "name": "refined", "refine": True}
    run = trained(grouped(**config, certificates=[{"type": "group-vote"}, refined]), tmp_path / "run")
    assert not run.metrics.refused
    one, other = clean_guarantee(run).radius, clean_guarantee(run, "refined").radius
    assert (other >= one).all()
    assert (other > one).sum() > 20
    attack = {"type": "turning", "clients": [0], "rounds": [1]}
    attacked = trained(grouped(**config, attack=attack), tmp_path / "attacked", turning=Turning)
    stands = other >= 1
    assert (clean_guarantee(attacked).prediction == clean_guarantee(run).prediction)[stands].all()


def test_named_candidates_reach_their_own_groups_only(tmp_path: Path) -> None:
    threat = {"clients": [2, 6], "poison": "update"}
    config = grouped(threat=threat, certificates=[{"type": "group-vote", "candidates": "named"}])
    run = trained(config, tmp_path / "run")
    free = crfl_core.certify(run, overrides=["certificates=['group-vote']"])
    radius = next(one for one in free.certified if one.test_set == "clean").guarantee.radius
    named = clean_guarantee(run).radius
    decided = formulas.condorcet_vote(rankings(run).ranks).decided
    assert (named >= np.minimum(radius, 2))[decided].all()
    assert named.max() == 2
    assert (named[~decided] == 0).all()


@pytest.mark.parametrize(
    ("certificate", "groups"),
    [("ensemble", {"by": "subsets", "count": 12, "size": 2}), ("backdoor", {"count": 9})],
)
def test_certificates_of_the_plurality_vote_are_refused_before_training(
    certificate: str, groups: dict[str, Any], tmp_path: Path
) -> None:
    config = grouped(groups=groups | {"voting": "condorcet"}, certificates=[certificate, "group-vote"])
    planned = {name: why for audit in plan_audits(federation_of(config)) for name, why in audit.refusals.items()}
    told = "found condorcet, needs groups.voting = 'plurality': train with groups.voting = 'plurality'"
    assert list(planned) == [certificate]
    assert told in planned[certificate]
    assert trained(config, tmp_path / "run").metrics.refused == planned


def test_attackers_who_know_everything_change_nothing_that_is_certified(tmp_path: Path) -> None:
    run = trained(grouped(dataset={"type": "digits", "test_samples": 80}, rounds=2), tmp_path / "run")
    for clients in (1, 2):
        report = attack_certificates(run, clients=clients, replays=3)
        (statement,) = report.statements
        assert statement.flipped == 0
        assert statement.certified > 20
        assert statement.strongest is not None
        assert 0.5 < statement.strongest <= 1.0


def test_damaged_rankings_are_refused(tmp_path: Path) -> None:
    run = trained(grouped(), tmp_path / "run")
    (file,) = (run.path / "votes").glob("*.npz")
    arrays = dict(np.load(file))
    arrays["clean/ranks"][0, 0, 0] = arrays["clean/ranks"][0, 0, 1]
    np.savez_compressed(file, **arrays)
    with pytest.raises(CrflError):
        rankings(crfl_core.load(run.path))


def test_a_certificate_of_condorcet_votes_alone_is_tried_on_such_a_run() -> None:
    class Pairs(GroupVote):
        """Certifies the Condorcet vote only."""

        votings: ClassVar[tuple[str, ...]] = ("condorcet",)

    report = check_plugin(Pairs())
    assert not [result for result in report if result.status == "failed"]
    assert sum(result.status == "passed" for result in report) > 10


def test_tables_name_the_vote_and_say_that_its_collective_accuracy_is_a_bound(crfl: Crfl, tmp_path: Path) -> None:
    run = trained(grouped(), tmp_path / "run")
    plurality = trained(grouped(groups={"count": 9}), tmp_path / "plurality")
    compared = crfl("compare", plurality.path, run.path).stdout
    assert "condorcet" in compared
    assert "group-vote: collective certified accuracy is a lower bound for groups.voting=condorcet" in compared
    assert "lower bound" not in crfl("compare", plurality.path).stdout
    assert "collective certified accuracy is a lower bound\n" in crfl("compare", run.path).stdout
    assert "Condorcet: the winner beats every other class" in crfl("show", run.path).stdout
    full = crfl("show", run.path, "--full").stdout
    assert "at least" in full
    assert "voting rule is fixed before round 1" in full
    assert "vote of the groups" in run._repr_html_()
    assert json.loads((run.path / "metrics.json").read_text())["voting"] == "condorcet"
    rows = (run.path / "collective" / "group-vote.csv").read_text().splitlines()
    assert rows[0] == "set,clients,of_clients,collective_certified_accuracy,exact"
    assert {row.rpartition(",")[2] for row in rows[1:]} == {"False"}
