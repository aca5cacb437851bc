"""Isolation of groups, to the last bit: one group's clients do anything, and no other group's model notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from crfl_models.feature_maps.rescaling import BoundUnitBall, UnitBall
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import PrivateAttr
from torch import Tensor, nn

import crfl_core
from crfl_core.errors import ConfigError
from crfl_core.extend import (
    Aggregator,
    AttackerView,
    Batches,
    BoundMap,
    BoundModel,
    Clients,
    ClientUpdates,
    Data,
    DataFacts,
    Dataset,
    Domain,
    LocalAlgorithm,
    LocalStep,
    Model,
    ModuleModel,
    Partitioner,
    PluginFailure,
    Registry,
    RuleResult,
    State,
    StepDirection,
    Streams,
)
from crfl_core.plugin_api.dataset import ScalingKind
from crfl_core.plugin_api.feature_map import FeatureMap, FeatureMaps
from crfl_core.training import rounds
from crfl_core.training.features import load_or_compute_features, map_inputs
from crfl_core.training.session import Session
from tests.oracle import federation_of, tiny

SAMPLES = 24
"""Samples of every honest client."""
GROUPS = 3


class Blocks(Partitioner):
    """Gives every client a block of the samples, and shares those of two attackers between them as asked."""

    attackers: tuple[int, int]
    first: int

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        rows = list(np.split(np.arange(len(data.y)), len(data.y) // SAMPLES))
        one, other = self.attackers
        both = np.concatenate([rows[one], rows[other]])
        rows[one] = both[: self.first]
        rows[other] = both[self.first :]
        return tuple(rows)


class Anything(ModelReplacement):
    """Submits numbers that are huge, not finite, or none of both."""

    what: Literal["nan", "huge", "silence", "noise", "trained"] = "nan"

    def poison(self, batches: Batches, state: State) -> Batches:
        return batches if self.what == "trained" else super().poison(batches, state)

    def craft(self, known: AttackerView, state: State) -> Tensor:
        own = known.own_updates
        if self.what in ("trained", "noise"):
            return 30.0 * own + (self.what == "noise") * torch.linspace(-1.0, 1.0, own.shape[1]).to(own)
        return torch.full_like(own, {"nan": torch.nan, "huge": 1e38, "silence": 0.0}[self.what])


class Interfering(Anything):
    """Changes single steps as well."""

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:
        return -1e3 * gradient


PLUGINS: dict[str, Any] = {"blocks": Blocks, "anything": Anything, "interfering": Interfering}
MODELS: list[Any] = [
    {"type": "softmax"},
    {"type": "softmax", "bias": False},
    {"type": "mlp", "hidden": [5]},
    {"type": "cnn", "channels": [2]},
]
ENGINES: list[Any] = [
    {"type": "local", "threads": 1},
    {"type": "local", "threads": 2},
    {"type": "local", "threads": 1, "chunk_clients": 1},
    {"type": "local", "threads": 1, "chunk_clients": 2},
    {"type": "local", "threads": 1, "chunk_clients": 5},
    {"type": "stacked"},
    {"type": "stacked", "models": 2, "place": 1, "parts": 3, "chunk_clients": 2},
]


AGGREGATIONS: list[Any] = [
    ["fedavg"],
    [{"type": "update-cap", "bound": 2.0}, "fedavg"],
    ["median"],
    ["rfa"],
    ["foolsgold"],
    ["flame"],
    [{"type": "per-layer", "rule": {"type": "median"}}],
]
OPTIMISERS: list[Any] = [None, "momentum", "adam"]


def models_of(config: dict[str, Any], plugins: dict[str, Any] = PLUGINS) -> Tensor:
    """The models of all groups after each round, (rounds, G, P)."""
    federation = federation_of(config, plugins)
    session = Session.of(federation, Path("nowhere"))
    with session.open_engine():
        played = rounds.play_rounds(session, rounds.initial_progress(federation))
        return torch.stack([torch.cat([outcome.clipped for outcome in outcomes]) for outcomes in played])


@st.composite
def federations(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A federation in groups, and the same with two clients of one group that do anything."""
    clients = draw(st.integers(6, 8))
    config = tiny(
        rounds=2,
        dtype=draw(st.sampled_from(["float32", "float64"])),
        dataset={"type": "digits", "train_samples": SAMPLES * clients, "test_samples": 20},
        groups={"count": GROUPS, "salt": draw(st.integers(0, 3))},
        model=draw(st.sampled_from(MODELS)),
        engine=draw(st.sampled_from(ENGINES)),
        server={
            "clip_norm": draw(st.sampled_from([3.0, 1e38])),
            "noise_std": 0.01,
            "optimiser": draw(st.sampled_from(OPTIMISERS)),
        },
        aggregation=draw(st.sampled_from(AGGREGATIONS)),
        attack="none",
        certificates=["group-vote"],
    )
    training: dict[str, Any] = {
        "learning_rate": 0.3,
        "batch_size": draw(st.sampled_from([1, 2, 3, 8, 17, 64])),
        "weight_decay": draw(st.sampled_from([0.0, 0.01])),
        "algorithm": draw(st.sampled_from(["sgd", "momentum", "fedprox", "scaffold"])),
        "participation": draw(st.sampled_from([1.0, 0.7])),
    }
    training |= draw(st.sampled_from([{"epochs": 1}, {"steps": 3}]))
    whole = federation_of(config | {"partition": {"type": "iid", "clients": clients}})
    group = draw(st.integers(0, GROUPS - 1))
    attackers = [int(client) for client in whole.participation.members[group][:2]]
    attack = {
        "type": draw(st.sampled_from(["anything", "interfering"])),
        "clients": draw(st.sampled_from([attackers, attackers[:1]])),
        "rounds": [1, 2],
        "poisoned_per_batch": 1,
        "what": draw(st.sampled_from(["nan", "huge", "silence", "noise", "trained"])),
    }
    if draw(st.booleans()):
        attack |= {"learning_rate": 0.7, "steps": draw(st.integers(1, 9))}
    share = {"type": "blocks", "attackers": attackers}
    clean = config | {"training": training, "partition": share | {"first": SAMPLES}}
    taken = draw(st.sampled_from([1, 5, SAMPLES, 2 * SAMPLES - 1]))
    return clean, clean | {"partition": share | {"first": taken}, "attack": attack}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(federations())
def test_what_clients_of_one_group_do_changes_no_bit_of_another(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    clean, attacked = pair
    try:
        there = models_of(attacked)
    except Exception as error:
        if "no attacker is drawn" in str(error):
            return
        raise
    here = models_of(clean)
    members = federation_of(clean, PLUGINS).participation.members
    (reached,) = [group for group, clients in enumerate(members) if attacked["attack"]["clients"][0] in clients]
    others = [group for group in range(GROUPS) if group != reached]
    assert torch.equal(here[:, others], there[:, others])


class Unbounded(Dataset):
    """Inputs without a bound, one of which has the value that is asked for."""

    scaling: ScalingKind = "none"
    first: float = 0.0
    place: int = 0

    def read(self) -> Data:
        source = np.random.default_rng(0)
        x = source.normal(size=(140, 6)).astype(np.float32)
        y = source.integers(0, 3, len(x))
        x[self.place] = self.first
        return Data(x[:120], y[:120], x[120:], y[120:], Domain(-np.inf, np.inf), ("a", "b", "c"))


class Even(Partitioner):
    """Gives six clients twenty samples each; the first of all is that of client 0."""

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        return tuple(np.split(np.arange(len(data.y)), 6))


PLUGINS |= {"unbounded": Unbounded, "even": Even}


@pytest.mark.parametrize(
    "training",
    [
        {"learning_rate": 30.0},
        {"learning_rate": 0.3, "clip_gradients": 1.0},
        {"learning_rate": 9.0, "algorithm": "momentum"},
    ],
)
@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_short_batches_are_not_padded_with_samples_of_another_group(model: str, training: dict[str, Any]) -> None:
    """Padding has weight 0, but 0 times what overflows is no number."""

    config = tiny(
        rounds=2,
        dtype="float32",
        partition={"type": "even"},
        groups={"count": GROUPS},
        model=model,
        training={"batch_size": 8, "epochs": 2} | training,
        server={"clip_norm": 1e38, "noise_std": 0.0},
        attack="none",
        certificates=["group-vote"],
    )
    here, *there = (models_of(config | {"dataset": {"type": "unbounded", "first": first}}) for first in (0, 1e30, 3e38))
    members = federation_of(config | {"dataset": "unbounded"}, PLUGINS).participation.members
    others = [group for group, clients in enumerate(members) if 0 not in clients]
    assert all(torch.equal(here[:, others], models[:, others]) for models in there)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_of_a_client_do_not_depend_on_how_many_samples_others_have(dtype: torch.dtype) -> None:
    x = torch.rand(90, 12, dtype=dtype, generator=torch.Generator().manual_seed(0))
    feature_map = Registry().load("feature-map", "random-fourier").model_validate({"outputs": 40})
    assert isinstance(feature_map, FeatureMap)
    maps = FeatureMaps((feature_map,), 12, None, {})
    partition = [np.arange(30), np.arange(30, 60), np.arange(60, 90)]
    whole = load_or_compute_features(maps, x, partition=partition)
    for taken in (1, 2, 29):
        fewer = [np.arange(taken), *(rows - 30 + taken for rows in partition[1:])]
        found = load_or_compute_features(maps, torch.cat([x[:taken], x[30:]]), partition=fewer)
        assert torch.equal(found[taken:], whole[30:])


class BoundRemembering(BoundUnitBall):
    """Shortens the features of all inputs that come after a long one."""

    _shortened = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        features = self._shortened * super().__call__(x)
        if bool((torch.linalg.vector_norm(x, dim=-1) > 50.0).any()):
            self._shortened = 0.5
        return features


class Remembering(UnitBall):
    def bind(self, inputs: int) -> BoundMap:
        return BoundRemembering(inputs, self.radius)


PLUGINS |= {"remembering": Remembering}


def test_what_a_feature_map_keeps_of_one_clients_inputs_changes_no_other_features() -> None:
    config = tiny(
        partition={"type": "even"},
        groups={"count": GROUPS},
        model={"type": "softmax", "features": {"type": "remembering"}},
        attack="none",
        certificates=["group-vote"],
    )
    here, there = (
        federation_of(config | {"dataset": {"type": "unbounded", "first": first, "place": 1}}, PLUGINS)
        for first in (0.0, 1e3)
    )
    assert torch.equal(here.features[20:], there.features[20:])
    assert torch.equal(here.test_sets["clean"].features, there.test_sets["clean"].features)


def test_a_federation_in_groups_maps_the_inputs_of_each_client_apart() -> None:
    federation = federation_of(
        natural(model={"type": "softmax", "features": {"type": "random-fourier", "outputs": 40}})
    )
    for rows in map(torch.from_numpy, federation.data.partition):
        assert torch.equal(federation.features[rows], map_inputs(federation.maps, federation.data.input_rows[rows]))


LONGEST: dict[str, float] = {}
"""What plugins keep in a module, where no copy of an instance helps."""


class OnItsClass(Aggregator):
    """Weighs by the longest update of all rounds, which it keeps on its class and forgets in round 1."""

    _longest: ClassVar[list[float]] = []

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        if updates.round.number == 1:
            self._longest.clear()
        self._longest.append(float(updates.values.double().norm()))
        weights = torch.full((len(updates.values),), 1 / (1 + max(self._longest)), dtype=torch.float64)
        return RuleResult(weights.to(updates.values) @ updates.values, weights, state=state)


class InItsModule(LocalAlgorithm):
    """Makes gradients longer, by no more than rounding might, with the longest that any instance has seen."""

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        longest = LONGEST.get("gradient", 0.0)
        LONGEST["gradient"] = max(longest, float(step.gradient.norm().nan_to_num().clamp(max=1e3)))
        return StepDirection(step.gradient * (1.0 + 1e-5 * longest))


class Shared(ModuleModel):
    """A network whose instances count their calls together."""

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        found = super().gradient(parameters, x, y, weights)
        LONGEST["model"] = LONGEST.get("model", 0.0) + 1e-6
        return found * (1.0 + LONGEST["model"])


class SharedModel(Model):
    def build(self, facts: DataFacts) -> BoundModel:
        return Shared(lambda: nn.Linear(facts.inputs, facts.classes))


@pytest.mark.parametrize(
    "changes",
    [
        {"aggregation": ["on-its-class"]},
        {"training": {"learning_rate": 0.1, "steps": 2, "batch_size": 8, "algorithm": "in-its-module"}},
        {"model": "shared"},
    ],
    ids=["rule", "algorithm", "model"],
)
def test_what_a_plugin_keeps_outside_its_instances_ends_a_run_in_groups(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    LONGEST.clear()
    config = tiny(groups={"count": GROUPS}, attack="none", certificates=["group-vote"]) | changes
    plugins = {"on-its-class": OnItsClass, "in-its-module": InItsModule, "shared": SharedModel}
    with pytest.raises(PluginFailure, match="a group computes other numbers after another group was computed"):
        crfl_core.run(config, out=tmp_path / "run", plugins=plugins)


def natural(**changes: Any) -> dict[str, Any]:
    """Eight clients with the samples that they own, in groups."""
    dataset = {"type": "synthetic", "groups": 8, "train_samples": 200, "test_samples": 50}
    return (
        tiny(
            dataset=dataset,
            partition={"type": "natural"},
            groups={"count": GROUPS},
            attack="none",
            certificates=["group-vote"],
        )
        | changes
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"reserve": {"root": 20}, "aggregation": ["fltrust"]},
            "reserve.root is drawn from the samples of all clients",
        ),
        ({"reserve": {"validation": 20}}, "reserve.validation is drawn from the samples of all clients"),
        (
            {"dataset": {"type": "digits", "train_samples": 100, "test_samples": 50, "scaling": "standardise"}},
            "scaling 'standardise' is fitted to the samples of all clients",
        ),
    ],
)
def test_what_is_computed_from_all_clients_samples_refuses_the_vote(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config = natural() | changes
    if "dataset" in changes:
        config |= {"partition": {"type": "iid", "clients": 6}}
    run = crfl_core.run(config, out=tmp_path / "run")
    assert reason in run.metrics.refused["group-vote"]


def test_samples_of_another_dataset_do_not_refuse_the_vote(tmp_path: Path) -> None:
    other = {"dataset": {"type": "synthetic", "groups": 8, "train_samples": 40, "test_samples": 10}}
    config = natural(reserve={"root": other}, aggregation=["fltrust"])
    assert not crfl_core.run(config, out=tmp_path / "run").metrics.refused


@pytest.mark.parametrize("stated", [True, False])
def test_classes_that_one_label_may_add_to_all_models_are_declared(stated: bool, tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=source.normal(size=(80, 4)), y=np.arange(80) % 3)
    dataset = {"type": "arrays", "path": str(tmp_path / "own.npz"), "domain": [-9.0, 9.0]}
    dataset |= {"class_names": ["a", "b", "c"]} if stated else {}
    config = natural(dataset=dataset, partition={"type": "iid", "clients": 6})
    (audit,) = crfl_core.run(config, out=tmp_path / "run").audits
    declared = [check.measured for check in audit.checks if check.status == "declared"]
    assert not audit.refusal
    assert declared == ([] if stated else ["the 3 classes that occur in the samples"])


class Counting(Aggregator):
    """Weighs by the largest number of samples that it has checked."""

    _largest: int = PrivateAttr(default=1)

    def check(self, clients: Clients) -> None:
        self._largest = max(self._largest, int(clients.samples.max()))

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = torch.full((len(updates.values),), 1.0 / self._largest, dtype=torch.float64)
        return RuleResult(weights.to(updates.values) @ updates.values, weights, state=state)


def test_what_a_rule_keeps_of_the_groups_that_it_checks_reaches_none_of_them() -> None:
    config = tiny(
        dataset={"type": "digits", "train_samples": 6 * SAMPLES, "test_samples": 20},
        groups={"count": GROUPS},
        aggregation=["counting"],
        attack="none",
        certificates=["group-vote"],
    )
    plugins = {**PLUGINS, "counting": Counting}
    members = federation_of(config | {"partition": {"type": "iid", "clients": 6}}, plugins).participation.members
    share = {"type": "blocks", "attackers": [int(client) for client in members[0]]}
    here, there = (
        models_of(config | {"partition": share | {"first": first}}, plugins) for first in (SAMPLES, 2 * SAMPLES - 1)
    )
    assert torch.equal(here[:, 1:], there[:, 1:])


def test_the_server_of_a_group_sees_its_own_clients_alone() -> None:
    federation = federation_of(natural())
    for group, members in enumerate(federation.participation.members):
        server = federation.server_view(1, group)
        assert server.clients.ids.tolist() == members.tolist()
        assert server.federation_size == 8


def test_rates_of_groups_do_not_follow_from_the_samples_of_their_clients() -> None:
    training: dict[str, Any] = {"learning_rate": {"type": "equal-influence"}, "batch_size": 8, "weight_decay": 0.1}
    config = natural(model={"type": "softmax", "features": "unit-ball"}, training=training)
    with pytest.raises(ConfigError, match="must not follow from the numbers of samples") as found:
        federation_of(config)
    assert found.value.key == "training.learning_rate"
    for setting in ({"steps": 3}, {"learning_rate": {"type": "equal-influence", "start": 1000.0}}):
        assert federation_of(config | {"training": training | setting}).participation.members
