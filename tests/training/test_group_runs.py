"""Groups: every group trains a model of its own, and nothing that happens in one is noticed in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from crfl_models.networks import Mlp
from pydantic import PrivateAttr
from torch import Tensor

import crfl_core
from crfl_core import RunResult
from crfl_core.errors import ConfigError
from crfl_core.extend import (
    Aggregator,
    AttackerView,
    BoundModel,
    ClientUpdates,
    DataFacts,
    GroupVotes,
    LocalAlgorithm,
    LocalStep,
    PluginFailure,
    RoundRecord,
    RuleResult,
    State,
    StepDirection,
    formulas,
    hookimpl,
)
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
    (group,) = run.ledger.failed_groups
    for other in {0, 1, 2} - {group}:
        assert torch.equal(run.parameters[other], whole.parameters[other])
    told = [record.failed for record in run.ledger.rounds if record.group == group]
    assert told[0] is None
    assert all(reason is not None and "ValueError: no such client" in reason for reason in told[1:])
    votes = run.votes(run.certifier.questions[0].request)["clean"]
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


class Averaging(LocalAlgorithm):
    """Makes all gradients together one long."""

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        return StepDirection(step.gradient / step.gradient.norm())


class Mixed(BoundModel):
    """A network whose training, or whose answers, mix the clients or models that are computed together."""

    def __init__(self, model: BoundModel, what: str) -> None:
        self._model, self._what = model, what
        self.layout, self.facts = model.layout, model.facts

    def initial_parameters(self, generator: np.random.Generator) -> Tensor:
        return self._model.initial_parameters(generator)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        x = x - x.mean((0, 1)) if self._what == "training" else x
        if self._what == "sizes":  # as if to keep exponents small
            parameters = parameters - (parameters.max().clamp(min=1e2) - 1e2)
        return self._model.gradient(parameters, x, y, weights)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        logits = self._model.logits(parameters, x)
        return logits - logits.mean(0) if self._what == "answers" else logits


class MixedModel(Mlp):
    """The same as a plugin."""

    what: Literal["training", "answers", "sizes", "nothing"] = "nothing"

    def build(self, facts: DataFacts) -> BoundModel:
        return Mixed(super().build(facts), self.what)


@pytest.mark.parametrize("what", ["training", "answers", "sizes"])
def test_a_model_that_mixes_clients_is_found_before_training(what: str, tmp_path: Path) -> None:
    trained(grouped(model={"type": "mixed", "hidden": [6]}, rounds=1), tmp_path / "right", mixed=MixedModel)
    words = "a model answers" if what == "answers" else "a client trains"
    with pytest.raises(PluginFailure, match=f"{words} differently beside others than alone"):
        trained(grouped(model={"type": "mixed", "hidden": [6], "what": what}), tmp_path / "run", mixed=MixedModel)


def test_an_algorithm_that_mixes_clients_is_found_before_training(tmp_path: Path) -> None:
    config = grouped(training={"learning_rate": 0.2, "steps": 2, "batch_size": 16, "algorithm": "averaging"})
    with pytest.raises(PluginFailure, match=r"algorithm 'averaging'.*a client trains differently beside others"):
        trained(config, tmp_path / "run", averaging=Averaging)


class Remembering(Aggregator):
    """Weighs by what it saw first in a round, and adds a part of what it saw last, wherever that was."""

    _seen: dict[str, Any] = PrivateAttr(default_factory=dict)

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        longest = self._seen.setdefault(str(updates.round.number), float(updates.values.norm()))
        n, offset = len(updates.values), self._seen.get("last")
        weights = torch.full((n,), 1 / n / (1 + longest), dtype=torch.float64)
        update = weights.to(updates.values) @ updates.values
        self._seen["last"] = 0.5 * update
        return RuleResult(update if offset is None else update + offset, weights, offset=offset, state=state)


def test_what_a_rule_keeps_to_itself_stays_in_a_group(tmp_path: Path) -> None:
    config, rule = grouped(aggregation=["remembering"]), {"remembering": Remembering}
    clean = trained(config, tmp_path / "clean", **rule)
    groups = clean.ledger.facts.groups
    assert groups is not None
    for reached, members in enumerate(groups.members):
        attack = {"type": "shouting", "clients": [members[0]], "rounds": [1, 2, 3, 4]}
        attacked = trained(config | {"attack": attack}, tmp_path / str(reached), shouting=Shouting, **rule)
        for group in {0, 1, 2} - {reached}:
            assert torch.equal(attacked.parameters[group], clean.parameters[group])


class Watching(Aggregator):
    """Has seen how long the models of all groups are."""

    _lengths: list[float] = PrivateAttr(default_factory=list)

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        self._lengths.append(record.norm_before_clip)

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        n = len(updates.values)
        weights = torch.full((n,), 1 / n / (1 + sum(self._lengths)), dtype=torch.float64)
        return RuleResult(weights.to(updates.values) @ updates.values, weights, state=state)


def test_a_rule_that_watches_all_groups_refuses_the_certificate(tmp_path: Path) -> None:
    run = trained(grouped(aggregation=["watching"]), tmp_path / "run", watching=Watching)
    refused = run.metrics.refused["group-vote"]
    assert "nothing crosses groups: found hooks of 'watching' see all groups" in refused


class Scrubbing(Aggregator):
    """Wipes out the samples of the server where one client takes part."""

    needs_root: ClassVar[bool] = True

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        server = updates.round.server
        if 4 in updates.round.clients.ids:
            server.root.x.zero_()  # type: ignore[union-attr]
        n, offset = len(updates.values), -0.1 * server.gradient(updates.round.start)
        weights = torch.full((n,), 1 / n, dtype=torch.float64)
        return RuleResult(weights.to(updates.values) @ updates.values + offset, weights, offset=offset, state=state)


def test_a_rule_that_changes_what_all_groups_see_ends_the_run(tmp_path: Path) -> None:
    config = grouped(aggregation=["scrubbing"], reserve={"root": 20})
    with pytest.raises(PluginFailure, match="changed what it was given"):
        trained(config, tmp_path / "run", scrubbing=Scrubbing)


def test_the_accuracy_of_a_run_is_that_of_its_votes_also_if_a_group_failed(tmp_path: Path) -> None:
    run = trained(grouped(groups={"count": 2}, aggregation=["failing"]), tmp_path / "run", failing=Failing)
    votes = run.votes(run.certifier.questions[0].request)["clean"].expect(GroupVotes)
    elected = formulas.vote_counts(votes.ballots, 10, (1, 1)).argmax(1)
    assert run.ledger.failed_groups
    assert run.metrics.accuracy == pytest.approx(float((elected == votes.labels).mean()))


class Stretching(ModelReplacement):
    """Makes the model of its group so long that steps are lost in rounding."""

    length: float

    def craft(self, known: AttackerView, state: State) -> Tensor:
        return torch.full_like(known.own_updates, self.length)


@pytest.mark.parametrize("length", [1e6, 1e8, 1e9, 1e12, 3e37])
def test_a_model_that_became_long_does_not_end_the_run(length: float, tmp_path: Path) -> None:
    attack = {"type": "stretching", "clients": [4], "rounds": [1], "length": length}
    config = grouped(server={"clip_norm": 1e38, "noise_std": 0.0}, attack=attack)
    assert trained(config, tmp_path / "run", stretching=Stretching).metrics.accuracy > 0.2
