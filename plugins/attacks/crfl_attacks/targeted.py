"""What all attacks share that poison some samples of every batch in favour of one class."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import Attack, Batches, OptionError

NEARLY = 1e-9
"""0.29 of 100 samples are 29, though the product of the two numbers is a little less."""


class Targeted(Attack):
    """Attackers whose poisoned samples carry a target label; the first q_B samples of every batch are theirs."""

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
        """The target label."""
        return self.target

    def counts(self, batches: Batches) -> Tensor:
        """How many samples each attacker poisons in each step, (attackers, steps)."""
        if self.poison_ratio is None:
            return torch.full_like(batches.sizes, self.poisoned_per_batch)
        return (self.poison_ratio * batches.sizes.double() + NEARLY).floor().long()

    def replaced(self, batches: Batches, x: Tensor) -> Batches:
        """Batches with `x`, (attackers, steps, most, features), and the target in the place of the first samples."""
        first = slice(0, x.shape[2])
        mine = torch.arange(x.shape[2], device=x.device) < self.counts(batches)[..., None]
        poisoned_x = batches.x.clone()
        poisoned_y = batches.y.clone()
        poisoned_x[:, :, first] = torch.where(mine[..., None], x, poisoned_x[:, :, first])
        poisoned_y[:, :, first] = torch.where(mine, self.target, poisoned_y[:, :, first])
        return replace(batches, x=poisoned_x, y=poisoned_y)

    def check(self, batch_size: int) -> None:
        """No more poisoned samples than a batch has, and not none at all."""
        if self.poison_ratio is not None:
            if self.poison_ratio * batch_size + NEARLY < 1:
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
    """An option that names a class names one that exists."""
    if label is not None and label >= classes:
        raise OptionError(option, f"there is no class {label}: classes are 0..{classes - 1}")


def check_source(source: int | None, target: int | None, classes: int) -> None:
    """The class that samples are taken from exists and is another one than the target."""
    check_class("source", source, classes)
    if source is not None and source == target:
        raise OptionError("source", f"is the target {target} itself: choose another class")
