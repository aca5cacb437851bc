"""Attacks: what malicious clients do to their data, their training and their update."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.errors import OptionError
from crfl_core.plugin_api.base import Plugin
from crfl_core.records.attacker_view import AttackerObservation, AttackerView, Knowledge
from crfl_core.records.inputs import Batches, FederatedData
from crfl_core.records.random_streams import Streams
from crfl_core.records.round import State
from crfl_core.records.schedules import Rounds
from crfl_core.records.threat import SCALE_TOLERANCE, Poison, Threat

if TYPE_CHECKING:
    from torch import Tensor


FREE_METHODS = ("local_gradient", "after_step", "scales", "craft")
"""Methods with which an attack leaves the protocol of local training."""


@dataclass(frozen=True)
class RealisedAttack:
    """Measured behaviour of the attackers of a run: one entry per attacked round and attacker."""

    round: NDArray[np.int64]
    client: NDArray[np.int64]
    poison_ratio: NDArray[np.float64]
    delta: NDArray[np.float64]
    flips: NDArray[np.int64]
    scale: NDArray[np.float64]


class Attack(Plugin):
    """Malicious clients: who they are, when they are active, and what they do then.

    Outside the attacked rounds, and while they are not sampled, they are honest. Every method that changes something
    has a neutral default, so an attack overrides only what it needs. Its memory is its state: `prepare` returns the
    first one, `learn` the next one, and every other method receives the state of the round.
    """

    knowledge: ClassVar[Knowledge] = "own"
    """What `craft` sees: "own" updates alone, all "updates", or in addition the "rule" of the server."""

    clients: Annotated[int, Field(ge=1)] | tuple[int, ...] = Field(
        1, description="ids of the attackers, or how many to draw"
    )
    rounds: Rounds = Field((1,), description="attacked rounds: a list, or {first, every, last}")
    scale: Annotated[float, Field(ge=1)] | Literal["replace"] = Field(
        1.0,
        description="factor on the malicious update, gamma; 'replace' is 1 / p_i among the participants of the round, "
        "which puts the attacker's model in place of the global one",
    )
    learning_rate: float | None = Field(None, gt=0, description="attackers' rate; unset: as honest clients")
    steps: int | None = Field(None, ge=1, description="attackers' local steps; unset: as honest clients")

    @abstractmethod
    def prepare(self, data: FederatedData, streams: Streams) -> State:
        """Return the state of the first round.

        Called once before training. Raises `OptionError`.
        """

    def learn(self, seen: AttackerObservation, state: State) -> State:  # noqa: ARG002
        """Return the state of the next round.

        By default the state stays as it is. Called after every round of the run, attacked or not. The state is tensors
        by name, stored in the checkpoint and sent to the processes that train clients: keep it small.
        """
        return state

    def attackers(self, clients: int, streams: Streams) -> tuple[int, ...]:
        """Return the ids of the attackers, ascending.

        They are as given, or drawn. Raises `OptionError`.
        """
        if isinstance(self.clients, int):
            if self.clients > clients:
                raise OptionError("clients", f"found {self.clients}, but there are only {clients} clients")
            drawn = streams.generator("attack/clients").choice(clients, self.clients, replace=False)
            return tuple(int(client) for client in np.sort(drawn))
        if not self.clients:
            raise OptionError("clients", "name at least one client, or set attack = 'none'")
        for client in self.clients:
            if not 0 <= client < clients:
                raise OptionError("clients", f"there is no client {client}: clients are 0..{clients - 1}")
        return tuple(sorted(set(self.clients)))

    def check(self, batch_size: int) -> None:
        """Raise `OptionError` if the options do not fit the attackers' batches.

        The smallest batch decides. Called before training.
        """

    def poison(self, batches: Batches, state: State) -> Batches:  # noqa: ARG002
        """Poison the attackers' batches of a round.

        Return new tensors where something changes. The next round reuses the memory of the given batches: an attack
        that remembers them keeps a copy.
        """
        return batches

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:  # noqa: ARG002
        """Return the gradient that attackers follow.

        All are (R, attackers, P); `start` is the model of the round.
        """
        return gradient

    def after_step(self, weights: Tensor, start: Tensor, state: State) -> Tensor:  # noqa: ARG002
        """Return the attackers' weights after a local step, for example projected."""
        return weights

    def scales(self, weights: Tensor) -> Tensor:
        """Return the factor of each attacker.

        The aggregation weights p_i are those of this round.
        """
        return 1.0 / weights if self.scale == "replace" else weights.new_full(weights.shape, self.scale)

    def craft(self, known: AttackerView, state: State) -> Tensor:  # noqa: ARG002
        """Return what the attackers submit, (a, P).

        By default these are their trained updates times `scales(weights)`.
        """
        return self.scales(known.weights)[:, None].to(known.own_updates) * known.own_updates

    @property
    def backdoor_class(self) -> int | None:
        """Return the target class of backdoored inputs.

        None if the attack has none.
        """
        return None

    def add_trigger(self, x: Tensor, state: State) -> Tensor | None:  # noqa: ARG002
        """Return test inputs with the trigger, clamped to the domain.

        None if the attack has no trigger.
        """
        return None

    def backdoor_test_set(self, data: FederatedData, state: State) -> tuple[Tensor, Tensor] | None:
        """Return the backdoored test set, inputs with their true labels.

        None if there is none. By default these are the test inputs of all classes but the target, with the trigger. An
        attack without a trigger returns the inputs that it targets. Inputs of the target class never count as
        successes.
        """
        others = data.test_y != (-1 if self.backdoor_class is None else self.backdoor_class)
        triggered = self.add_trigger(data.test_x[others], state)
        return None if triggered is None else (triggered, data.test_y[others])

    def threat(self, realised: RealisedAttack) -> Threat:
        """Return the threat that covers the measured attack.

        An attack that changes steps, gradients or updates is of kind "update": its data do not show what it did.
        """
        flips = bool(realised.flips.any())
        moves = bool((realised.delta > 0).any())
        poison: Poison = "features" if not flips else "features+labels" if moves else "labels"
        if any(getattr(type(self), name) is not getattr(Attack, name) for name in FREE_METHODS):
            poison = "update"
        return Threat(
            clients=tuple(int(client) for client in np.unique(realised.client)),
            rounds=tuple(int(number) for number in np.unique(realised.round)),
            poison=poison,
            poison_ratio=min(1.0, float(realised.poison_ratio.max(initial=0.0))),
            delta=float(realised.delta.max(initial=0.0)),
            scale=self._realised_scale(realised),
        )

    def _realised_scale(self, realised: RealisedAttack) -> float:
        """Return the measured scale, or the declared one.

        The declared one counts if they agree: multiplying is exact, norms are not.
        """
        measured = float(realised.scale.max(initial=1.0))
        same = self.scale != "replace" and measured <= self.scale * (1 + SCALE_TOLERANCE)
        return float(self.scale) if same else measured
