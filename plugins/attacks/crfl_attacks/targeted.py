"""Base classes of attacks that poison samples of every batch in favour of one class."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import Attack, Batches, FederatedData, OptionError, RealisedAttack, State, Streams, Threat

FLOOR_TOLERANCE = 1e-9
"""0.29 of 100 samples are 29, though the product of the two numbers is a little less."""


class TargetedPoisoning(Attack):
    """Attackers whose poisoned samples, the first q_B of every batch, carry a target label."""

    poisoned_per_batch: int = Field(5, ge=1, description="poisoned samples in each batch, q_B")
    poison_ratio: float | None = Field(
        None,
        gt=0,
        le=1,
        description="instead of their number: the poisoned share of every batch, q_B / n_B, rounded down to whole "
        "samples; in a short batch they are fewer",
    )
    target: int = Field(0, ge=0, description="the class that backdoored inputs should get")

    @property
    def backdoor_class(self) -> int:
        """Return the target label."""
        return self.target

    def poisoned_counts(self, batches: Batches) -> Tensor:
        """Count the samples that each attacker poisons in each step, (attackers, steps)."""
        if self.poison_ratio is None:
            return torch.full_like(batches.sizes, self.poisoned_per_batch)
        return (self.poison_ratio * batches.sizes.double() + FLOOR_TOLERANCE).floor().long()

    def replace_samples(self, batches: Batches, x: Tensor) -> Batches:
        """Replace the first samples of batches by `x` and the target.

        `x` is (attackers, steps, most, features).
        """
        first = slice(0, x.shape[2])
        mine = torch.arange(x.shape[2], device=x.device) < self.poisoned_counts(batches)[..., None]
        poisoned_x = batches.x.clone()
        poisoned_y = batches.y.clone()
        poisoned_x[:, :, first] = torch.where(mine[..., None], x, poisoned_x[:, :, first])
        poisoned_y[:, :, first] = torch.where(mine, self.target, poisoned_y[:, :, first])
        return replace(batches, x=poisoned_x, y=poisoned_y)

    def check(self, batch_size: int) -> None:
        """Raise `OptionError` for too few or too many poisoned samples.

        A batch must have between one and all of its samples poisoned.
        """
        if self.poison_ratio is not None:
            if self.poison_ratio * batch_size + FLOOR_TOLERANCE < 1:
                raise OptionError(
                    "poison_ratio",
                    f"{self.poison_ratio:g} of an attacker's batch of {batch_size} samples is not one sample: raise it "
                    "or training.batch_size",
                )
        elif self.poisoned_per_batch > batch_size:
            raise OptionError(
                "poisoned_per_batch",
                f"found {self.poisoned_per_batch}, but an attacker's batch has {batch_size} samples",
            )


def check_class(option: str, label: int | None, classes: int) -> None:
    """Raise `OptionError` unless the class of an option exists."""
    if label is not None and label >= classes:
        raise OptionError(option, f"there is no class {label}: classes are 0..{classes - 1}")


def check_source(source: int | None, target: int | None, classes: int) -> None:
    """Raise `OptionError` unless the source class exists and is not the target."""
    check_class("source", source, classes)
    if source is not None and source == target:
        raise OptionError("source", f"is the target {target} itself: choose another class")


class SamplePool(NamedTuple):
    """Samples with the backdoor: `x` for training, the others for the backdoored test set, with their true labels."""

    x: Tensor
    test_x: Tensor
    test_y: Tensor


class SampleReplacement(TargetedPoisoning):
    """Attackers that put samples of a pool in the place of the first q_B of every batch."""

    @abstractmethod
    def pool(self, data: FederatedData) -> SamplePool:
        """Return the samples that the backdoor is about. Raises `OptionError`."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002 - draws nothing
        """Prepare the pool."""
        return self.pool(data)._asdict()

    def poison(self, batches: Batches, state: State) -> Batches:
        """Let every attacker walk through the pool.

        The walk goes on from step to step and from round to round.
        """
        pool = state["x"]
        counts = self.poisoned_counts(batches).amax(1)  # in a whole batch of each attacker
        own_steps = (batches.sizes > 0).sum(1)  # not the common number, which depends on who else trains here
        begin = torch.from_numpy(batches.clients + batches.round).to(pool.device) * own_steps * counts
        steps = torch.arange(batches.y.shape[1], device=pool.device)[:, None] * counts[:, None, None]
        walk = steps + torch.arange(int(counts.max()), device=pool.device)
        return self.replace_samples(batches, pool[(begin[:, None, None] + walk) % len(pool)])

    def backdoor_test_set(self, data: FederatedData, state: State) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the samples of the pool that are kept for testing."""
        return state["test_x"], state["test_y"]

    def threat(self, realised: RealisedAttack) -> Threat:
        """State a threat of replaced samples.

        This is more than a change of features and labels.
        """
        stated = super().threat(realised)
        return stated if stated.poison == "update" else stated.model_copy(update={"poison": "replacement"})

    def select_pool(
        self, data: FederatedData, train: Tensor, test: Tensor, source: int | None, option: str
    ) -> SamplePool:
        """Select the samples of two masks that are of class `source`.

        Without a source, those of any class but the target.
        """

        def chosen(mask: Tensor, labels: Tensor) -> Tensor:
            return mask & (labels != self.target if source is None else labels == source)

        train = chosen(train, data.y)
        test = chosen(test, data.test_y)
        for kind, mask in (("training", train), ("test", test)):
            if not mask.any():
                raise OptionError(option, f"no {kind} sample has the property: choose a weaker one")
        return SamplePool(data.x_of(train), data.test_x[test], data.test_y[test])
