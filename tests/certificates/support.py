"""Coupled worlds: the same federation with the same noise and batches, attacked and not, and attackers that know it.

The attackers here are optimised against the certificates: they know the model, the noise to come and the prediction
that they want to change, and push the parameters straight toward another class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from crfl_datasets.digits import Digits
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr
from torch import Tensor

import crfl_formulas as formulas
from crfl_core import Threat, load_config
from crfl_core.certification import audits as certification
from crfl_core.certification import threats
from crfl_core.certification.voting import Electorate, vote
from crfl_core.extend import (
    Attack,
    Batches,
    Certificate,
    ClientColumns,
    Data,
    Dataset,
    Domain,
    FederatedData,
    Guarantee,
    Known,
    Ledger,
    Level,
    Partitioner,
    Plugin,
    Registry,
    RoundRecord,
    RunContext,
    RunFacts,
    State,
    Streams,
    VoteRequest,
    Votes,
)
from crfl_core.federation import continuations, rounds
from crfl_core.federation.participants import Participation
from crfl_core.federation.recording import record
from crfl_core.federation.rounds import Progress
from crfl_core.federation.server import add_noise
from crfl_core.federation.session import Session
from crfl_core.federation.setup import Federation, build
from crfl_core.hooks import Hooks
from crfl_interface.data import made
from crfl_interface.kinds.feature_map import FeatureMaps
from crfl_interface.kinds.model import BoundModel
from crfl_interface.threat import ThreatSettings
from tests.oracle import Played

torch.set_num_threads(1)

Array = NDArray[np.float64]
ASCENT_STEPS = 6


@cache
def all_digits() -> Data:
    """Read once for all worlds."""
    return Digits().read()


class CachedDigits(Digits):
    """The embedded digits, from memory."""

    def read(self) -> Data:
        return all_digits()


class ZerosAndOnes(CachedDigits):
    """Only the digits 0 and 1, which even a noisy model tells apart."""

    def read(self) -> Data:
        data = all_digits()
        train, test = data.y < 2, data.test_y < 2
        return replace(
            data,
            x=data.x[train],
            y=data.y[train],
            test_x=data.test_x[test],
            test_y=data.test_y[test],
            class_names=("0", "1"),
        )


class Coins(Dataset):
    """Two classes that cannot be told apart: all inputs are the same unit vector, labels alternate.

    Near the zero model the loss is a quadratic with the largest curvature that is possible, so bounds are nearly
    attained.
    """

    def read(self) -> Data:
        x = np.tile(np.array([1.0, 0.0], np.float32), (80, 1))
        labels = np.arange(80) % 2
        return Data(x, labels, x[:4], labels[:4], Domain(0.0, 1.0), ("heads", "tails"))


class Halves(Partitioner):
    """Two clients with as many heads as tails each."""

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        rows = np.arange(len(data.x))
        return rows[: len(rows) // 2], rows[len(rows) // 2 :]


@dataclass(frozen=True)
class Knowledge:
    """What an attacker knows: how inputs become features, the model it starts from, and where to push it, all (P,)."""

    maps: FeatureMaps
    model: BoundModel
    parameters: Tensor
    direction: Tensor

    def gain(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """How far one step on each sample pushes the model in the direction; with the best label if none is given."""
        features = self.maps(x)
        shape = features.shape[:-1]
        flat = features.reshape(-1, features.shape[-1])
        pushes = self.model.logits(self.direction[None], flat)[0].view(*shape, -1)
        chances = self.model.logits(self.parameters[None], flat)[0].softmax(-1).view(*shape, -1)
        best = pushes.argmax(-1) if labels is None else labels
        return pushes.gather(-1, best[..., None])[..., 0] - (pushes * chances).sum(-1)

    def best_labels(self, x: Tensor) -> Tensor:
        """The labels that push most."""
        features = self.maps(x)
        flat = features.reshape(-1, features.shape[-1])
        return self.model.logits(self.direction[None], flat)[0].argmax(-1).view(features.shape[:-1])

    def ascent(self, x: Tensor, labels: Tensor | None, delta: float) -> Tensor:
        """Inputs of the unit box within `delta` that push most, by projected gradient ascent."""
        moved = x.clone()
        for _ in range(ASCENT_STEPS):
            variable = moved.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(self.gain(variable, labels).sum(), variable)
            length = slope.norm(dim=-1, keepdim=True).clamp(min=1e-12)
            step = (variable.detach() + min(delta, 4.0) / 2 * slope / length).clamp(0.0, 1.0)
            away = step - x
            moved = x + away * (delta / away.norm(dim=-1, keepdim=True).clamp(min=delta)) * (1 - 1e-12)
        return moved


Kind = Literal["none", "features", "labels", "features+labels", "replacement"]


class Steering(Attack):
    """Poison that pushes the model toward a wrong prediction: in the worst samples of every batch, or `count` samples
    per epoch that fall into the batches where they weigh most.
    """

    kind: Kind = "features+labels"
    ratio: float = Field(0.5, ge=0, le=1)
    delta: float = Field(1.0, gt=0)
    count: int | None = None
    last_steps_only: bool = False

    _knowledge: Knowledge | None = PrivateAttr(default=None)

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def informed(self, knowledge: Knowledge) -> Steering:
        attack = self.model_copy()
        attack._knowledge = knowledge
        return attack

    def poison(self, batches: Batches, state: State) -> Batches:
        if self.kind == "none" or self._knowledge is None:
            return batches
        flips = self.kind != "features"
        labels = None if flips else batches.y
        x = batches.x
        if self.kind != "labels":
            x = self._knowledge.ascent(x, labels, 100.0 if self.kind == "replacement" else self.delta)
        y = self._knowledge.best_labels(x) if flips else batches.y
        with torch.no_grad():
            gain = self._knowledge.gain(x, y) - self._knowledge.gain(batches.x, batches.y)
        chosen = self._chosen(gain, batches.sizes)
        return replace(batches, x=torch.where(chosen[..., None], x, batches.x), y=torch.where(chosen, y, batches.y))

    def _chosen(self, gain: Tensor, sizes: Tensor) -> Tensor:
        """The samples to poison, (clients, steps, batch): those with most gain."""
        real = torch.arange(gain.shape[2]) < sizes[..., None]
        rank = gain.masked_fill(~real, -torch.inf).argsort(-1, descending=True).argsort(-1)
        return real & (rank < self._quota(sizes)[..., None])

    def _quota(self, sizes: Tensor) -> Tensor:
        """How many samples to poison in every batch."""
        if self.count is None:
            quota = (sizes.double() * self.ratio + 1e-9).floor()
            if self.last_steps_only:
                quota[:, :-1] = 0
            return quota
        quota = torch.zeros_like(sizes)
        for client, steps in enumerate(sizes.tolist()):
            largest = max(steps)
            ends = [step + 1 for step, size in enumerate(steps) if size < largest] or [len(steps)]
            for first, last in zip([0, *ends], [*ends, len(steps)], strict=False):
                left = self.count
                # late steps suffer least from weight decay, short batches weigh their samples most
                for step in sorted(range(first, last), key=lambda s: (steps[s], -s)):
                    quota[client, step] = min(left, steps[step])
                    left -= int(quota[client, step])
        return quota


class Submitting(Attack):
    """Attackers that submit what they like: a push of any size, their update reversed, or nothing that is a number."""

    how: Literal["push", "reverse", "not-finite", "pull"] = "push"
    size: float = 1e3

    _knowledge: Knowledge | None = PrivateAttr(default=None)

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def informed(self, knowledge: Knowledge) -> Submitting:
        attack = self.model_copy()
        attack._knowledge = knowledge
        return attack

    def craft(self, known: Known, state: State) -> Tensor:
        assert self._knowledge is not None
        own = known.own
        if self.how == "not-finite":
            return torch.full_like(own, torch.nan)
        if self.how == "reverse":
            return -self.size * own
        if self.how == "pull":
            return -self.size * known.round.start.expand_as(own)
        return self.size * self._knowledge.direction.expand_as(own)


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


def small(**changes: Any) -> dict[str, Any]:
    """Four clients on 200 digits for four rounds, in double precision, with inputs of norm at most 1."""
    config: dict[str, Any] = {
        "name": "small",
        "rounds": 4,
        "device": "cpu",
        "dtype": "float64",
        "dataset": {"type": "cached-digits", "train_samples": 200, "test_samples": 60},
        "partition": {"type": "iid", "clients": 4},
        "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
        "training": {"learning_rate": 0.5, "steps": 4, "batch_size": 16},
        "server": {"clip_norm": 4.0, "noise_std": 0.02, "cap_updates": False},
        "evaluation": {"every": 0},
        "engine": {"type": "local", "threads": 1},
        "storage": {"figures": []},
        "certificates": [{"type": "pathwise-linear"}],
    }
    return config | changes


def certifiable(**changes: Any) -> dict[str, Any]:
    """Twenty clients that make one step in each of thirty rounds and forget slowly: much of it is certified."""
    settings: dict[str, Any] = {
        "rounds": 30,
        "dataset": {"type": "cached-digits", "train_samples": 600, "test_samples": 200},
        "partition": {"type": "iid", "clients": 20},
        "model": {"type": "softmax", "bias": False, "features": {"type": "unit-ball", "radius": 3.0}},
        "training": {"learning_rate": 1.0, "steps": 1, "batch_size": 16, "weight_decay": 0.01},
        "server": {"clip_norm": 20.0, "noise_std": 0.01, "cap_updates": False},
        "aggregation": [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}],
    }
    return small(**(settings | changes))


def coins(training: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Two clients on coins, each with all of its 40 samples in every batch, without noise and without a clip."""
    return small(
        dataset={"type": "coins"},
        partition={"type": "halves"},
        model={"type": "softmax", "bias": False, "features": {"type": "unit-ball", "radius": 1.0}},
        training={"batch_size": 40, **training},
        server={"clip_norm": 1e6, "noise_std": 0.0, "cap_updates": False},
        **changes,
    )


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
            return rounds.initial(self.federation)[0].models[0]
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
            electorate = Electorate(self.federation.model, self.final, streams, self.continued)
            self._answered[request] = vote(electorate, {"": (tests.features, tests.labels)}, request, settings)[""]
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
        return threats.resolve(ThreatSettings(**settings), self.federation.attack, self.ledger)[0]

    def uncovered(self, threat: ThreatSettings) -> tuple[str, ...]:
        """Where the attack goes beyond a threat."""
        return threats.resolve(threat, self.federation.attack, self.ledger)[1]

    def certify(self, certificate: Certificate, threat: Threat, level: Level) -> Guarantee:
        """The guarantees on the clean test set; the audit must not refuse them."""
        audit = certification.audit(certificate, self.ledger, threat)
        assert not audit.refusal, audit.refusal
        return certificate.certify(self.ledger, self.votes(certificate, threat), threat, level)


def federation_of(config: Mapping[str, Any], plugins: Mapping[str, type[Plugin]] | None = None) -> Federation:
    """The federation that a config describes, which may name plugins of a test's own."""
    registry = REGISTRY if plugins is None else Registry(PLUGINS | dict(plugins))
    return build(load_config(config, registry=registry).config)


@cache
def plain_facts() -> RunFacts:
    """The facts of a run in which everything is as the certificates like it."""
    return federation_of(small()).facts


def synthetic_ledger(
    *,
    participants: Sequence[Sequence[int]] = ((0, 1, 2, 3),) * 3,
    samples: Sequence[int] = (40, 40, 40, 40),
    rate: float = 0.5,
    steps: int = 4,
    batch_size: int = 16,
    decay: float = 0.0,
    cap: float = np.inf,
    residual: float | None = None,
    clip_norm: float = 4.0,
    noise_std: float = 0.1,
    start_norm: float = 1.0,
    **facts: Any,
) -> Ledger:
    """A ledger without a run: everybody trains alike, weights are shares of samples among a round's participants.

    Unless a `residual` is given, everybody submitted what only attackers submit, ten times what is honest.
    """
    clients = np.concatenate([np.asarray(ids) for ids in participants])
    held = np.asarray(samples)
    numbers = np.concatenate([np.full(len(ids), number) for number, ids in enumerate(participants, start=1)])
    own, total = held[clients], len(clients)
    weights = own / np.array([held[list(participants[number - 1])].sum() for number in numbers])
    sizes = np.minimum(batch_size, own)
    kept = formulas.retention(rate, steps, decay)
    reach = formulas.update_bound(rate, steps, np.hypot(1.0, 1.0), decay)

    def each(value: float, kind: type[Any] = np.float64) -> NDArray[Any]:
        return np.full(total, value, kind)

    columns = ClientColumns(
        round=numbers,
        client=clients,
        group=each(0, np.int64),
        weight=weights,
        weight_bound=weights,
        learning_rate=each(rate),
        steps=each(steps, np.int64),
        honest_rate=each(rate),
        honest_steps=each(steps, np.int64),
        batch_size=sizes,
        last_batch=own - (-(-own // sizes) - 1) * sizes,
        weight_decay=each(decay),
        retention=each(float(kept)),
        update_bound=each(float(reach)),
        cap=each(cap),
        submitted_norm=each(0.1),
        residual_norm=each(min(cap, 10 * float(reach) if residual is None else residual)),
        quarantined=each(0, np.bool_),
        attacking=each(0, np.bool_),
        scale=each(1.0),
        poisoned_share=each(0.0),
        poisoned_samples=each(0, np.int64),
        poisoned_most=each(0, np.int64),
        delta=each(0.0),
        label_flips=each(0, np.int64),
        poisoned_norm=each(0.0),
        spectrum=each(0.0),
        start_gradient=each(0.0),
        batch_factor=each(1.0),
        scaled_batches=each(0, np.int64),
    )
    records = tuple(
        RoundRecord(
            round=number,
            clip_norm=clip_norm,
            noise_std=0.0 if number == len(participants) else noise_std,
            start_norm=start_norm,
            start_operator_norm=start_norm,
            norm_before_clip=start_norm,
            accepted=True,
            depends="fixed" if np.isinf(cap) else "own",
            weights_from="chain",
            participants=len(ids),
            quarantined=0,
        )
        for number, ids in enumerate(participants, start=1)
    )
    changed = {
        "clients": len(samples),
        "rounds": len(participants),
        "samples": tuple(samples),
        "feature_norms": (1.0,) * len(samples),
        "feature_lipschitz": 1.0,
        "test_noise_std": noise_std,
        "resampled": tuple(range(1, len(participants) + 1)),
    }
    return Ledger(plain_facts().model_copy(update=changed | facts), records, columns)


def context_of(federation: Federation) -> RunContext:
    """What plugins are told about a run that is played in memory."""
    config = federation.config
    return RunContext(
        config.name, Path("nowhere"), config.rounds, 0, federation.data, federation.model, made(federation.features)
    )


def play(federation: Federation, hooks: Hooks = HOOKS) -> World:
    """All rounds, in memory. The model before noise counts as kept in every round."""
    config = federation.config
    federation = replace(federation, resampled=tuple(range(1, config.rounds + 1)))
    session = Session(federation, config.engine.model_copy(), hooks, context_of(federation))
    with session.opened():
        outcomes = rounds.train(session, rounds.initial(federation))
        return World(federation, [Played(outcome, *record(federation, outcome)) for (outcome,) in outcomes])


def continued(world: World, number: int, replicas: range, noise_std: float | None = None) -> Tensor:
    """The noisy final models of continuations with fresh noise from a round on, (k, P)."""
    federation, outcome = world.federation, world.outcomes[number - 1]
    kept = Progress(number, outcome.aggregate[None], (outcome.states,))
    session = Session(federation, federation.config.engine.model_copy(), HOOKS, context_of(federation))
    with session.opened():
        finals = continuations.continued(session, kept, replicas)
    std = federation.facts.test_noise_std if noise_std is None else noise_std
    return add_noise(finals, std, federation.streams, federation.config.rounds, replicas)


def with_attack(federation: Federation, attack: Attack | None) -> Federation:
    """The same data, model and random streams with another attack, or none."""
    config = federation.config.model_copy(update={"attack": attack})
    samples = federation.facts.samples
    members = federation.participation.members
    participation = Participation(config, samples, federation.honest, federation.streams, members)
    return replace(federation, config=config, participation=participation)


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
    attack = federation.attack
    assert isinstance(attack, (Steering, Submitting))
    first = federation.participation.attack_rounds[0]
    direction = toward(federation, clean.final, sample, runner_up)
    knowledge = Knowledge(federation.maps, federation.model, clean.start(first), direction)
    return play(with_attack(federation, attack.informed(knowledge)))


def honest_world(federation: Federation) -> World:
    """Nobody attacks."""
    return play(with_attack(federation, None))


def scaled_world(federation: Federation) -> World:
    """The attackers train as they like, but on clean data, and multiply their updates: the paper's clean world."""
    attack = federation.attack
    assert isinstance(attack, Steering)
    return play(with_attack(federation, attack.model_copy(update={"kind": "none"})))
