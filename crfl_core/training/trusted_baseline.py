"""Accuracy that the server reaches alone, on the labelled samples that it reserved: no client can touch it.

A certificate against R clients is worth having only where it is above this number, which holds against all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.config.schema import ReserveSamples
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.training.evaluation import predict_classes
from crfl_core.training.features import map_inputs

if TYPE_CHECKING:
    from crfl_core.training.federation import Federation

ITERATIONS = 200
"""Steps of L-BFGS; a convex loss has converged long before."""


class TrustedScore(NamedTuple):
    """Test accuracy of a model trained on the server's own samples alone, and how many there are."""

    accuracy: float
    samples: int


def score_trusted_samples(federation: Federation) -> TrustedScore | None:
    """Train the run's model on all labelled samples that the server reserved, and score it on the clean test set.

    The loss is the clients', with the run's weight decay, minimised by L-BFGS in double precision. None if the server
    reserved no samples of the run's dataset.
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
    classes, _ = predict_classes(federation, parameters, (chosen.features, chosen.labels), ())
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

    found = minimize(objective, start.numpy(), jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS})
    return torch.from_numpy(found.x).to(features.device, federation.dtype)
