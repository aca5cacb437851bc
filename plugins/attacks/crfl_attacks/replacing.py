"""What all attacks share that need no trigger: whole samples take the place of the attackers' own."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from crfl_attacks.targeted import Targeted
from crfl_core.extend import Batches, FederatedData, OptionError, RealisedAttack, State, Streams, Threat


class Pool(NamedTuple):
    """Samples with the backdoor: `x` for training, the others for the backdoored test set, with their true labels."""

    x: Tensor
    test_x: Tensor
    test_y: Tensor


class Replacing(Targeted):
    """Attackers that put samples of a pool, with the target label, in the place of the first q_B of every batch."""

    @abstractmethod
    def pool(self, data: FederatedData) -> Pool:
        """The samples that the backdoor is about. Raises `OptionError`."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002 - draws nothing
        """The pool."""
        return self.pool(data)._asdict()

    def poison(self, batches: Batches, state: State) -> Batches:
        """Every attacker walks through the pool, from step to step and from round to round."""
        pool = state["x"]
        counts = self.counts(batches).amax(1)  # in a whole batch of each attacker
        own_steps = (batches.sizes > 0).sum(1)  # not the common number, which depends on who else trains here
        begin = torch.from_numpy(batches.clients + batches.round).to(pool.device) * own_steps * counts
        steps = torch.arange(batches.y.shape[1], device=pool.device)[:, None] * counts[:, None, None]
        walk = steps + torch.arange(int(counts.max()), device=pool.device)
        return self.replaced(batches, pool[(begin[:, None, None] + walk) % len(pool)])

    def backdoor_test_set(self, data: FederatedData, state: State) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The samples of the pool that are kept for testing, as they are."""
        return state["test_x"], state["test_y"]

    def threat(self, realised: RealisedAttack) -> Threat:
        """Other samples stood in the place of the attackers' own: more than a change of features and labels."""
        stated = super().threat(realised)
        return stated if stated.poison == "update" else stated.model_copy(update={"poison": "replacement"})

    def select(self, data: FederatedData, train: Tensor, test: Tensor, source: int | None, option: str) -> Pool:
        """The samples of two masks that are of the class `source`, or of any but the target."""

        def chosen(mask: Tensor, labels: Tensor) -> Tensor:
            return mask & (labels != self.target if source is None else labels == source)

        train = chosen(train, data.y)
        test = chosen(test, data.test_y)
        for kind, mask in (("training", train), ("test", test)):
            if not mask.any():
                raise OptionError(option, f"no {kind} sample has the property: choose a weaker one")
        return Pool(data.x_of(train), data.test_x[test], data.test_y[test])
