"""Any rule, applied to every layer by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from crfl_aggregators.geometry import Array
from crfl_aggregators.krum import Krum
from crfl_core.extend import Aggregator, Clients, ClientUpdates, Layout, OptionError, PluginField, RuleResult, State


@dataclass(frozen=True)
class LayeredResult(RuleResult):
    """Result for the model, and the results of the rule for each layer."""

    layers: tuple[RuleResult, ...] = ()


class PerLayer(Aggregator):
    """Another rule, applied to every tensor of the model by itself.

    `aggregate_b = rule(u_1b, ..., u_nb)` for each block b of the layout: a weight matrix, a bias. A client has a weight
    for each of them, and the ledger keeps the largest. A rule that chooses among clients may choose others in every
    layer.
    """

    rule: Annotated[Aggregator, PluginField("aggregator")] = Field(
        Krum(), description="what combines a layer's updates"
    )

    @field_validator("rule")
    @classmethod
    def _is_a_rule(cls, rule: Aggregator) -> Aggregator:
        if not isinstance(rule, Aggregator):
            raise ValueError(f"{rule.configured_as!r} is a stage: name a rule such as krum")
        if any(hasattr(getattr(type(rule), name, None), "crfl_impl") for name in dir(type(rule))):
            raise ValueError(
                f"{rule.configured_as!r} has hooks, which are not called for a layer: name a rule without hooks"
            )
        return rule

    def check(self, clients: Clients) -> None:
        """Run the check of the rule."""
        try:
            self.rule.check(clients)
        except OptionError as error:
            raise OptionError(f"rule.{error.option}", error.message) from error

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Apply the rule to every layer, and join the results."""
        layers: list[RuleResult] = []
        states: dict[str, Tensor] = {}
        notes: dict[str, float] = {}
        for number, (name, layer) in enumerate(split_layers(updates)):
            mine = f"{number}/"
            own = {key.removeprefix(mine): part for key, part in state.items() if key.startswith(mine)}
            found = self.rule.aggregate(layer, own)
            layers.append(found)
            states |= {f"{mine}{key}": part for key, part in found.state.items()}
            notes |= {f"{name}.{key}": value for key, value in found.notes.items()}
        offsets = [torch.zeros_like(one.update) if one.offset is None else one.offset for one in layers]
        return LayeredResult(
            update=torch.cat([one.update for one in layers]),
            weights=torch.stack([one.weights.double() for one in layers]).amax(0),
            offset=None if all(one.offset is None for one in layers) else torch.cat(offsets),
            full_weights=lambda: torch.cat([expand_weights(one) for one in layers], dim=1),
            state=states,
            notes=notes,
            layers=tuple(layers),
        )

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> Array | None:
        """Combine the bounds of the layers: squares of orthogonal movements add up.

        No part of an update exceeds the bound on the whole.
        """
        layers = aggregate.layers if isinstance(aggregate, LayeredResult) else ()
        found = [self.rule.breakdown(clients, one, update_bound) for one in layers]
        known = [drifts for drifts in found if drifts is not None]
        if not known or len(known) < len(found):
            return None
        shortest = min(map(len, known))
        drifts: Array = np.linalg.norm([one[:shortest] for one in known], axis=0)
        return drifts


def split_layers(updates: ClientUpdates) -> Iterator[tuple[str, ClientUpdates]]:
    """Yield the part of every update in each block of the layout.

    Each part is a round of a model that has nothing else.
    """
    current = updates.round
    first = 0
    for name, shape in current.layout.shapes:
        columns = slice(first, first + math.prod(shape))
        start = current.start[columns]
        yield (
            name,
            ClientUpdates(updates.values[:, columns], replace(current, layout=Layout(((name, shape),)), start=start)),
        )
        first = columns.stop


def expand_weights(result: RuleResult) -> Tensor:
    """Return the weight of every client and parameter of a layer."""
    if result.full_weights is not None:
        return result.full_weights()
    return result.weights.to(result.update)[:, None].expand(-1, len(result.update))
