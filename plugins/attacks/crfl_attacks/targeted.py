"""What all attacks share that poison some samples of every batch in favour of one class."""

from __future__ import annotations

from pydantic import Field

from crfl_core.extend import Attack, OptionError


class Targeted(Attack):
    """Attackers whose poisoned samples carry a target label; the first q_B samples of every batch are theirs."""

    poisoned_per_batch: int = Field(5, ge=1, description="poisoned samples in each batch, q_B")
    target: int = Field(0, ge=0, description="the class that backdoored inputs should get")

    @property
    def backdoor_class(self) -> int:
        """The target label."""
        return self.target

    @property
    def poisoned(self) -> slice:
        """Where the poisoned samples of a batch stand."""
        return slice(0, self.poisoned_per_batch)

    def check(self, batch_size: int) -> None:
        """No more poisoned samples than a batch has."""
        if self.poisoned_per_batch > batch_size:
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
