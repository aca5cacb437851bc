"""The static part of the ledger: what is known about a run before its first round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.plugin_loading.class_checks import hook_names
from crfl_core.records import schedules
from crfl_core.records.input_rows import Rows, norms_of
from crfl_core.records.inputs import held, is_local, partition_digest
from crfl_core.records.ledger import GroupFacts, ReservedFacts, RunFacts
from crfl_core.training.groups import watching
from crfl_core.training.reserve import users

if TYPE_CHECKING:
    from crfl_core.training.federation import Federation


def run_facts(federation: Federation) -> RunFacts:
    """The static part of the ledger."""
    config = federation.config
    data = federation.data
    maps = federation.maps
    model = federation.model
    facts = data.facts
    scaling = federation.scaling
    bound = facts.domain.norm_bound(facts.inputs)
    x = held(data, "x")
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
        exact_shares=True,
        rejects=any("crfl_accept_round" in hook_names(type(plugin)) for _, plugin in config.named_plugins()),
        watching=watching(config),
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


def largest_norms(x: Rows, partition: Sequence[NDArray[np.int64]], bound: float) -> tuple[float, ...]:
    """The largest Euclidean norm of each client's samples; the declared bound for those that are elsewhere."""
    norms = norms_of(x)
    return tuple(float(norms[rows].max()) if is_local(rows) else bound for rows in partition)
