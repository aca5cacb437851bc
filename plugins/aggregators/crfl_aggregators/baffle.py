"""BaFFLe: clients validate the new model, and a quorum of them can reject it."""

from __future__ import annotations

import math

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import one_hot

from crfl_aggregators.geometry import Array
from crfl_core.extend import ClientUpdates, Round, RunContext, Stage, StageResult, State, hookimpl


class Baffle(Stage):
    """Rejects a round if validating clients find its model unlike the recent ones (Andreina et al., 2021).

    A validator computes on its own data, for each class y, the share of all samples that are of y and that a model gets
    wrong, and the share that it wrongly takes for y. How these 2 C errors change from one accepted model to the next is
    a point; the validator suspects the new model if its point has a larger local outlier factor (Breunig et al., 2000,
    with half of the history as neighbours) than the last quarter of the history has on average, each among the rest of
    the history. If `quorum` validators suspect it, the model is rejected. The server cannot know which validators are
    malicious: `lying` of those who would suspect a model are assumed to keep quiet about it.

    Chosen here: a change by a single sample counts as none, or a model that has come to rest could never move again;
    the first `lookback` rounds are trusted; and the history is that of the broadcast models, with their noise. As a
    stage it hands all updates on as they are. What it accepts depends on all updates, so certificates that need fixed
    weights are refused.
    """

    lookback: int = Field(10, ge=4, description="changes between accepted models that a new one is compared with, l")
    validators: int = Field(10, ge=1, description="clients that are drawn to validate a round's model")
    quorum: int = Field(5, ge=1, description="validators that must suspect a model for it to be rejected, q")

    lying: int = Field(0, ge=0, description="validators that suspect a model and are assumed not to say so")

    @model_validator(mode="after")
    def _reachable(self) -> Baffle:
        if self.quorum > self.validators:
            raise ValueError(
                f"quorum must be at most validators, or nothing is ever rejected: found quorum = {self.quorum} with "
                f"{self.validators} validators"
            )
        return self

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Pass the updates on, and add the broadcast model to the history."""
        values = updates.values
        start = updates.round.start[None]
        seen = [state["history"][-self.lookback :]] if "history" in state else []
        return StageResult(
            values=values.clone(),
            mixing=values.new_ones(len(values)),
            state={"history": torch.cat([*seen, start])},
        )

    @hookimpl
    def crfl_accept_round(self, run: RunContext, current: Round, candidate: Tensor, state: State) -> bool | None:
        """Accept the model if fewer validators than the quorum suspect it.

        There is no opinion while the history is too short.
        """
        history = state["history"]
        if len(history) <= self.lookback:
            return None
        models = torch.cat([history, candidate[None]])
        generator = current.streams.generator("aggregation/baffle", round_number=current.number)
        drawn = generator.choice(run.data.clients, min(self.validators, run.data.clients), replace=False)
        suspicions = sum(self._suspects(run, models, client) for client in drawn.tolist())
        return suspicions - self.lying < min(self.quorum, len(drawn))

    def _suspects(self, run: RunContext, models: Tensor, client: int) -> bool:
        """Check whether one client finds the last model unlike those before it."""
        rows = torch.from_numpy(run.data.partition[client]).to(models.device)
        predictions = run.model.logits(models, run.features_of(rows)).argmax(-1)
        changes = np.diff(class_errors(predictions, run.data.y[rows], run.data.facts.classes), axis=0)
        one_sample = math.sqrt(2) / len(rows)
        usual, new = outlier_factors(changes[:-1], changes[-1], math.ceil(self.lookback / 2), one_sample)
        return new > float(usual[-max(1, self.lookback // 4) :].mean())


def class_errors(predictions: Tensor, labels: Tensor, classes: int) -> Array:
    """Compute errors by true class and by predicted class.

    Errors are shares of all samples. For R models: (R, b), (b,) -> (R, 2 C).
    """
    wrong = (predictions != labels).double()
    by_source = wrong @ one_hot(labels, classes).double()
    by_target = (wrong[..., None] * one_hot(predictions, classes)).sum(1)
    errors: Array = (torch.cat([by_source, by_target], dim=1) / len(labels)).cpu().numpy()
    return errors


def outlier_factors(history: Array, new: Array, neighbours: int, resolution: float) -> tuple[Array, float]:
    """Compute local outlier factors of a history and a new point.

    The factors are those of the history's points, and of the new point among them. The reach is
    `r(a, b) = max(k-distance of b, |a - b|, resolution)` and the density `1 / mean of r(a, b) over the k nearest b`.
    The factor is the mean density of the k nearest points over the point's own: about 1 inside a cluster.
    """
    distances = np.linalg.norm(history[:, None] - history, axis=-1)
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :neighbours]
    core = np.take_along_axis(distances, nearest[:, -1:], axis=1)[:, 0]

    def density(away: Array, near: np.ndarray[tuple[int, ...], np.dtype[np.intp]]) -> Array:
        reach = np.maximum(np.maximum(np.take_along_axis(away, near, axis=1), core[near]), resolution)
        result: Array = 1.0 / reach.mean(axis=1)
        return result

    densities = density(distances, nearest)
    factors: Array = densities[nearest].mean(axis=1) / densities
    away = np.linalg.norm(history - new, axis=-1)[None]
    closest = np.argsort(away, axis=1, kind="stable")[:, :neighbours]
    return factors, float((densities[closest].mean(axis=1) / density(away, closest))[0])
