"""From a config to a federation that is ready to train: data, partition, model, attack. Every check before training."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.config import RunConfig, dump_config
from crfl_core.federation.answers import check_state
from crfl_core.federation.checks import check_maps, check_steps
from crfl_core.federation.features import ROWS_AT_ONCE, Shown, features_of
from crfl_core.federation.fitting import FittedMaps, check_apart, fit_maps, states
from crfl_core.federation.groups import members_of
from crfl_core.federation.participants import HonestTraining, Participation
from crfl_core.federation.reserve import Kept, check_root, set_aside, users
from crfl_core.federation.spectrum import with_spectrum
from crfl_core.federation.start import Start, start_of
from crfl_core.refusals import hook_names
from crfl_core.untouched import untouched
from crfl_interface import schedules
from crfl_interface.data import Data, DataFacts, FederatedData, Scaling
from crfl_interface.errors import ConfigError, OptionError, PluginFailure
from crfl_interface.kinds.aggregator import AggregationStep
from crfl_interface.kinds.algorithm import ProximalAlgorithm
from crfl_interface.kinds.attack import Attack
from crfl_interface.kinds.complaints import settings_of, written_at
from crfl_interface.kinds.feature_map import FeatureMaps
from crfl_interface.kinds.linear import LinearModel, StartedLinear, changed_method
from crfl_interface.kinds.model import BoundModel, Model
from crfl_interface.kinds.partitioner import Partitioner
from crfl_interface.kinds.server_side import Samples, ServerSide
from crfl_interface.knowledge import Knowledge
from crfl_interface.ledger import GroupFacts, ReservedFacts, RunFacts, SetFacts, TrainingFacts
from crfl_interface.streams import PURPOSES, Streams, of_group
from crfl_interface.updates import Clients, Layout, State

NOT_LOCAL = frozenset({"aggregation", "certificates", "engine", "trackers", "storage"})
"""Tables of a config that play no part in local training."""


class Partition(NamedTuple):
    """The training rows of each client, and the clients' names if they have any."""

    rows: tuple[NDArray[np.int64], ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class TestSet:
    """Samples behind the feature maps, (m, features), with their true labels."""

    __test__ = False  # not for pytest

    features: Tensor
    labels: Tensor
    facts: SetFacts


@dataclass(frozen=True)
class Federation:
    """Everything that training needs, built once and never changed.

    `features` are the training inputs behind the feature maps. `test_sets` always has "clean"; "backdoored" holds the
    non-target samples that the attack is about, triggered if it has a trigger, with their true labels. `reserve` are
    the samples that the server trusts, those of the curator before the maps; those for validation are a test set, too.
    `resampled` are the rounds whose model before noise some certificate wants to start from again.
    """

    config: RunConfig
    data: FederatedData
    scaling: Scaling
    model: BoundModel
    maps: FeatureMaps
    fitted: FittedMaps
    features: Tensor
    honest: HonestTraining
    participation: Participation
    prepared: State
    test_sets: dict[str, TestSet]
    reserve: dict[str, TestSet]
    resampled: tuple[int, ...]
    streams: Streams
    device: torch.device
    dtype: torch.dtype

    @property
    def attack(self) -> Attack | None:
        """What malicious clients do."""
        return self.config.attack

    @property
    def specification(self) -> str:
        """Text from which another process builds the same local training; it needs no other plugins than that."""
        server = self.config.server.model_copy(update={"optimiser": None})
        return dump_config(self.config.model_copy(update={"server": server}), without=NOT_LOCAL)

    def server(self, number: int) -> ServerSide:
        """What steps of the aggregation may see in a round; neither attacks nor hooks are handed it."""
        root, streams = self.reserve.get("root"), self.streams.only("aggregation")
        samples = None if root is None else Samples(root.features, root.labels)
        return ServerSide(self.model, self.participation.everybody(number), self.config.rounds, streams, samples)

    @cached_property
    def start(self) -> Start:
        """The model before the first round, of the first group if there are several."""
        return self.start_of_group(0)

    def start_of_group(self, group: int) -> Start:
        """The model of a group before the first round; if it is random, every group has its own."""
        alone = len(self.participation.members) == 1
        generator = self.streams.generator(of_group("initial", None if alone else group))
        return start_of(self.config.model, self.model, generator)

    @cached_property
    def facts(self) -> RunFacts:
        """The static part of the ledger."""
        return run_facts(self)


def build(config: RunConfig, *, fitted: FittedMaps | None = None, shown: Shown | None = None) -> Federation:
    """The federation that a config describes. Raises before anything is trained or written.

    `fitted` is what the feature maps of a run were fitted to, if it is known; else they are fitted, to the inputs of
    `reserve.curator` if they have no public ones. `shown` is told how far the features are.
    """
    device, dtype = pick_device(config), getattr(torch, config.dtype)
    streams = streams_of(config)
    loaded, partition, kept = load_data(config, streams)
    data = as_tensors(loaded, partition, device, dtype)
    if fitted is None:
        curator = as_samples(kept["curator"], device, dtype)[0] if "curator" in kept else None
        if curator is not None:
            check_apart(curator, data.x, data.test_x)
        fitted = fit_maps(config.model.features, data.facts, curator, dtype)
    maps, model = build_model(config, data.facts, fitted)
    check_maps(maps, data.x)
    longest = maps.norm_bound(data.facts.domain.norm_bound(data.facts.inputs))
    with settings_of("model", config.model):
        bound = model.gradient_bound(longest)
        if not isinstance(bound, int | float) or not bound >= 0:
            raise PluginFailure(
                f"model: {config.model.full_name}: gradient_bound() must be at least 0, found {bound!r}"
            )
    members = members_of(config.groups, len(partition.rows), owners_of(loaded, partition), streams)
    training = training_facts(config)
    honest = HonestTraining(training, min(bound, training.clip_gradients or bound))
    honest = with_spectrum(config, model, honest, longest, data.facts.classes)
    participation = Participation(config, [len(rows) for rows in partition.rows], honest, streams, members)
    check_groups(config.aggregation, participation.round(1))
    check_root(config)
    check_threat(config, data.clients)
    prepared = prepare_attack(config, data, participation, streams)
    reserve = reserved_sets({name: as_samples(one, device, dtype) for name, one in kept.items()}, maps)
    validation = {name: reserve[name] for name in ("validation",) if name in reserve}
    return Federation(
        config=config,
        data=data,
        scaling=loaded.scaling,
        model=model,
        maps=maps,
        fitted=fitted,
        features=features_of(maps, data.x, shown),
        honest=honest,
        participation=participation,
        prepared=prepared,
        test_sets=make_test_sets(config, data, maps, prepared) | validation,
        reserve=reserve,
        resampled=resampled_rounds(config, participation),
        streams=streams,
        device=device,
        dtype=dtype,
    )


def owners_of(data: Data, partition: Partition) -> NDArray[np.int64] | None:
    """The natural owner of each client's data; None if there are no owners, or a client has data of several."""
    if data.groups is None:
        return None
    owners = [np.unique(data.groups[rows]) for rows in partition.rows]
    return np.concatenate(owners) if all(len(each) == 1 for each in owners) else None


def check_groups(steps: Sequence[AggregationStep], clients: Clients) -> None:
    """Every step fits the smallest and the largest group."""
    sizes = np.bincount(clients.group)
    for group in {int(sizes.argmin()), int(sizes.argmax())}:
        check_steps(steps, clients.take(clients.group == group))


def resampled_rounds(config: RunConfig, participation: Participation) -> tuple[int, ...]:
    """The rounds whose model before noise some certificate wants to start from again, all of which exist."""
    if config.threat.rounds is not None:
        attacked = schedules.expand(config.threat.rounds, config.rounds)
    else:  # a round counts as attacked only if an attacker is drawn in it
        rounds = participation.attack_rounds
        attacked = tuple(number for number in rounds if participation.conduct(number).attacking.any())
    wanted: set[int] = set()
    for position, certificate in enumerate(config.certificates if config.groups is None else ()):
        with settings_of(f"certificates.{position}", certificate):
            numbers = certificate.resampled_rounds(attacked or (config.rounds,))
            if any(not 1 <= number <= config.rounds for number in numbers):
                raise OptionError("resample_from", f"found round {max(numbers)}, but rounds are 1..{config.rounds}")
        wanted.update(numbers)
    return tuple(sorted(wanted))


def load_data(config: RunConfig, streams: Streams) -> tuple[Data, Partition, dict[str, Kept]]:
    """The scaled data of the clients, who holds what of the training samples, and what the server keeps of them."""
    with settings_of("dataset", config.dataset):
        data = config.dataset.load()
    data, kept = set_aside(config.reserve, data, streams)
    partitioner = config.partition
    with settings_of("partition", partitioner):
        rows = partitioner.split(data, streams)
        check_partition(rows, len(data.x), partitioner)
        names = partitioner.client_names(data, rows)
        if names and len(names) != len(rows):
            raise PluginFailure(
                f"partition: {partitioner.full_name} must name every client or none, found {len(names)} names "
                f"for {len(rows)} clients"
            )
    return data, Partition(rows, names), kept


def streams_of(config: RunConfig) -> Streams:
    """All random streams of a run; those of a secret purpose are not known here, see `api/vote_seed`."""
    chosen = {purpose: seed for purpose in PURPOSES if (seed := getattr(config.seeds, purpose)) is not None}
    return Streams(config.seed, {purpose: None if seed == "secret" else seed for purpose, seed in chosen.items()})


def build_model(config: RunConfig, facts: DataFacts, fitted: FittedMaps) -> tuple[FeatureMaps, BoundModel]:
    """The feature maps and the model for data like these."""
    maps = FeatureMaps(config.model.features, facts.inputs, facts.image_shape, states(fitted))
    return maps, bind_model(config, maps, facts)


def bind_model(config: RunConfig, maps: FeatureMaps, facts: DataFacts) -> BoundModel:
    """A model of its own behind these feature maps."""
    with settings_of("model", config.model):
        model = config.model.build(DataFacts(maps.outputs, facts.classes, facts.domain, maps.image_shape))
    check_linear(config.model, model)
    if isinstance(model, LinearModel) and model.facts.linear:
        model = StartedLinear(model, maps.outputs, facts.classes)
    return model


def training_facts(config: RunConfig) -> TrainingFacts:
    """How honest clients train, and what the core can say about it."""
    training, algorithm = config.training, config.training.algorithm
    plain, proximal = isinstance(algorithm, ProximalAlgorithm), 0.0
    if isinstance(algorithm, ProximalAlgorithm):
        with settings_of("training.algorithm", algorithm):
            proximal = algorithm.proximal_weight()
        if not isinstance(proximal, int | float) or not 0 <= proximal < math.inf:
            raise PluginFailure(
                f"algorithm {algorithm.full_name}: proximal_weight() must be finite and at least 0, found {proximal!r}"
            )
    return TrainingFacts(
        algorithm=algorithm.configured_as,
        plain=plain,
        proximal=proximal,
        clip_gradients=training.clip_gradients,
    )


def check_linear(plugin: Model, model: BoundModel) -> None:
    """Only the core's own linear model may call itself linear: certificates rest on the form of its logits."""
    if not model.facts.linear:
        return
    if not isinstance(model, LinearModel) or model.facts != LinearModel.facts_of(model):
        raise PluginFailure(
            f"model: {plugin.full_name} ({written_at(type(model))}) says that it is linear in its parameters: build a "
            "LinearModel and put what it does to inputs into a feature map, or set linear = False"
        )
    if (changed := changed_method(model)) is not None:
        raise PluginFailure(
            f"model: {plugin.full_name} changes {changed}() of LinearModel "
            f"({written_at(inspect.getattr_static(model, changed))}): certificates rest on it; override initial(), "
            "write a feature map, or set linear = False"
        )
    if type(model.layout) is not Layout:
        raise PluginFailure(
            f"model: {plugin.full_name} has a layout of its own ({written_at(type(model.layout))}): certificates rest "
            "on that of LinearModel; leave it as it is, or set linear = False"
        )


def pick_device(config: RunConfig) -> torch.device:
    """The device that the config asks for."""
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ConfigError("there is no CUDA device here: use 'cpu' or 'auto'", key="device")
    return torch.device("cuda" if config.device != "cpu" and available else "cpu")


def check_partition(partition: tuple[NDArray[np.int64], ...], samples: int, plugin: Partitioner) -> None:
    """Every sample belongs to exactly one client and no client is empty."""
    for client, rows in enumerate(partition):
        if len(rows) == 0:
            empty = f"client {client} of {len(partition)} got no samples"
            if "clients" in type(plugin).model_fields:
                raise OptionError("clients", f"{empty}: use fewer clients")
            raise OptionError("type", f"{empty}: use another partitioner")
    counts = np.bincount(np.concatenate(partition), minlength=samples)
    if len(counts) != samples or (counts != 1).any():
        sample = int(np.flatnonzero(counts != (np.arange(len(counts)) < samples))[0])
        raise PluginFailure(
            f"partition: {plugin.full_name} must give every training sample to exactly one client, sample "
            f"{sample} has {counts[sample]}"
        )


def as_tensors(data: Data, partition: Partition, device: torch.device, dtype: torch.dtype) -> FederatedData:
    """The data on the device that trains."""
    x, y = as_samples(Kept(data.x, data.y), device, dtype)
    test_x, test_y = as_samples(Kept(data.test_x, data.test_y), device, dtype)
    return FederatedData(
        x=x,
        y=y,
        test_x=test_x,
        test_y=test_y,
        partition=partition.rows,
        facts=DataFacts(x.shape[1], len(data.class_names), data.domain, data.image_shape),
        class_names=data.class_names,
        feature_names=data.feature_names,
        client_names=partition.names,
    )


def as_samples(kept: Kept, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inputs and labels as tensors."""
    x = torch.from_numpy(np.ascontiguousarray(kept.x)).to(device, dtype)
    return x, torch.from_numpy(kept.y.astype(np.int64)).to(device)


def check_threat(config: RunConfig, clients: int) -> None:
    """The assumed attackers and rounds exist."""
    assumed = config.threat.clients
    if assumed is not None:
        known = 0 <= assumed <= clients if isinstance(assumed, int) else all(0 <= c < clients for c in assumed)
        if not known:
            found = assumed if isinstance(assumed, int) else list(assumed)
            raise ConfigError(f"found {found}, but there are {clients} clients, 0..{clients - 1}", key="threat.clients")
    if config.threat.rounds is not None:
        rounds = schedules.expand(config.threat.rounds, config.rounds)
        if not rounds or rounds[-1] > config.rounds:
            raise ConfigError(f"found {list(rounds)}, but rounds are 1..{config.rounds}", key="threat.rounds")


def prepare_attack(config: RunConfig, data: FederatedData, participation: Participation, streams: Streams) -> State:
    """What the attack computes once, after its options were checked against the attackers' batches."""
    attack = config.attack
    if attack is None:
        return {}
    smallest = min(
        int(participation.round(t).batch_size[participation.conduct(t).attacking].min(initial=np.iinfo(np.int64).max))
        for t in participation.attack_rounds
    )
    with settings_of("attack", attack):
        target, classes = attack.backdoor_class, data.facts.classes
        if target is not None and not 0 <= target < classes:
            raise OptionError("target", f"there is no class {target}: classes are 0..{classes - 1}")
        attack.check(smallest)
        with untouched(f"attack {attack.full_name}: prepare() ({written_at(type(attack).prepare)})", data):
            prepared = attack.prepare(data, streams)
    if attack.knowledge not in get_args(Knowledge):
        raise PluginFailure(
            f"attack {attack.full_name} ({written_at(type(attack))}) sets knowledge to {attack.knowledge!r}: it is "
            f"one of {', '.join(map(repr, get_args(Knowledge)))}"
        )
    check_state(f"attack {attack.full_name}: prepare() ({written_at(type(attack).prepare)})", prepared)
    return prepared


def make_test_sets(config: RunConfig, data: FederatedData, maps: FeatureMaps, prepared: State) -> dict[str, TestSet]:
    """The clean test set and, if the attack has one, the backdoored one."""
    sets = {"clean": make_test_set(features_of(maps, data.test_x), data.test_y)}
    if config.attack is not None:
        with settings_of("attack", config.attack):
            backdoored = config.attack.backdoored_set(data, prepared)
        if backdoored is not None:
            sets["backdoored"] = make_test_set(features_of(maps, backdoored[0]), backdoored[1])
    return sets


def reserved_sets(kept: Mapping[str, tuple[Tensor, Tensor]], maps: FeatureMaps) -> dict[str, TestSet]:
    """What the server keeps for itself, behind the maps; that of the curator is what maps are fitted to."""
    return {
        name: make_test_set(x if name == "curator" else features_of(maps, x), labels)
        for name, (x, labels) in kept.items()
    }


def make_test_set(features: Tensor, labels: Tensor) -> TestSet:
    """A test set with its digest, by which stored votes are matched to it."""
    digest = hashlib.sha256()
    for tensor in (features, labels):
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
    return TestSet(features, labels, SetFacts(samples=len(labels), digest=digest.hexdigest()))


def run_facts(federation: Federation) -> RunFacts:
    """The static part of the ledger."""
    config, data, maps, model = federation.config, federation.data, federation.maps, federation.model
    facts, scaling = data.facts, federation.scaling
    bound = facts.domain.norm_bound(facts.inputs)
    fitted = tuple(one.facts for one in federation.fitted.values())
    return RunFacts(
        clients=data.clients,
        rounds=config.rounds,
        dtype=config.dtype,
        classes=facts.classes,
        inputs=facts.inputs,
        features=maps.outputs,
        parameters=model.layout.size,
        model=config.model.configured_as,
        model_facts=model.facts,
        training=federation.honest.facts,
        start=federation.start.facts,
        samples=tuple(len(rows) for rows in data.partition),
        input_norms=largest_norms(data.x, data.partition),
        feature_norms=largest_norms(federation.features, data.partition),
        domain=(facts.domain.low, facts.domain.high),
        image_shape=facts.image_shape,
        class_names=data.class_names,
        feature_names=data.feature_names if facts.image_shape is None else (),
        input_norm_bound=bound,
        feature_norm_bound=maps.norm_bound(bound),
        feature_lipschitz=maps.lipschitz,
        feature_digests=tuple(link.digest for link in maps.links if link.digest),
        fitted_maps=fitted,
        scaling=scaling.kind,
        scaling_fitted=scaling.fitted,
        scaling_shift=tuple(map(float, scaling.shift)),
        scaling_factor=tuple(map(float, scaling.factor)),
        test_noise_std=schedules.value_at(config.server.noise_std, config.rounds),
        bad_update=config.server.bad_update,
        optimiser=None if config.server.optimiser is None else config.server.optimiser.configured_as,
        secret_votes=config.seeds.votes == "secret",
        rejects=any("crfl_accept_round" in hook_names(type(plugin)) for _, plugin in config.named_plugins()),
        resampled=federation.resampled,
        attack=None if config.attack is None else config.attack.configured_as,
        attackers=federation.participation.attackers,
        attack_rounds=federation.participation.attack_rounds,
        test_sets={name: test_set.facts for name, test_set in federation.test_sets.items()},
        groups=group_facts(federation),
        reserve={
            name: ReservedFacts(**dict(kept.facts), used_by=tuple(users(config, name, fitted)))
            for name, kept in federation.reserve.items()
        },
    )


def group_facts(federation: Federation) -> GroupFacts | None:
    """Who trains which model, if there are several."""
    groups = federation.config.groups
    if groups is None:
        return None
    members = tuple(tuple(map(int, clients)) for clients in federation.participation.members)
    return GroupFacts(by=groups.by, members=members, weights=groups.weights)


def largest_norms(x: Tensor, partition: Sequence[NDArray[np.int64]]) -> tuple[float, ...]:
    """The largest Euclidean norm of each client's samples."""
    # Some rows at a time: torch would first copy all of them in double precision.
    norms = torch.cat([rows.norm(dim=1, dtype=torch.float64) for rows in x.split(ROWS_AT_ONCE)]).cpu().numpy()
    return tuple(float(norms[rows].max()) for rows in partition)
