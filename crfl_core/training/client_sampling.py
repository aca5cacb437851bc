"""Participants of a round: which clients are drawn, how each of them trains, and what attackers change about that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core.errors import ConfigError, OptionError, wrap_failures
from crfl_core.records.random_streams import Streams, of_group
from crfl_core.records.round import Clients
from crfl_core.records.schedules import (
    EqualInfluence,
    PerClient,
    Schedule,
    client_schedules,
    client_values,
    expand_rounds,
    values,
    varies,
)

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.config.schema import Training
    from crfl_core.plugin_api.attack import Attack
    from crfl_core.records.ledger import ModelFacts, TrainingFacts
    from crfl_core.training.groups import Members


@dataclass(frozen=True)
class ClientBehaviour:
    """Behaviour of the participants of a round: attackers may have a rate and a number of steps of their own."""

    attacking: NDArray[np.bool_]
    learning_rate: NDArray[np.float64]
    steps: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64] | slice) -> ClientBehaviour:
        """Return the behaviour of some of the participants."""
        return ClientBehaviour(self.attacking[rows], self.learning_rate[rows], self.steps[rows])


class HonestTraining(NamedTuple):
    """Facts about local training that follows the protocol, and a bound on gradients.

    No step is along a longer one, except on a batch whose weights sum to more than 1, which class balance may make.
    """

    facts: TrainingFacts
    gradient_bound: float


class Participation:
    """Local settings of all clients, the draw of participants for each round, and the behaviour of attackers.

    Participants come group by group, each by ascending id; `members` are the clients of each group.
    """

    def __init__(
        self, config: RunConfig, samples: Sequence[int], honest: HonestTraining, streams: Streams, members: Members
    ) -> None:
        self._config = config
        self._training = honest
        self._streams = streams
        self.total = len(samples)
        self.members = members
        self.attackers = draw_attackers(config.attack, self.total, streams)
        self.attack_rounds = expand_attack_rounds(config.attack, config.rounds)
        check_rates(config, honest.facts.proximal)
        self._samples = np.asarray(samples, np.int64)
        self._changing = varies((config.training.learning_rate, config.training.steps))
        self._per_round = [max(1, round(config.training.participation * len(group))) for group in members]
        self._first = honest_clients(config, self._samples, honest, 1)
        self._dealt = self._by_group(self._first)
        if self.attackers and not any(self.behaviour(t).attacking.any() for t in self.attack_rounds):
            raise ConfigError(
                "no attacker is drawn in any attacked round, so nothing would be attacked: raise "
                "training.participation, name more rounds, or change seeds.participation",
                key="attack.rounds",
            )

    def all_clients(self, number: int) -> Clients:
        """Return all clients of the federation, by ascending id.

        They are as the protocol says for the round.
        """
        if not self._changing or number == 1:
            return self._first
        return honest_clients(self._config, self._samples, self._training, number)

    def participants(self, number: int) -> Clients:
        """Return the participants of a round, as the protocol says.

        They come group by group and by ascending id.
        """
        clients = self._by_group(self.all_clients(number)) if self._changing else self._dealt
        return clients if sum(self._per_round) == len(clients) else clients.take(self._drawn(number))

    def behaviour(self, number: int, *, attacked: bool = True) -> ClientBehaviour:
        """Return what the participants of a round really do.

        If it is not `attacked`, they do what the protocol says.
        """
        clients = self.participants(number)
        attack = self._config.attack
        if attack is None or not attacked or number not in self.attack_rounds:
            return ClientBehaviour(np.zeros(len(clients), np.bool_), clients.learning_rate, clients.steps)
        attacking = np.isin(clients.ids, self.attackers)
        return ClientBehaviour(
            attacking,
            clients.learning_rate
            if attack.learning_rate is None
            else np.where(attacking, attack.learning_rate, clients.learning_rate),
            clients.steps if attack.steps is None else np.where(attacking, attack.steps, clients.steps),
        )

    def _by_group(self, all_clients: Clients) -> Clients:
        """Return all clients group by group.

        A client in several groups comes several times.
        """
        clients = all_clients.take(np.concatenate(self.members))
        return replace(clients, group=np.repeat(np.arange(len(self.members)), [*map(len, self.members)]))

    def _drawn(self, number: int) -> NDArray[np.int64]:
        drawn = []
        first = 0
        for group, (clients, count) in enumerate(zip(self.members, self._per_round, strict=True)):
            purpose = of_group("participation", group if len(self.members) > 1 else None)
            generator = self._streams.generator(purpose, round_number=number)
            drawn.append(first + np.sort(generator.choice(len(clients), count, replace=False)))
            first += len(clients)
        return np.concatenate(drawn)


def honest_clients(config: RunConfig, samples: NDArray[np.int64], honest: HonestTraining, number: int) -> Clients:
    """Return the settings of all clients in a round without attackers.

    With `a = 1 - eta (lambda + mu)` weight decay keeps `1 - (1 - a^tau) lambda / (lambda + mu)` of the model, and the
    residual of an update is at most `gradient_bound (1 - a^tau) / (lambda + mu)`, or `eta tau gradient_bound` without
    decay and proximal weight. Class balance keeps that bound for clients that train on all their samples in every
    step; the weights of a smaller batch may sum to more than 1. Decay toward the start model has no such bound.
    """
    training = config.training
    total = len(samples)
    batch_size = np.minimum(training.batch_size, samples)
    per_epoch = samples // batch_size if training.drop_last else -(-samples // batch_size)
    if training.steps is None:
        steps = per_epoch * (training.epochs or 1)
    else:
        steps = per_client("training.steps", training.steps, total, number).astype(np.int64)
    rates = training.learning_rate
    decay = training.weight_decay
    if isinstance(rates, EqualInfluence):
        rate = equal_influence_rates(rates, training, steps, number)
    else:
        rate = per_client("training.learning_rate", rates, total, number)
    pull = decay + honest.facts.proximal
    plain = honest.facts.plain and not honest.facts.toward_start
    bounded = plain & (np.equal(batch_size, samples) if honest.facts.class_balance else np.ones(total, np.bool_))
    with np.errstate(divide="ignore"):
        shrunk = -np.expm1(steps * np.log1p(-rate * pull))  # 1 - a^tau, exact for the smallest decay
    lost = shrunk if pull == decay else shrunk * (decay / pull)
    reach = rate * steps if pull == 0 else shrunk / pull
    return Clients(
        ids=np.arange(total),
        samples=samples,
        learning_rate=rate,
        steps=steps,
        batch_size=batch_size,
        last_batch=np.minimum(batch_size, samples - (per_epoch - 1) * batch_size),
        weight_decay=np.full(total, decay),
        retention=1.0 - lost if plain else np.ones(total),
        update_bound=np.where(bounded, reach * honest.gradient_bound, np.inf),
        group=np.zeros(total, np.int64),
    )


def check_rates(config: RunConfig, proximal: float) -> None:
    """Raise `ConfigError` if a learning rate is too large for decay.

    A step must not turn the sign of what weight decay or a proximal weight should shrink.
    """
    decay = config.training.weight_decay
    attack = config.attack
    rates: dict[str, float] = {}
    if not isinstance(config.training.learning_rate, EqualInfluence):  # whose rates are below 1 / lambda
        each = client_schedules(config.training.learning_rate)
        rates["training.learning_rate"] = max(max(values(one, config.rounds)) for one in each)
    if attack is not None and attack.learning_rate is not None:
        rates["attack.learning_rate"] = attack.learning_rate
    for key, rate in rates.items():
        if rate * (decay + proximal) > 1.0:
            pulls = f"({decay:g} + {proximal:g})" if proximal else f"{decay:g}"
            names = "(training.weight_decay + the proximal weight)" if proximal else "training.weight_decay"
            raise ConfigError(f"times {names} must be at most 1, found {rate:g} x {pulls}", key=key)


def per_client(key: str, schedule: Schedule | PerClient[Schedule], total: int, number: int) -> NDArray[np.float64]:
    """Return a setting as one value for each client of a round."""
    if isinstance(schedule, PerClient) and (found := len(schedule.per_client)) != total:
        raise ConfigError(f"per_client needs one entry per client: found {found} for {total} clients", key=key)
    return client_values(schedule, total, number)


def draw_attackers(attack: Attack | None, total: int, streams: Streams) -> tuple[int, ...]:
    """Return the ids of the attackers: as given, or drawn."""
    if attack is None:
        return ()
    try:
        with wrap_failures(f"attack: {attack.full_name} failed"):
            return attack.attackers(total, streams)
    except OptionError as error:
        raise ConfigError(error.message, key=f"attack.{error.option}") from error


def expand_attack_rounds(attack: Attack | None, total: int) -> tuple[int, ...]:
    """Return the attacked rounds; raise `ConfigError` if they are not in 1..total."""
    if attack is None:
        return ()
    rounds = expand_rounds(attack.rounds, total)
    if not rounds or rounds[-1] > total:
        found = f"round {rounds[-1]}" if rounds else "no round at all"
        raise ConfigError(
            f'found {found}, but rounds are 1..{total}: set attack.rounds, more rounds, or attack = "none"',
            key="attack.rounds",
        )
    return rounds


LEARNING_RATE_KEY = "training.learning_rate"
START_TOLERANCE = 1e-9
STEP_RULE_SLACK = 1e-3
"""The step rule of certificates is about measured norms, which may exceed declared ones by rounding."""


def resolve_equal_influence(
    config: RunConfig, model: ModelFacts, facts: TrainingFacts, smoothness: float, samples: NDArray[np.int64]
) -> RunConfig:
    """Return the config with the t0 of its equal influence.

    This is the smallest t0 whose rates keep the step rule. It follows from what is public: the declared bound on
    inputs, decay and numbers of steps.
    """
    schedule = config.training.learning_rate
    training = config.training
    if not isinstance(schedule, EqualInfluence):
        return config
    if not facts.plain or facts.proximal:
        raise ConfigError(
            f"equal influence is for plain SGD, found {facts.algorithm!r}: set algorithm = 'sgd'", key=LEARNING_RATE_KEY
        )
    if facts.class_balance or facts.toward_start:
        option = "class_balance" if facts.class_balance else "toward_start"
        raise ConfigError(
            "equal influence serves certificates that are proved for the plain mean of losses and decay toward 0: "
            f"leave out training.{option}, or give a rate",
            key=LEARNING_RATE_KEY,
        )
    steps = fewest_steps(training, config.rounds, samples)
    if not (model.linear and model.convex and facts.clip_gradients is None and math.isfinite(smoothness)):
        if schedule.start is None:
            raise ConfigError(
                "there is no step rule to find t0 from: use softmax regression without clip_gradients on inputs with a "
                "bound (model.features = { type = 'unit-ball' }), or set its start",
                key=LEARNING_RATE_KEY,
            )
        return config
    least = formulas.equal_influence_start(smoothness, training.weight_decay, steps)
    if schedule.start is None and training.steps is None and config.groups is not None:
        raise ConfigError(
            "with groups, t0 must not follow from the numbers of samples, which clients of any group decide: set "
            f"training.steps instead of epochs, or start, here to {least:.6g} or more",
            key=LEARNING_RATE_KEY,
        )
    if schedule.start is not None:
        if schedule.start < least * (1.0 - START_TOLERANCE):
            first = float(equal_influence_rates(schedule, training, np.array([steps]), 1)[0])
            limit = float(formulas.largest_rate(smoothness, training.weight_decay))
            raise ConfigError(
                f"start = {schedule.start:g} breaks the step rule, eta <= 2 / (beta + 2 lambda): the rate of round 1 "
                f"is {first:.4g}, at most {limit:.4g} keeps it: set start to {least:.6g} or more, or leave it out",
                key=LEARNING_RATE_KEY,
            )
        return config
    found = formulas.equal_influence_start(smoothness * (1.0 + STEP_RULE_SLACK), training.weight_decay, steps)
    rates = schedule.model_copy(update={"start": found})
    return config.model_copy(update={"training": training.model_copy(update={"learning_rate": rates})})


def fewest_steps(training: Training, rounds: int, samples: NDArray[np.int64]) -> int:
    """Return the fewest local steps of any client in any round.

    Fewer steps are larger ones.
    """
    if training.steps is not None:
        return int(min(min(values(one, rounds)) for one in client_schedules(training.steps)))
    return int((-(-samples // np.minimum(training.batch_size, samples))).min()) * (training.epochs or 1)


def equal_influence_rates(
    schedule: EqualInfluence, training: Training, steps: NDArray[np.int64], number: int
) -> NDArray[np.float64]:
    """Return the rate of every client in a round.

    Rounds are numbered t = 1, 2, ... All clients keep the same share of their model.
    """
    assert schedule.start is not None
    rates = formulas.equal_influence_rates(1, steps, training.weight_decay, schedule.start + number - 1)
    return np.asarray(rates[0])
