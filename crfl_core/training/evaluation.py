"""Evaluation of a global model: test accuracy, loss, attack success rate, and what the server reaches alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import crfl_core.certification.formulas as formulas
from crfl_core.config.schema import ReserveSamples
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.training.features import map_inputs

if TYPE_CHECKING:
    from crfl_core.training.federation import Federation


LBFGS_STEPS = 200
"""A convex loss has converged long before."""


class Score(NamedTuple):
    """Accuracy and mean cross-entropy on a test set."""

    accuracy: float
    loss: float


class BackdoorScore(NamedTuple):
    """Shares of non-target inputs taken for the target class, with the backdoor and on the clean test set."""

    success_rate: float
    clean_rate: float


def score(federation: Federation, parameters: Tensor, test_set: str = "clean", failed: Sequence[int] = ()) -> Score:
    """Score a model, (P,), or the vote of those of all groups, (G, P), on a test set.

    The loss of several models is the mean of theirs. `failed` groups vote for class 0.
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
    """Return how well the backdoor works in a model, or in the vote of several.

    None without an attack that has a target.
    """
    success = target_rate(federation, parameters, "backdoored", failed)
    clean = target_rate(federation, parameters, "clean", failed)
    return None if success is None or clean is None else BackdoorScore(success, clean)


def target_rate(
    federation: Federation, parameters: Tensor, test_set: str = "backdoored", failed: Sequence[int] = ()
) -> float | None:
    """Return the share of inputs of other classes that are taken for the target; None if the attack has no target."""
    target = None if federation.config.attack is None else federation.config.attack.backdoor_class
    if target is None or "backdoored" not in federation.test_sets:
        return None
    chosen = federation.test_sets[test_set]
    classes, _ = predict_with_loss(federation, parameters, (chosen.features, chosen.labels), failed)
    return float((classes[chosen.labels != target] == target).double().mean())


class TrustedScore(NamedTuple):
    """Test accuracy of a model trained on the server's own samples alone, and how many there are."""

    accuracy: float
    samples: int


def score_trusted_samples(federation: Federation) -> TrustedScore | None:
    """Train the run's model on all labelled samples that the server reserved, and score it on the clean test set.

    No client can touch that model: a certificate is worth having only where it is above this accuracy. The loss is the
    clients', with the run's weight decay, minimised by L-BFGS in double precision. None if the server reserved no
    samples of the run's dataset.
    """
    parts = [
        (map_inputs(federation.maps, kept.features) if name == "curator" else kept.features, kept.labels)
        for name, kept in federation.reserve.items()
        if not isinstance(getattr(federation.config.reserve, name), ReserveSamples)
    ]
    if not parts:
        return None
    features = torch.cat([part for part, _ in parts]).double()
    labels = torch.cat([part for _, part in parts])
    with errors_of("model", federation.config.model):
        parameters = minimise_loss(federation, features, labels)
    chosen = federation.test_sets["clean"]
    classes, _ = predict_with_loss(federation, parameters, (chosen.features, chosen.labels), ())
    return TrustedScore(float((classes == chosen.labels).double().mean()), len(labels))


def minimise_loss(federation: Federation, features: Tensor, labels: Tensor) -> Tensor:
    """Return the parameters (P,) that L-BFGS reaches from the run's start."""
    from scipy.optimize import minimize  # which a run without reserved samples does not wait for

    model = federation.model
    decay = federation.config.training.weight_decay
    start = federation.start.parameters.double().cpu()
    shares = torch.full((1, len(labels)), 1.0 / len(labels), dtype=torch.float64, device=features.device)

    def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        parameters = torch.from_numpy(values.copy()).to(features.device)
        logits = model.logits(parameters[None], features)[0]
        loss = torch.nn.functional.cross_entropy(logits, labels) + 0.5 * decay * parameters.square().sum()
        slope = model.gradient(parameters[None, None], features[None], labels[None], shares).reshape(-1)
        return float(loss), (slope + decay * parameters).cpu().numpy()

    found = minimize(objective, start.numpy(), jac=True, method="L-BFGS-B", options={"maxiter": LBFGS_STEPS})
    return torch.from_numpy(found.x).to(features.device, federation.dtype)
