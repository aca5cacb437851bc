"""Evaluation of a global model: test accuracy, loss, and attack success rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

import crfl_core.certification.formulas as formulas
from crfl_core.plugin_api.plugin_errors import errors_of

if TYPE_CHECKING:
    from crfl_core.training.federation import Federation


class Score(NamedTuple):
    """Accuracy and mean cross-entropy on a test set."""

    accuracy: float
    loss: float


class BackdoorScore(NamedTuple):
    """Shares of non-target inputs taken for the target class, with the backdoor and on the clean test set."""

    success_rate: float
    clean_rate: float


def score(federation: Federation, parameters: Tensor, test_set: str = "clean", failed: Sequence[int] = ()) -> Score:
    """Score a model or the groups' vote on a test set.

    `parameters` are (P,) for one model, or (G, P) for those of all groups. The loss of several models is the mean of
    theirs. `failed` groups vote for class 0.
    """
    chosen = federation.test_sets[test_set]
    classes, loss = predict_with_loss(federation, parameters, (chosen.features, chosen.labels), failed)
    return Score(float((classes == chosen.labels).double().mean()), loss)


def predict_with_loss(
    federation: Federation, parameters: Tensor, samples: tuple[Tensor, Tensor], failed: Sequence[int]
) -> tuple[Tensor, float]:
    """Return the predicted classes and the mean cross-entropy.

    Inputs are taken in parts, since there may be many models.
    """
    (features, labels), models = samples, parameters.reshape(-1, parameters.shape[-1])
    settings = federation.config.groups
    settings = settings if parameters.ndim > 1 else None  # one group alone has no vote
    condorcet = settings is not None and settings.voting == "condorcet"
    losses = []
    ballots = labels.new_zeros(len(labels), len(models))
    ranks = np.zeros((len(labels), len(models), federation.data.facts.classes if condorcet else 0), np.uint16)
    with errors_of("model", federation.config.model):
        for part, answers in federation.new_model().logits_in_parts(models, features):
            logits = answers.double()
            targets = labels[part].expand(len(models), -1)  # (G, b, C) and (G, b)
            if condorcet:
                ranks[part] = formulas.class_ranks(logits.cpu().numpy()).swapaxes(0, 1)
            else:
                ballots[part] = logits.max(-1).indices.T  # the first of several, as argmax, which takes longer
            losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))
    ballots[:, list(failed)] = 0
    ranks[:, list(failed)] = np.arange(ranks.shape[2])
    weights = None if settings is None else settings.weights
    shares = weights or (1,) * len(models)
    if condorcet:
        winners = formulas.condorcet_vote(ranks, shares).winner
    else:
        winners = formulas.vote_counts(ballots.cpu().numpy(), federation.data.facts.classes, shares).argmax(axis=1)
    return torch.from_numpy(winners).to(labels), float(sum(losses)) / (len(models) * len(labels))


def backdoor_score(federation: Federation, parameters: Tensor, failed: Sequence[int] = ()) -> BackdoorScore | None:
    """Return how well the backdoor works in a model.

    With several models it is measured in their vote. None without an attack that has a target.
    """
    success = target_rate(federation, parameters, "backdoored", failed)
    clean = target_rate(federation, parameters, "clean", failed)
    return None if success is None or clean is None else BackdoorScore(success, clean)


def target_rate(
    federation: Federation, parameters: Tensor, test_set: str = "backdoored", failed: Sequence[int] = ()
) -> float | None:
    """Return the share of other classes' inputs taken for the target.

    None if the attack has no target.
    """
    target = None if federation.config.attack is None else federation.config.attack.backdoor_class
    if target is None or "backdoored" not in federation.test_sets:
        return None
    chosen = federation.test_sets[test_set]
    classes, _ = predict_with_loss(federation, parameters, (chosen.features, chosen.labels), failed)
    return float((classes[chosen.labels != target] == target).double().mean())
