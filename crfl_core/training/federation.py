"""From a config to a federation that is ready to train: every check before training, and the facts of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from crfl_core.config import RunConfig, dump_config
from crfl_core.config.schema import ReserveSamples
from crfl_core.errors import ConfigError
from crfl_core.plugin_api.base import is_built_in, name_with_distribution
from crfl_core.plugin_api.engine import is_in_process
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.plugin_api.model import BoundModel
from crfl_core.plugin_api.server_view import RootSamples, ServerView
from crfl_core.plugin_loading.class_checks import hook_names
from crfl_core.records import schedules
from crfl_core.records.input_rows import Rows, norms_of
from crfl_core.records.inputs import FederatedData, Scaling, is_local, natural_owners, partition_digest
from crfl_core.records.ledger import GroupFacts, ReservedFacts, RunFacts
from crfl_core.records.random_streams import PURPOSES, Streams, of_group
from crfl_core.training.batch_scaling import apply_batch_rules, smoothness
from crfl_core.training.client_sampling import HonestTraining, Participation, resolve_equal_influence
from crfl_core.training.data_loading import (
    TestSet,
    as_samples,
    as_tensors,
    check_root,
    load_data,
    make_reserve_sets,
    make_test_sets,
    plugins_using_reserve,
)
from crfl_core.training.features import (
    FittedMaps,
    OnProgress,
    check_apart,
    check_maps,
    copy_maps,
    fit_maps,
    load_or_compute_features,
)
from crfl_core.training.groups import ServerSteps, assign_groups, check_groups, plugins_watching_rounds, server_steps
from crfl_core.training.models import Start, build_model, copy_model, gradient_bound, initial_model, training_facts
from crfl_core.training.threats import check_remote_threat, check_threat, prepare_attack, rounds_to_resample
from crfl_core.training.trusted_baseline import check_start_samples, train_start

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.plugin_api.local_algorithm import LocalAlgorithm
    from crfl_core.records.round import State

NOT_LOCAL = frozenset({"aggregation", "certificates", "engine", "trackers", "storage"})
"""Tables of a config that play no part in local training."""
Found = tuple[FederatedData, BoundModel, FeatureMaps, Participation]
SizeCheck = Callable[[Unpack[Found]], object]
"""Called with the sizes before allocation; raises if they do not fit."""


@dataclass(frozen=True)
class Federation:
    """Everything that training needs, built once and never changed.

    `features` are the training inputs behind the feature maps. `test_sets` always has "clean"; "backdoored" holds the
    non-target samples that the attack is about, triggered if it has a trigger, with their true labels. `reserve` are
    the samples that the server trusts, those of the curator before the maps; those for validation are a test set, too.
    `servers` are the steps that make a model of updates, for every group. `resampled` are the rounds whose model before
    noise is kept, so that noise can be drawn again from there.
    """

    config: RunConfig
    data: FederatedData
    scaling: Scaling
    model: BoundModel
    maps: FeatureMaps
    fitted: FittedMaps
    features: Rows
    honest: HonestTraining
    participation: Participation
    servers: tuple[ServerSteps, ...]
    prepared: State
    test_sets: dict[str, TestSet]
    reserve: dict[str, TestSet]
    resampled: tuple[int, ...]
    streams: Streams
    device: torch.device
    dtype: torch.dtype

    @property
    def specification(self) -> str:
        """Return text from which another process builds the same local training.

        It needs no other plugins than that.
        """
        server = self.config.server.model_copy(update={"optimiser": None})
        return dump_config(self.config.model_copy(update={"server": server}), without=NOT_LOCAL)

    def server_view(self, number: int, group: int = 0) -> ServerView:
        """Return what a group's aggregation steps may see in a round.

        Attacks and hooks do not get it.
        """
        root = self.reserve.get("root")
        clients = self.participation.all_clients(number)
        return ServerView(
            model=self.new_model(),
            clients=clients.take(self.participation.members[group]) if self.config.groups is not None else clients,
            federation_size=len(clients),
            rounds=self.config.rounds,
            streams=self.streams.only("aggregation"),
            root=None if root is None else RootSamples(root.features, root.labels),
            origin=None if self.origins is None else self.origins[0, group],
        )

    def new_model(self) -> BoundModel:
        """Return a copy of the model.

        The model itself computes nothing, so what a copy keeps reaches no other computation.
        """
        return copy_model(self.model, self.config, self.maps, self.data.facts)

    def new_algorithm(self) -> LocalAlgorithm:
        """Return a copy of the local algorithm, which itself makes no step."""
        return self.config.training.algorithm.model_copy(deep=True)

    @cached_property
    def start(self) -> Start:
        """Return the model before the first round.

        With several groups it is that of the first.
        """
        return self.start_of_group(0)

    @cached_property
    def origins(self) -> Tensor | None:
        """Return the models toward which weight decay pulls, (1, G, P).

        They are the models before round 1. None if decay pulls toward 0.
        """
        if not self.honest.facts.toward_start:
            return None
        starts = [self.start_of_group(group).parameters for group in range(len(self.participation.members))]
        return torch.stack(starts).to(self.device, self.dtype)[None]

    def start_of_group(self, group: int) -> Start:
        """Return the model of a group before the first round.

        If it is random, every group has its own.
        """
        if self.config.model.start == "reserve":
            return self._reserve_start
        alone = len(self.participation.members) == 1
        generator = self.streams.generator(of_group("initial", None if alone else group))
        return initial_model(self.config.model, self.model, generator)

    @cached_property
    def _reserve_start(self) -> Start:
        """Return the model that the server trained on its labelled samples.

        It is the same for all groups.
        """
        return train_start(self)

    @cached_property
    def facts(self) -> RunFacts:
        """Return the static part of the ledger."""
        return run_facts(self)


def build(
    config: RunConfig,
    *,
    fitted: FittedMaps | None = None,
    on_progress: OnProgress | None = None,
    check_sizes: SizeCheck = lambda *_: None,
) -> Federation:
    """Build the federation that a config describes.

    It raises before anything is trained or written. `fitted` is what the feature maps of a run were fitted to, if it is
    known; else they are fitted, to the inputs of `reserve.curator` if they have no public ones. `on_progress` is called
    with the progress of the features. `check_sizes` is called with the sizes before allocation; it raises if they do
    not fit.
    """
    device = pick_device(config)
    dtype = getattr(torch, config.dtype)
    streams = streams_of(config)
    loaded, partition, kept = load_data(config, streams)
    data = as_tensors(loaded, partition, device, dtype)
    x = data.input_rows
    if fitted is None:
        curator = as_samples(kept["curator"], device, dtype)[0] if "curator" in kept else None
        if curator is not None:
            check_apart(curator, x, data.test_x)
        fitted = fit_maps(config.model.features, data.facts, curator, dtype, on_progress)
    maps, model = build_model(config, data.facts, fitted)
    check_maps(maps if config.groups is None else copy_maps(maps), x if len(x) else data.test_x)
    longest = maps.norm_bound(data.facts.domain.norm_bound(data.facts.inputs))
    bound = gradient_bound(config.model, model, longest)
    members = assign_groups(config.groups, len(partition.rows), natural_owners(loaded, partition.rows), streams)
    training = training_facts(config)
    if training.remembers and not data.complete:
        raise ConfigError(
            f"{training.algorithm!r} keeps vectors of each client, which remote clients do not send: choose another",
            key="training.algorithm",
        )
    honest = HonestTraining(training, min(bound, training.clip_gradients or bound))
    honest = apply_batch_rules(config, model, honest, longest, data.facts.classes)
    samples = np.array([len(rows) for rows in partition.rows])
    config = resolve_equal_influence(config, model.facts, training, smoothness(honest, data.facts.classes), samples)
    participation = Participation(config, samples.tolist(), honest, streams, members)
    check_sizes(data, model, maps, participation)
    check_groups(config.aggregation, participation.participants(1))
    check_root(config)
    check_start_samples(config)
    check_remote_threat(config, data)
    check_threat(config, data.clients)
    prepared = prepare_attack(config, data, participation, streams)
    reserve = make_reserve_sets({name: as_samples(one, device, dtype) for name, one in kept.items()}, maps)
    validation = {name: reserve[name] for name in ("validation",) if name in reserve}
    apart = partition.rows if config.groups is not None and data.complete else None
    return Federation(
        config=config,
        data=data,
        scaling=loaded.scaling,
        model=model,
        maps=maps,
        fitted=fitted,
        features=load_or_compute_features(maps, x, on_progress, apart),
        honest=honest,
        participation=participation,
        servers=server_steps(config, len(members)),
        prepared=prepared,
        test_sets=make_test_sets(config, data, maps, prepared) | validation,
        reserve=reserve,
        resampled=rounds_to_resample(config, participation),
        streams=streams,
        device=device,
        dtype=dtype,
    )


def streams_of(config: RunConfig) -> Streams:
    """Return all random streams of a run.

    Those of a secret purpose are not known here.
    """
    chosen = {purpose: seed for purpose in PURPOSES if (seed := getattr(config.seeds, purpose)) is not None}
    return Streams(config.seed, {purpose: None if seed == "secret" else seed for purpose, seed in chosen.items()})


def pick_device(config: RunConfig) -> torch.device:
    """Return the device that the config asks for."""
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ConfigError("there is no CUDA device here: use 'cpu' or 'auto'", key="device")
    return torch.device("cuda" if config.device != "cpu" and available else "cpu")


def run_facts(federation: Federation) -> RunFacts:
    """Return the static part of the ledger."""
    config = federation.config
    data = federation.data
    maps = federation.maps
    model = federation.model
    facts = data.facts
    scaling = federation.scaling
    bound = facts.domain.norm_bound(facts.inputs)
    x = data.input_rows
    norms = largest_norms(x, data.partition, bound)
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
        partition_digest=partition_digest(data.partition) if data.complete else None,
        input_norms=norms,
        feature_norms=norms
        if federation.features is x
        else largest_norms(federation.features, data.partition, maps.norm_bound(bound)),
        measured=data.complete,
        device=federation.device.type,
        engine="" if is_in_process(config.engine) else name_with_distribution(config.engine),
        foreign_maps=tuple(name_with_distribution(one) for one in maps.maps if not is_built_in(one)),
        rule=name_with_distribution(config.aggregation[-1]),
        domain=(facts.domain.low, facts.domain.high),
        image_shape=facts.image_shape,
        class_names=data.class_names,
        classes_found=data.classes_found,
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
        exact_shares=True,
        rejects=any("crfl_accept_round" in hook_names(type(plugin)) for _, plugin in config.named_plugins()),
        watching=plugins_watching_rounds(config),
        resampled=federation.resampled,
        attack=None if config.attack is None else config.attack.configured_as,
        attackers=federation.participation.attackers,
        attack_rounds=federation.participation.attack_rounds,
        test_sets={name: test_set.facts for name, test_set in federation.test_sets.items()},
        groups=group_facts(federation),
        reserve={
            name: ReservedFacts(
                **dict(kept.facts),
                from_clients=draws_from_clients(federation, name),
                used_by=tuple(plugins_using_reserve(config, name, fitted)),
            )
            for name, kept in federation.reserve.items()
        },
    )


def draws_from_clients(federation: Federation, reserve: str) -> bool:
    """Ask whether a reserve was drawn from the clients' samples.

    Otherwise the server had the samples itself.
    """
    config = federation.config
    drawn = not isinstance(getattr(config.reserve, reserve), ReserveSamples)
    return drawn and federation.data.complete and not type(config.partition).deals_pool


def group_facts(federation: Federation) -> GroupFacts | None:
    """Return which clients train which model, if there are several."""
    groups = federation.config.groups
    if groups is None:
        return None
    members = tuple(tuple(map(int, clients)) for clients in federation.participation.members)
    return GroupFacts(by=groups.by, members=members, weights=groups.weights, voting=groups.voting)


def largest_norms(x: Rows, partition: Sequence[NDArray[np.int64]], bound: float) -> tuple[float, ...]:
    """Return the largest Euclidean norm of each client's samples.

    For remote clients it is the declared bound.
    """
    norms = norms_of(x)
    return tuple(float(norms[rows].max()) if is_local(rows) else bound for rows in partition)
