"""Groups: every group trains a model of its own, and nothing that happens in one is noticed in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from torch import Tensor

import crfl_core
from crfl_core import RunResult
from crfl_core.extend import Aggregator, ClientUpdates, RuleResult, State
from crfl_interface.errors import ConfigError
from tests.engines.process_engine import ProcessEngine
from tests.oracle import federation_of, tiny

GROUPS = {"count": 3}
MODELS = [{"type": "softmax"}, {"type": "mlp", "hidden": [6]}]
CAP = {"type": "update-cap", "bound": 5.0}
CHAINS: list[Any] = [["fedavg"], ["median"], [{"type": "krum", "f": 0}], [CAP, "fedavg"], ["foolsgold"]]


def grouped(**changes: Any) -> dict[str, Any]:
    """Nine clients in three groups on 300 digits."""
    partition = {"type": "iid", "clients": 9}
    return tiny(partition=partition, groups=GROUPS, attack="none", certificates=["group-vote"]) | changes


def trained(config: dict[str, Any], path: Path, **plugins: Any) -> RunResult:
    return crfl_core.run(config, out=path, plugins=plugins)


class Shouting(ModelReplacement):
    """Submits numbers beyond all bounds, or none at all."""

    what: Literal["huge", "nan"] = "huge"

    def scales(self, weights: Tensor) -> Tensor:
        return torch.full_like(weights, 1e6 if self.what == "huge" else torch.nan)


@pytest.mark.parametrize("what", ["huge", "nan"])
@pytest.mark.parametrize("aggregation", CHAINS, ids=lambda chain: str(chain[-1]))
@pytest.mark.parametrize("model", MODELS, ids=["softmax", "mlp"])
def test_what_a_client_submits_reaches_its_own_group_alone(
    model: dict[str, Any], aggregation: Any, what: str, tmp_path: Path
) -> None:
    config = grouped(model=model, aggregation=aggregation, server={"clip_norm": 5.0, "noise_std": 0.02})
    clean = trained(config, tmp_path / "clean")
    attack = {"type": "shouting", "clients": [4], "rounds": [1, 2, 3, 4], "what": what}
    attacked = trained(config | {"attack": attack}, tmp_path / "attacked", shouting=Shouting)
    members = clean.ledger.facts.groups
    assert members is not None
    (reached,) = [group for group, clients in enumerate(members.members) if 4 in clients]
    same = [torch.equal(*models) for models in zip(clean.parameters, attacked.parameters, strict=True)]
    assert all(same[group] for group in range(3) if group != reached)
    if aggregation[-1] == "fedavg":
        assert not same[reached]


def test_one_group_is_the_ordinary_case_bit_for_bit(tmp_path: Path) -> None:
    alone = trained(grouped(groups={"count": 1}), tmp_path / "alone")
    ordinary = trained(grouped(groups=None, certificates=["pathwise-linear"]), tmp_path / "ordinary")
    assert torch.equal(alone.parameters[0], ordinary.parameters)


@pytest.mark.parametrize("engine", [{"type": "local", "chunk_clients": 2}, {"type": "processes", "workers": 2}])
def test_every_engine_trains_the_same_groups(engine: dict[str, Any], tmp_path: Path) -> None:
    expected = trained(grouped(dtype="float64"), tmp_path / "local").parameters
    found = trained(grouped(dtype="float64", engine=engine), tmp_path / "other", processes=ProcessEngine).parameters
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_groups_with_few_participants_are_never_empty(tmp_path: Path) -> None:
    training = {"learning_rate": 0.2, "steps": 2, "batch_size": 16, "participation": 0.4}
    ledger = trained(grouped(training=training), tmp_path / "run").ledger
    assert [record.participants for record in ledger.rounds] == [1] * 12
    assert len({tuple(ledger.clients.of_round(number).client) for number in range(1, 5)}) > 1


def test_groups_are_dealt_by_a_salted_hash(tmp_path: Path) -> None:
    def members(salt: int) -> tuple[tuple[int, ...], ...]:
        facts = federation_of(grouped(groups={"count": 4, "salt": salt})).facts.groups
        assert facts is not None
        return facts.members

    assert sorted(client for group in members(0) for client in group) == list(range(9))
    assert sorted(map(len, members(0))) == [2, 2, 2, 3]
    assert members(0) != members(1)


def test_natural_groups_are_those_of_the_data() -> None:
    config = grouped(
        dataset={"type": "synthetic", "groups": 4}, partition={"type": "natural"}, groups={"by": "natural"}
    )
    facts = federation_of(config).facts.groups
    assert facts is not None
    assert facts.members == ((0,), (1,), (2,), (3,))


def test_subsets_share_clients_and_train_apart(tmp_path: Path) -> None:
    groups = {"by": "subsets", "count": 8, "size": 4}
    run = trained(grouped(groups=groups, certificates=["ensemble"]), tmp_path / "run")
    assert run.parameters.shape == (8, 650)
    assert len(np.unique(run.parameters.numpy(), axis=0)) == 8
    facts = run.ledger.facts.groups
    assert facts is not None
    assert {len(members) for members in facts.members} == {4}
    assert sum(4 in members for members in facts.members) > 1
    assert not run.metrics.refused


class Failing(Aggregator):
    """Breaks down where one client takes part."""

    client: int = 4

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        if self.client in updates.round.clients.ids and updates.round.number == 2:
            raise ValueError("no such client")
        n = len(updates.values)
        weights = torch.full((n,), 1 / n, dtype=torch.float64)
        return RuleResult(weights.to(updates.values) @ updates.values, weights, state=state)


def test_a_group_that_fails_votes_for_class_0_and_the_others_never_notice(tmp_path: Path) -> None:
    whole = trained(grouped(aggregation=[{"type": "failing", "client": 99}]), tmp_path / "whole", failing=Failing)
    run = trained(grouped(aggregation=["failing"]), tmp_path / "run", failing=Failing)
    (group,) = run.ledger.failed
    for other in {0, 1, 2} - {group}:
        assert torch.equal(run.parameters[other], whole.parameters[other])
    told = [record.failed for record in run.ledger.rounds if record.group == group]
    assert told[0] is None
    assert all(reason is not None and "ValueError: no such client" in reason for reason in told[1:])
    votes = run.votes(run.inquiry.questions[0].request)["clean"]
    ballots = vars(votes)["ballots"]
    assert (ballots[:, group] == 0).all()
    assert all(np.unique(ballots[:, other]).size > 5 for other in {0, 1, 2} - {group})
    assert any("vote for class 0" in check.measured for check in run.audits[0].checks)


def test_a_single_model_that_fails_ends_the_run(tmp_path: Path) -> None:
    config = grouped(groups=None, aggregation=["failing"], certificates=["pathwise-linear"])
    with pytest.raises(crfl_core.CrflError, match="no such client"):
        trained(config, tmp_path / "run", failing=Failing)


@pytest.mark.parametrize(
    ("groups", "complaint"),
    [
        ({"count": 10}, "groups.count: found 10, but there are only 9 clients, and no group may be empty"),
        ({}, "must be left out of natural groups, and given for others"),
        ({"by": "natural"}, "groups.by: 'natural' needs clients whose data have one natural owner each"),
        ({"by": "subsets", "count": 5}, "belongs to by = 'subsets', which needs it"),
        ({"by": "subsets", "count": 5, "size": 10}, "groups.size: found 10, but there are only 9 clients"),
        ({"count": 3, "weights": [1, 2]}, "needs one for each of the 3 groups, found 2"),
        ({"count": 2, "weights": [0, 0]}, "some group must count"),
    ],
)
def test_groups_that_cannot_be_made_are_refused(groups: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        trained(grouped(groups=groups), tmp_path / "run")
