"""Who takes part in a round, and how each of them trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from crfl_core.config import RunConfig
from crfl_core.errors import ConfigError, OptionError, failures_named
from crfl_core.federation.groups import Members
from crfl_core.kinds.attack import Attack
from crfl_core.schedules import expand
from crfl_core.streams import Streams, of_group
from crfl_core.updates import Clients


@dataclass(frozen=True)
class Conduct:
    """How the participants of a round really train: attackers may have a rate and a number of steps of their own."""

    attacking: NDArray[np.bool_]
    learning_rate: NDArray[np.float64]
    steps: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64] | slice) -> Conduct:
        """That of some of the participants."""
        return Conduct(self.attacking[rows], self.learning_rate[rows], self.steps[rows])


class Participation:
    """The local settings of all clients, which of them are drawn in each round, and what attackers make of it.

    Participants come group by group, each by ascending id; `members` are the clients of each group.
    """

    def __init__(
        self, config: RunConfig, samples: Sequence[int], gradient_bound: float, streams: Streams, members: Members
    ) -> None:
        self._config = config
        self._streams = streams
        self.total, self.members = len(samples), members
        self.attackers = drawn_attackers(config.attack, self.total, streams)
        self.attack_rounds = attack_rounds(config.attack, config.rounds)
        if config.attack is not None and config.attack.learning_rate is not None:
            check_decay("attack.learning_rate", config.attack.learning_rate, config.training.weight_decay)
        everybody = honest_clients(config, np.asarray(samples, np.int64), gradient_bound)
        self._honest = replace(
            everybody.take(np.concatenate(members)), group=np.repeat(np.arange(len(members)), [*map(len, members)])
        )
        self._per_round = [max(1, round(config.training.participation * len(group))) for group in members]
        if self.attackers and not any(self.conduct(t).attacking.any() for t in self.attack_rounds):
            raise ConfigError(
                "no attacker is drawn in any attacked round, so nothing would be attacked: raise "
                "training.participation, name more rounds, or change seeds.participation",
                key="attack.rounds",
            )

    @property
    def everybody(self) -> Clients:
        """All clients of the federation."""
        return self._honest

    def round(self, number: int) -> Clients:
        """The participants of a round, group by group and by ascending id, as the protocol says."""
        everybody = sum(self._per_round) == len(self._honest)
        return self._honest if everybody else self._honest.take(self._drawn(number))

    def conduct(self, number: int, *, attacked: bool = True) -> Conduct:
        """What the participants of a round really do; if it is not `attacked`, what the protocol says."""
        clients, attack = self.round(number), self._config.attack
        if attack is None or not attacked or number not in self.attack_rounds:
            return Conduct(np.zeros(len(clients), np.bool_), clients.learning_rate, clients.steps)
        attacking = np.isin(clients.ids, self.attackers)
        return Conduct(
            attacking,
            clients.learning_rate
            if attack.learning_rate is None
            else np.where(attacking, attack.learning_rate, clients.learning_rate),
            clients.steps if attack.steps is None else np.where(attacking, attack.steps, clients.steps),
        )

    def _drawn(self, number: int) -> NDArray[np.int64]:
        drawn, first = [], 0
        for group, (clients, count) in enumerate(zip(self.members, self._per_round, strict=True)):
            purpose = of_group("participation", group if len(self.members) > 1 else None)
            generator = self._streams.generator(purpose, round_number=number)
            drawn.append(first + np.sort(generator.choice(len(clients), count, replace=False)))
            first += len(clients)
        return np.concatenate(drawn)


def honest_clients(config: RunConfig, samples: NDArray[np.int64], gradient_bound: float) -> Clients:
    """The settings of all clients when nobody attacks.

    With `c = (1 - eta lambda)^tau` the residual of an update is at most `gradient_bound (1 - c) / lambda`, which is
    `eta tau gradient_bound` without weight decay.
    """
    training, total = config.training, len(samples)
    batch_size = np.minimum(training.batch_size, samples)
    per_epoch = -(-samples // batch_size)
    if training.steps is None:
        steps = per_epoch * (training.epochs or 1)
    else:
        steps = per_client("training.steps", training.steps, total).astype(np.int64)
    rate, decay = per_client("training.learning_rate", training.learning_rate, total), training.weight_decay
    check_decay("training.learning_rate", float(rate.max()), decay)
    with np.errstate(divide="ignore"):
        lost = -np.expm1(steps * np.log1p(-rate * decay))  # 1 - c, exact for the smallest decay
    reach = rate * steps if decay == 0 else lost / decay
    return Clients(
        ids=np.arange(total),
        samples=samples,
        learning_rate=rate,
        steps=steps,
        batch_size=batch_size,
        last_batch=samples - (per_epoch - 1) * batch_size,
        weight_decay=np.full(total, decay),
        retention=1.0 - lost,
        update_bound=reach * gradient_bound,
        group=np.zeros(total, np.int64),
    )


def check_decay(key: str, rate: float, decay: float) -> None:
    """A step never turns the sign of what weight decay should shrink."""
    if rate * decay > 1.0:
        raise ConfigError(f"times training.weight_decay must be at most 1, found {rate:g} x {decay:g}", key=key)


def per_client(key: str, value: float | Sequence[float], total: int) -> NDArray[np.float64]:
    """A setting as one value for each client."""
    if isinstance(value, Sequence):
        if len(value) != total:
            raise ConfigError(f"a list needs one value per client: found {len(value)} for {total} clients", key=key)
        return np.asarray(value, np.float64)
    return np.full(total, float(value))


def drawn_attackers(attack: Attack | None, total: int, streams: Streams) -> tuple[int, ...]:
    """The ids of the attackers: as given, or drawn."""
    if attack is None:
        return ()
    try:
        with failures_named(f"attack: {attack.full_name} failed"):
            return attack.attackers(total, streams)
    except OptionError as error:
        raise ConfigError(error.message, key=f"attack.{error.option}") from error


def attack_rounds(attack: Attack | None, total: int) -> tuple[int, ...]:
    """The attacked rounds."""
    if attack is None:
        return ()
    rounds = expand(attack.rounds, total)
    if not rounds or rounds[-1] > total:
        found = f"round {rounds[-1]}" if rounds else "no round at all"
        raise ConfigError(f"found {found}, but rounds are 1..{total}", key="attack.rounds")
    return rounds
