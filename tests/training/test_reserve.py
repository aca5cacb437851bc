"""Samples that the server trusts: drawn before clients get a share, disjoint, on the record, hidden from others."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import crfl_core
from crfl_core import load_config
from crfl_core.config import dump_config
from crfl_core.extend import (
    Aggregator,
    Attack,
    AttackerView,
    ClientUpdates,
    ConfigError,
    Data,
    Dataset,
    Domain,
    FederatedData,
    FixedStage,
    Mixing,
    Plugin,
    PluginError,
    PluginFailure,
    Registry,
    Round,
    RoundFacts,
    RuleResult,
    RunContext,
    ServerView,
    State,
    Streams,
    Tracker,
    hookimpl,
)
from crfl_core.runs.run_directory import RunDirectory
from crfl_core.training.federation import Federation
from tests.oracle import contents, federation_of, played, tiny


class Numbered(Dataset):
    """Samples that can be told apart: the first feature of sample i is i."""

    first: int = 0
    names: tuple[str, ...] = ("even", "odd")
    features: int = 3
    highest: float = 999.0

    def read(self) -> Data:
        x = np.zeros((100, self.features), np.float32)
        x[:, 0] = self.first + np.arange(100)
        y = np.arange(100) % 2
        return Data(x, y, x[:10], y[:10], Domain(0.0, self.highest), self.names, groups=np.arange(100) // 10)


def mean(updates: ClientUpdates, state: State) -> RuleResult:
    weights = torch.full((len(updates.values),), 1 / len(updates.values), dtype=torch.float64)
    return RuleResult(weights.to(updates.values) @ updates.values, weights, state=state)


class Rooted(Aggregator):
    """The mean, by a rule that wants samples of the server."""

    needs_root = True

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        return mean(updates, state)


PLUGINS: dict[str, type[Plugin]] = {"numbered": Numbered, "rooted": Rooted}
OTHERS = {"type": "numbered", "scaling": "none", "first": 500}


def numbered(reserve: dict[str, Any], **changes: Any) -> Federation:
    """Ten clients with ten samples each, less what is reserved."""
    settings = {"dataset": {"type": "numbered", "scaling": "none"}, "partition": {"type": "natural"}, "attack": "none"}
    return federation_of(tiny(reserve=reserve, **(settings | changes)), PLUGINS)


def ids(x: Tensor) -> list[int]:
    """Which samples these are."""
    return [int(value) for value in x[:, 0]]


def test_counts_and_shares_are_taken_out_before_the_partitioner_sees_anything() -> None:
    federation = numbered({"root": 5, "curator": 0.2, "validation": 7})
    kept = {name: ids(one.features) for name, one in federation.reserve.items()}
    assert {name: len(rows) for name, rows in kept.items()} == {"root": 5, "curator": 20, "validation": 7}
    all_ids = [*ids(federation.data.x), *kept["root"], *kept["curator"], *kept["validation"]]
    assert sorted(all_ids) == list(range(100))
    assert sorted(ids(federation.data.x)) == ids(federation.data.x)
    for client, rows in enumerate(federation.data.partition):  # groups stay with their samples
        assert {number // 10 for number in ids(federation.data.x[torch.from_numpy(rows)])} == {client}


def test_the_draw_follows_the_seed_of_the_data_alone() -> None:
    one, same, other = (
        ids(numbered({"root": 20}, seed=seed, seeds={"data": data}).reserve["root"].features)
        for seed, data in ((1, 3), (2, 3), (1, 4))
    )
    assert one == same != other
    labels = numbered({"root": 20}).reserve["root"]
    assert [number % 2 for number in ids(labels.features)] == labels.labels.tolist()


def test_without_a_reserve_nothing_changes() -> None:
    assert ids(numbered({}).data.x) == list(range(100))
    assert numbered({}).reserve == {}


def test_a_dataset_of_its_own_leaves_the_training_data_whole() -> None:
    federation = numbered({"root": {"dataset": OTHERS, "samples": 8}, "validation": {"dataset": OTHERS}})
    assert ids(federation.data.x) == list(range(100))
    assert len(set(ids(federation.reserve["root"].features))) == 8
    assert min(ids(federation.reserve["root"].features)) >= 500
    assert sorted(ids(federation.reserve["validation"].features)) == list(range(500, 600))


@pytest.mark.parametrize(
    ("reserve", "message"),
    [
        ({"root": 60, "validation": 0.4}, "reserve.validation: nothing is left for the clients: 100 of 100"),
        ({"root": {"dataset": OTHERS, "samples": 101}}, "reserve.root.samples: found 101, but there are only 100"),
        ({"root": {"dataset": OTHERS | {"features": 4}}}, "reserve.root.dataset: its inputs have 4 features"),
        ({"root": {"dataset": OTHERS | {"names": ["a", "b"]}}}, "reserve.root.dataset: its classes are not those"),
        (
            {"curator": {"dataset": OTHERS | {"first": 1000, "highest": 2000.0}}},
            "reserve.curator.dataset: its inputs leave [0, 999], the domain of the run",
        ),
    ],
)
def test_what_cannot_be_reserved_is_said_before_training(reserve: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = tiny(dataset={"type": "numbered", "scaling": "none"}, attack="none", reserve=reserve)
    with pytest.raises(ConfigError, match=re.escape(message)):
        crfl_core.run(config, plugins=PLUGINS, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_curator_may_have_other_classes() -> None:
    federation = numbered({"curator": {"dataset": OTHERS | {"names": ["a", "b"]}, "samples": 9}})
    assert len(federation.reserve["curator"].labels) == 9


@pytest.mark.parametrize("value", [0, 1.5, "a few", {"samples": 5}, {"dataset": "digits", "sample": 5}])
def test_values_that_make_no_sense_are_refused_with_their_key(value: object) -> None:
    with pytest.raises(ConfigError, match=r"reserve\.root"):
        load_config({"reserve": {"root": value}})


def test_the_table_survives_a_config_file() -> None:
    reserve = {"root": {"dataset": OTHERS, "samples": 8}, "curator": 20, "validation": 0.1}
    registry = Registry(PLUGINS)
    config = load_config(tiny(reserve=reserve), registry=registry).config
    assert load_config(tomllib.loads(dump_config(config)), registry=registry).config == config
    own = config.with_own_plugins().reserve
    assert own == config.reserve
    assert next(own.datasets) is not next(config.reserve.datasets)


def test_a_rule_that_needs_root_samples_is_refused_without() -> None:
    message = "'rooted', aggregation.0, learns from samples that the server trusts: set it to their number, such as 100"
    with pytest.raises(ConfigError, match=message) as refusal:
        numbered({}, aggregation=["rooted"])
    assert refusal.value.key == "reserve.root"


def test_the_ledger_and_every_audit_say_whom_the_run_trusted(tmp_path: Path) -> None:
    certificates = ["paper", "pathwise-linear"]
    config = tiny(reserve={"root": 20, "validation": 30}, aggregation=["rooted"], certificates=certificates)
    result = crfl_core.run(config, plugins=PLUGINS, out=tmp_path / "run")
    facts = result.ledger.facts.reserve
    assert {name: (kept.samples, kept.used_by) for name, kept in facts.items()} == {
        "root": (20, ("rooted",)),
        "validation": (30, ()),
    }
    assert facts["root"].digest != facts["validation"].digest
    for audit in result.audits:
        (check,) = [check for check in audit.checks if "trusted" in check.name]
        assert (check.status, check.measured) == ("declared", "reserve.root: 20 samples, used by rooted")
    plain = crfl_core.run(config | {"aggregation": ["fedavg"]}, out=tmp_path / "plain")
    assert not [check for audit in plain.audits for check in audit.checks if "trusted" in check.name]


def test_validation_samples_are_a_test_set_beside_the_clean_one(tmp_path: Path) -> None:
    config = tiny(
        reserve={"validation": 50}, attack="none", threat={"clients": 1, "rounds": [2]}, certificates=["paper"]
    )
    result = crfl_core.run(config, out=tmp_path / "run")
    found = {certified.test_set: len(certified.labels) for certified in result.certified}
    assert found == {"clean": 60, "validation": 50}
    assert result.ledger.facts.test_sets["validation"].samples == 50
    assert {curve.test_set for curve in result.metrics.curves} == {"clean", "validation"}


def test_a_resume_with_other_samples_is_refused(tmp_path: Path) -> None:
    class Stop(Tracker):
        """Stops the run."""

        @hookimpl
        def crfl_round_started(self, current: Round) -> None:
            if current.number == 3:
                raise KeyboardInterrupt

    config = tiny(reserve={"root": {"dataset": {"type": "digits", "split_seed": 3}, "samples": 20}})
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config, out=tmp_path / "run", trackers=[Stop()])
    facts = federation_of(config).facts
    directory = RunDirectory(tmp_path / "run")
    directory.check_facts(facts)
    others = {"root": facts.reserve["root"].model_copy(update={"digest": "0" * 64})}
    with pytest.raises(crfl_core.CrflError, match="reserve"):
        directory.check_facts(facts.model_copy(update={"reserve": others}))


class Shown(Aggregator):
    """Keeps what it is shown; does not ask for samples of the server."""

    def prepare(self, server: ServerView) -> State:
        assert server.root is None
        return {"seen": torch.zeros(server.federation_size, dtype=torch.int64)}

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        assert updates.round.server.root is None
        seen = state["seen"].clone()
        seen[torch.from_numpy(updates.round.clients.ids)] += 1
        return mean(updates, {"seen": seen})


def test_who_does_not_ask_for_root_samples_is_not_handed_them() -> None:
    """And a history of every client is a tensor with a row for each, from the first round on."""
    federation = federation_of(
        tiny(
            reserve={"root": 20},
            aggregation=["shown"],
            training={"steps": 1, "participation": 0.5},
            attack="none",
        ),
        {"shown": Shown},
    )
    rounds = played(federation)
    seen = rounds[-1].states["aggregation.0"]["seen"]
    expected = sum(np.bincount(one.clients.client, minlength=8) for one in rounds)
    assert seen.tolist() == np.asarray(expected).tolist()
    assert int(seen.sum()) == 16
    assert rounds[0].record.carries_state


def test_what_was_prepared_is_in_the_checkpoint_and_made_once(tmp_path: Path) -> None:
    prepared: list[int] = []

    class Once(Shown):
        """Counts how often it is prepared."""

        def prepare(self, server: ServerView) -> State:
            prepared.append(1)
            return super().prepare(server)

    class Stop(Tracker):
        """Stops the run."""

        @hookimpl
        def crfl_round_started(self, run: RunContext, current: Round) -> None:
            if current.number == 3 and run.resumed_from == 0:
                raise KeyboardInterrupt

    plugins: dict[str, type[Plugin]] = {"once": Once}
    config = tiny(aggregation=["once"], certificates=[], storage={"checkpoint_seconds": 0, "figures": []})
    whole = crfl_core.run(config, out=tmp_path / "whole", plugins=plugins)
    assert len(prepared) == 1
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config, out=tmp_path / "halves", plugins=plugins, trackers=[Stop()])
    resumed = crfl_core.resume(tmp_path / "halves", plugins=plugins)
    assert len(prepared) == 2
    assert contents(resumed.path) == contents(whole.path)


def test_attacks_and_hooks_do_not_see_what_the_server_has() -> None:
    refused: list[str] = []

    def look(current: Round) -> None:
        with pytest.raises(PluginFailure, match="for steps of the aggregation"):
            current.server  # noqa: B018 - it raises
        refused.append("")

    class Curious(Attack):
        """Wants to know what the server has."""

        def prepare(self, data: FederatedData, streams: Streams) -> State:
            return {}

        def craft(self, known: AttackerView, state: State) -> Tensor:
            look(known.round)
            look(known.honest.round)
            return known.own_updates.clone()

    class Watching(Rooted):
        """Wants to know it in its hooks as well."""

        @hookimpl
        def crfl_effective_weights(self, updates: ClientUpdates) -> None:
            look(updates.round)

        @hookimpl
        def crfl_accept_round(self, current: Round) -> None:
            look(current)

        @hookimpl
        def crfl_round_started(self, current: Round, run: RunContext) -> None:
            look(current)
            assert len(run.data.y) == 280

    plugins: dict[str, type[Plugin]] = {"curious": Curious, "watching": Watching}
    attack = {"type": "curious", "clients": [0], "rounds": [2]}
    played(federation_of(tiny(reserve={"root": 20}, aggregation=["watching"], attack=attack), plugins))
    assert len(refused) == 3 * 4 + 2


def test_a_step_that_must_not_depend_on_the_updates_cannot_look_at_the_server() -> None:
    with pytest.raises(PluginError, match="`prepare`, but a step that must not depend on the updates sees nothing"):

        class Prepared(FixedStage):
            """Prepares itself."""

            def prepare(self, server: ServerView) -> State:
                return {}

            def mixing(self, facts: RoundFacts) -> Mixing:
                return Mixing(torch.ones(len(facts.clients)))

    with pytest.raises(PluginError, match="`needs_root`, but a step"):

        class Needy(FixedStage):
            """Wants samples."""

            needs_root = True

            def mixing(self, facts: RoundFacts) -> Mixing:
                return Mixing(torch.ones(len(facts.clients)))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1], r"prepare\(\) .* must return `state` as a mapping of tensors, found list"),
        ({"a": 1}, r"prepare\(\) .*: state\['a'\] must be a tensor, found int"),
    ],
)
def test_what_is_prepared_must_fit_into_a_checkpoint(answer: Any, message: str) -> None:
    class Wrong(Rooted):
        """Prepares something else."""

        def prepare(self, server: ServerView) -> State:
            return answer  # type: ignore[no-any-return]

    with pytest.raises(PluginFailure, match=message):
        played(federation_of(tiny(reserve={"root": 5}, aggregation=["wrong"]), {"wrong": Wrong}))


@pytest.mark.parametrize("when", ["prepare", "aggregate"])
def test_changing_the_samples_of_the_server_stops_the_run(when: str) -> None:
    class Writing(Rooted):
        """Writes into what all others would continue with."""

        def prepare(self, server: ServerView) -> State:
            if when == "prepare":
                self.spoil(server)
            return {}

        def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
            self.spoil(updates.round.server)
            return mean(updates, state)

        def spoil(self, server: ServerView) -> None:
            assert server.root is not None
            server.root.x.numpy()[0] += 1.0

    with pytest.raises(PluginFailure, match=rf"{when}\(\) .* changed what it was given"):
        played(federation_of(tiny(reserve={"root": 5}, aggregation=["writing"]), {"writing": Writing}))


def test_another_process_trains_on_what_is_left() -> None:
    """Engines build local training from its specification, which does not name the aggregation."""
    here = federation_of(tiny(reserve={"root": 30, "validation": 0.1}, aggregation=["fltrust"]))
    assert "fltrust" not in here.specification
    there = federation_of(tomllib.loads(here.specification))
    assert torch.equal(here.data.x, there.data.x)
    assert [rows.tolist() for rows in here.data.partition] == [rows.tolist() for rows in there.data.partition]
