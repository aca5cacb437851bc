"""Capped updates toward the predictions that are easiest to change: an attack on certificates."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import (
    Attack,
    AttackerObservation,
    AttackerView,
    BoundModel,
    FederatedData,
    OptionError,
    State,
    Streams,
)

BOUND_MARGIN = 1e-5
"""By how much, relatively, updates stay below the bound, so that rounding does not carry them beyond it."""


class CertificateSeeking(Attack):
    """Ours, against bounds on the drift (as in Xie et al., 2021): pushes where most predictions give way soonest.

    Attackers know the model, the test inputs, and what the model predicted before they began. Of the predictions with
    the smallest margins they choose the direction in parameter space along which most of them change within what is
    left to push, and submit updates whose residual is just as long as the bound. So an attack never leaves the threat
    that an update cap allows, and comes as near to a certified drift as one direction can.
    """

    bound: Annotated[float, Field(gt=0)] | Literal["honest"] = Field(
        "honest", description="norm of the residuals; 'honest' is the most that honest training can do"
    )
    samples: int = Field(32, ge=1, description="how many of the predictions with the smallest margins are considered")

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002 - their data stay as they are
        """Prepare nothing: the attackers' data stay as they are."""
        return {}

    def learn(self, seen: AttackerObservation, state: State) -> State:
        """Store the model before the first attack.

        The attack is to change its predictions.
        """
        return {"before": seen.round.start.clone()} if seen.attacked and "before" not in state else state

    def craft(self, known: AttackerView, state: State) -> Tensor:
        """Submit the direction at the length of the bound.

        The effect of weight decay comes on top.
        """
        clients = known.round.clients
        start = known.round.start
        lengths = torch.from_numpy(self.residual_lengths(known)).to(start)
        push = self.rounds_left(known.round.number, known.round.total) * float(known.weights.to(start) @ lengths)
        direction = easiest_direction(known, state.get("before", start), push, self.samples)
        decay = torch.from_numpy(1.0 - clients.retention).to(start)
        residuals = (1.0 - BOUND_MARGIN) * torch.outer(lengths, direction)
        return super().craft(replace(known, own_updates=residuals - torch.outer(decay, start)), state)

    def residual_lengths(self, known: AttackerView) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the length of each attacker's residual."""
        honest = known.round.clients.update_bound
        if self.bound != "honest":
            return np.full(len(honest), self.bound)
        if not np.isfinite(honest).all():
            raise OptionError("bound", "nothing bounds the honest updates of this model: set it to a number")
        return honest

    def rounds_left(self, number: int, total: int) -> int:
        """Count the attacked rounds from this one on."""
        if isinstance(self.rounds, tuple):
            return len({later for later in self.rounds if later >= number})
        last = total if self.rounds.last is None else min(total, self.rounds.last)
        return len(range(number, last + 1, self.rounds.every))


def easiest_direction(known: AttackerView, before: Tensor, push: float, samples: int) -> Tensor:
    """Find the direction along which most of the nearest predictions change.

    Returns a unit vector, (P,), for a model that is pushed this far.

    Candidates are the mean directions of the 1, 2, 3, ... nearest predictions, and of those with the same class and
    runner-up. A prediction's distance is its margin over the norm of the margin's gradient: exact for linear models.
    """
    model = known.model
    start = known.round.start
    wanted = model.logits(before[None], known.features)[0].argmax(-1)
    margins, runners_up = margins_and_runners_up(model.logits(start[None], known.features)[0], wanted)
    near = margins.topk(min(samples, len(margins)), largest=False).indices
    x = known.features[near]
    labels = wanted[near]
    others = runners_up[near]
    slopes = margin_slopes(model, start, x, labels, others)
    steepness = slopes.norm(dim=1).clamp(min=torch.finfo(slopes.dtype).tiny)
    distances = margins[near] / steepness
    units = slopes / steepness[:, None]
    units = units * (distances > 0)[:, None] if bool((distances > 0).any()) else units  # the rest has changed already
    order = distances.argsort()
    pairs = torch.stack([labels, others], 1).unique(dim=0)
    alike = (labels == pairs[:, :1]) & (others == pairs[:, 1:])
    candidates = torch.cat([units[order].cumsum(0), alike.to(units) @ units])
    lengths = candidates.norm(dim=1, keepdim=True)
    candidates = (candidates / lengths.clamp(min=torch.finfo(units.dtype).tiny))[lengths[:, 0] > 0]
    if not len(candidates):
        return torch.zeros_like(start)
    changed = (model.logits(start + push * candidates, x).argmax(-1) != labels).sum(-1)
    best: Tensor = candidates[int(changed.argmax())]
    return best


def margins_and_runners_up(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the margins of given classes over the best other class.

    The margins are (m,). The second tensor is that other class.
    """
    own = logits.gather(-1, wanted[:, None])
    best = logits.scatter(-1, wanted[:, None], -torch.inf).max(-1)
    return own[:, 0] - best.values, best.indices


def margin_slopes(model: BoundModel, start: Tensor, x: Tensor, labels: Tensor, others: Tensor) -> Tensor:
    """Compute the gradients of `logit[other] - logit[label]` by the parameters, (k, P).

    There is one for each input. It is the cross-entropy of the label minus that of the other class: what both share
    cancels.
    """
    parameters = start.expand(1, len(x), -1)
    weights = x.new_ones(len(x), 1)
    of_label, of_other = (model.gradient(parameters, x[:, None], y[:, None], weights)[0] for y in (labels, others))
    return of_label - of_other
