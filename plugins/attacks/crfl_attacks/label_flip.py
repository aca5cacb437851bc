"""Wrong labels on inputs that stay as they are."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from crfl_attacks.targeted import check_source
from crfl_core.extend import Attack, Batches, FederatedData, OptionError, State, Streams


class LabelFlip(Attack):
    """Label flipping (Tolpegin et al., 2020; without a target as in Fang et al., 2020).

    Attackers give all their samples of the class `source`, or of every class, the label `target`. Without a target they
    mirror the labels, y becomes C - 1 - y, which serves no class but spoils the model.
    """

    source: int | None = Field(None, ge=0, description="the class whose labels are changed; unset: every class")
    target: int | None = Field(None, ge=0, description="the label they get; unset: C - 1 - y")

    @property
    def backdoor_class(self) -> int | None:
        """Return the target label, if there is one."""
        return self.target

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002 - draws nothing
        """Prepare the new label of every class."""
        classes = data.facts.classes
        check_source(self.source, self.target, classes)
        if self.target is not None and not self._flip_mask(data.test_y).any():
            raise OptionError("source", "no test sample is of this class: choose another one")
        labels = torch.arange(classes, device=data.y.device)
        flipped = labels.flip(0) if self.target is None else torch.full_like(labels, self.target)
        return {"labels": torch.where(self._flip_mask(labels), flipped, labels)}

    def poison(self, batches: Batches, state: State) -> Batches:
        """Change the labels, and leave the inputs."""
        return replace(batches, y=state["labels"][batches.y])

    def backdoor_test_set(self, data: FederatedData, state: State) -> tuple[Tensor, Tensor] | None:  # noqa: ARG002
        """Return the test samples whose label the attackers would change.

        The result is None without a target.
        """
        if self.target is None:
            return None
        concerned = self._flip_mask(data.test_y)
        return data.test_x[concerned], data.test_y[concerned]

    def _flip_mask(self, labels: Tensor) -> Tensor:
        """Return which labels are changed."""
        every = labels != (-1 if self.target is None else self.target)
        return every if self.source is None else labels == self.source
