"""Centered clipping: the mean of updates that are clipped around the last aggregate."""

from __future__ import annotations

import torch
from pydantic import Field

from crfl_aggregators.geometry import norms
from crfl_core.extend import Aggregator, ClientUpdates, RuleResult, State


class CenteredClipping(Aggregator):
    """Mean of the updates clipped to a ball around a centre, which it then moves to (Karimireddy et al., 2021).

    `v <- v + 1/n sum_i (u_i - v) min(1, radius / ||u_i - v||)`, repeated, from the aggregate of the last round (zero in
    the first). Since `v` stays a combination of the updates and of where it began, `aggregate = sum_i p_i u_i + a v_0`,
    the last term is the offset.
    """

    radius: float = Field(1.0, gt=0, description="how far an update may lie from the centre, tau")
    iterations: int = Field(1, ge=1, description="how often the centre moves in a round")
    memory: bool = Field(True, description="begin at the aggregate of the last round; else at zero")

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Move the centre `iterations` times, and return the last one."""
        values = updates.values
        begin = state.get("centre") if self.memory else None
        if begin is None:
            begin = torch.zeros_like(values[0])
        centre = begin
        inertia = 1.0
        weights = values.new_zeros(len(values), dtype=torch.float64)
        for _ in range(self.iterations):
            away = norms(values, centre, values.new_full((len(values),), -1.0))
            pull = (self.radius / away).clamp(max=1.0) / len(values)
            kept = 1.0 - float(pull.sum())
            weights = kept * weights + pull
            inertia = kept * inertia
            centre = weights.to(values) @ values + inertia * begin
        return RuleResult(
            update=centre,
            weights=weights,
            offset=inertia * begin,
            state={"centre": centre} if self.memory else state,
        )
