"""Coupled worlds: the same federation with the same noise and batches, attacked and not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core import Threat, load_config
from crfl_core.certification import certifier as certification
from crfl_core.certification import threat_resolution as threats
from crfl_core.certification.voting import VotingModels, collect_votes
from crfl_core.extend import (
    Certificate,
    Guarantee,
    Ledger,
    Level,
    Plugin,
    Registry,
    RunContext,
    VoteRequest,
    Votes,
)
from crfl_core.plugin_loading.hooks import Hooks
from crfl_core.records.inputs import as_floats
from crfl_core.records.ledger import ClientColumns
from crfl_core.records.threat import ThreatSettings
from crfl_core.runs.worlds import with_attack
from crfl_core.training import continuations, rounds
from crfl_core.training.federation import Federation, build
from crfl_core.training.ledger_rows import record_round
from crfl_core.training.rounds import Progress, add_noise
from crfl_core.training.session import Session
from crfl_core.training.steering import PoisonAim, Steering
from tests.certificates.attackers import Submitting
from tests.certificates.federations import CachedDigits, Coins, Halves, ZerosAndOnes
from tests.oracle import Played

Array = NDArray[np.float64]
PLUGINS: dict[str, type[Plugin]] = {
    "steering": Steering,
    "submitting": Submitting,
    "cached-digits": CachedDigits,
    "zeros-and-ones": ZerosAndOnes,
    "coins": Coins,
    "halves": Halves,
}
REGISTRY = Registry(PLUGINS)
HOOKS = Hooks([])


@dataclass(frozen=True)
class World:
    """A federation and what became of it."""

    federation: Federation
    outcomes: Sequence[Played]

    @cached_property
    def ledger(self) -> Ledger:
        records = tuple(outcome.record for outcome in self.outcomes)
        columns = ClientColumns.concatenate([outcome.clients for outcome in self.outcomes])
        return Ledger(self.federation.facts, records, columns)

    def aggregate(self, number: int) -> Array:
        """The clipped model of a round before its noise."""
        return self.outcomes[number - 1].aggregate.double().numpy()

    def start(self, number: int) -> Tensor:
        """The model that was broadcast in a round."""
        if number == 1:
            return rounds.initial_progress(self.federation)[0].models[0]
        return self.outcomes[number - 2].parameters

    @property
    def final(self) -> Tensor:
        return self.outcomes[-1].aggregate

    @cached_property
    def _answered(self) -> dict[VoteRequest, Votes]:
        return {}

    def votes(self, certificate: Certificate, threat: Threat) -> Votes:
        """What the final model answers to a certificate's request on the clean test set."""
        settings = certificate.votes.apply(self.federation.config.votes)
        request = certificate.request(self.ledger, threat, settings)
        if request not in self._answered:
            tests, streams = self.federation.test_sets["clean"], self.federation.streams
            electorate = VotingModels(self.federation.model, self.final, streams, self.continued)
            self._answered[request] = collect_votes(
                electorate, {"": (tests.features, tests.labels)}, request, settings
            )[""]
        return self._answered[request]

    def continued(self, request: VoteRequest) -> Tensor:
        """The models that vote on a request for continuations."""
        assert request.resample_from is not None
        replicas = range(1, request.selection_models + request.models + 1)
        return continued(self, request.resample_from, replicas, request.noise_std)

    @cached_property
    def predictions(self) -> NDArray[np.int64]:
        """The classes of the clean test set by the final model."""
        model, tests = self.federation.model, self.federation.test_sets["clean"]
        return model.logits(self.final[None], tests.features)[0].argmax(-1).numpy()

    def threat(self, **settings: Any) -> Threat:
        """The threat that covers what was done here, with other settings where they are given."""
        return threats.resolve_threat(ThreatSettings(**settings), self.federation.config.attack, self.ledger)[0]

    def uncovered(self, threat: ThreatSettings) -> tuple[str, ...]:
        """Where the attack goes beyond a threat."""
        return threats.resolve_threat(threat, self.federation.config.attack, self.ledger)[1]

    def certify(self, certificate: Certificate, threat: Threat, level: Level) -> Guarantee:
        """The guarantees on the clean test set; the audit must not refuse them."""
        audit = certification.audit_certificate(certificate, self.ledger, threat)
        assert not audit.refusal, audit.refusal
        return certificate.certify(self.ledger, self.votes(certificate, threat), threat, level)


def federation_of(config: Mapping[str, Any], plugins: Mapping[str, type[Plugin]] | None = None) -> Federation:
    """The federation that a config describes, which may name plugins of a test's own."""
    registry = REGISTRY if plugins is None else Registry(PLUGINS | dict(plugins))
    return build(load_config(config, registry=registry).config)


def context_of(federation: Federation) -> RunContext:
    """What plugins are told about a run that is played in memory."""
    config = federation.config
    return RunContext(
        config.name,
        Path("nowhere"),
        config.rounds,
        0,
        federation.data,
        federation.model,
        as_floats(federation.features),
    )


def play(federation: Federation, hooks: Hooks = HOOKS) -> World:
    """All rounds, in memory. The model before noise counts as kept in every round."""
    config = federation.config
    federation = replace(federation, resampled=tuple(range(1, config.rounds + 1)))
    session = Session(federation, config.engine.model_copy(), hooks, context_of(federation))
    with session.open_engine():
        outcomes = rounds.play_rounds(session, rounds.initial_progress(federation))
        return World(federation, [Played(outcome, *record_round(federation, outcome)) for (outcome,) in outcomes])


def continued(world: World, number: int, replicas: range, noise_std: float | None = None) -> Tensor:
    """The noisy final models of continuations with fresh noise from a round on, (k, P)."""
    federation, outcome = world.federation, world.outcomes[number - 1]
    kept = Progress(number, outcome.aggregate[None], (outcome.states,))
    session = Session(federation, federation.config.engine.model_copy(), HOOKS, context_of(federation))
    with session.open_engine():
        finals = continuations.continue_run(session, kept, replicas)
    std = federation.facts.test_noise_std if noise_std is None else noise_std
    return add_noise(finals, std, federation.streams, federation.config.rounds, replicas)


def toward(federation: Federation, parameters: Tensor, sample: int, runner_up: int) -> Tensor:
    """The direction in which the class of a test sample gives way soonest to its runner-up, of norm 1, (P,)."""
    features = federation.test_sets["clean"].features[sample]
    model = federation.model
    order = model.logits(parameters[None], features[None])[0, 0].argsort(descending=True)
    direction = torch.zeros_like(parameters)
    blocks = model.layout.unflatten(direction)
    for label, sign in ((order[runner_up], 1.0), (order[0], -1.0)):
        blocks["weight"][label] += sign * features
        if "bias" in blocks:
            blocks["bias"][label] += sign
    unit: Tensor = direction / direction.norm()
    return unit


def attacked(federation: Federation, clean: World, sample: int = 0, runner_up: int = 1) -> World:
    """The attacked world, its attackers informed about a model like the one that they start from."""
    attack = federation.config.attack
    assert isinstance(attack, (Steering, Submitting))
    first = federation.participation.attack_rounds[0]
    direction = toward(federation, clean.final, sample, runner_up)
    domain = federation.data.facts.domain
    aim = PoisonAim(federation.maps, federation.model, clean.start(first), direction, domain)
    return play(with_attack(federation, attack.aimed(aim)))


def honest_world(federation: Federation) -> World:
    """No client attacks."""
    return play(with_attack(federation, None))


def scaled_world(federation: Federation) -> World:
    """The attackers train as they like, but on clean data, and multiply their updates: the paper's clean world."""
    attack = federation.config.attack
    assert isinstance(attack, Steering)
    return play(with_attack(federation, attack.model_copy(update={"kind": "none"})))
