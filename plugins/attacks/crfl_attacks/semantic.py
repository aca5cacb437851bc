"""A backdoor without a trigger: inputs that have some natural property."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from crfl_attacks.targeted import SamplePool, SampleReplacement, check_source
from crfl_core.extend import FederatedData, OptionError, Table

ROWS_PER_BLOCK = 65536


class Bright(Table):
    """Inputs whose features have the largest mean."""

    type: Literal["bright"] = "bright"
    share: float = Field(0.1, gt=0, lt=1, description="share of the training samples that count as bright")

    def masks(self, data: FederatedData) -> tuple[Tensor, Tensor]:
        """Return which training and which test samples are bright."""
        brightness = torch.cat([x.mean(1) for x in data.x_split(ROWS_PER_BLOCK)])
        most = brightness.kthvalue(max(1, round((1.0 - self.share) * len(brightness)))).values
        return brightness > most, data.test_x.mean(1) > most


class Above(Table):
    """Inputs with a large value of one feature, or on average of several."""

    type: Literal["above"] = "above"
    features: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1, description="indices of the features")
    threshold: float = Field(allow_inf_nan=False, description="what their mean must exceed, in scaled input space")

    def masks(self, data: FederatedData) -> tuple[Tensor, Tensor]:
        """Return which training and which test samples exceed the threshold."""
        if max(self.features) >= data.facts.inputs:
            message = f"there is no feature {max(self.features)}: features are 0..{data.facts.inputs - 1}"
            raise OptionError("property.features", message)
        columns = torch.tensor(self.features, device=data.y.device)
        means = torch.cat([x[:, columns].mean(1) for x in data.x_split(ROWS_PER_BLOCK)])
        return means > self.threshold, data.test_x[:, columns].mean(1) > self.threshold


class Semantic(SampleReplacement):
    """Semantic backdoor (Bagdasaryan et al., 2020): inputs with a natural property get the target label.

    Nothing is added to an input: samples that have the property by nature, of the class `source` or of any, take the
    place of the attackers' own. Test inputs with the property form the backdoored test set.
    """

    source: int | None = Field(None, ge=0, description="class of the samples; unset: any but the target")
    property: Annotated[Bright | Above, Field(discriminator="type")] = Field(
        Bright(), description="what the samples have in common"
    )

    def pool(self, data: FederatedData) -> SamplePool:
        """Return all samples with the property."""
        check_source(self.source, self.target, data.facts.classes)
        return self.select_pool(data, *self.property.masks(data), self.source, "property")
