"""Model that the server trains alone, on the labelled samples that it reserved: no client can touch it.

A certificate against R clients is worth having only where it is above this model's accuracy, which holds against all of
them. With `model.start = "reserve"` clients begin from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.config.schema import ReserveSamples
from crfl_core.errors import ConfigError
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.records.array_bytes import digest_of
from crfl_core.records.ledger import StartFacts
from crfl_core.training.evaluation import predict_with_loss
from crfl_core.training.features import map_inputs
from crfl_core.training.models import START_KEY, Start, initial_model

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.training.federation import Federation

ITERATIONS = 200
"""Steps of L-BFGS; a convex loss has converged long before."""


class TrustedScore(NamedTuple):
    """Test accuracy of a model trained on the server's own samples alone, and how many there are."""

    accuracy: float
    samples: int


class LabelledSamples(NamedTuple):
    """Samples of the server behind the feature maps, (m, features), with their labels."""

    features: Tensor
    labels: Tensor


def score_trusted_samples(federation: Federation) -> TrustedScore | None:
    """Score a model that is trained on the server's labelled samples.

    The run's model is trained on all labelled samples that the server reserved, and scored on the clean test set. The
    loss is the plain mean, with the L2 penalty of `reserve.weight_decay`, minimised by L-BFGS in double precision. None
    if the server reserved no labelled samples.
    """
    own = labelled_samples(federation, federation.reserve)
    if own is None:
        return None
    if federation.config.model.start == "reserve" and "validation" not in federation.reserve:
        parameters = federation.start.parameters.to(federation.device, federation.dtype)
    else:
        parameters = minimise_loss(federation, own)
    chosen = federation.test_sets["clean"]
    classes, _ = predict_with_loss(federation, parameters, (chosen.features, chosen.labels), ())
    return TrustedScore(float((classes == chosen.labels).double().mean()), len(own.labels))


def train_start(federation: Federation) -> Start:
    """Return the start model that the server trains on labelled samples.

    It follows from these samples and the config alone; the facts have a digest of its parameters.
    """
    own = labelled_samples(federation, federation.config.reserve.labelled)
    assert own is not None
    parameters = minimise_loss(federation, own).cpu()
    return Start(parameters, StartFacts(kind="reserve", digest=digest_of(parameters)))


def check_start_samples(config: RunConfig) -> None:
    """Raise `ConfigError` if the server lacks samples for its start model."""
    if config.model.start == "reserve" and not config.reserve.labelled:
        raise ConfigError(
            "'reserve' is trained on labelled samples of the server, and there are none: set reserve.root or "
            "reserve.curator to their number, such as 500 (those for validation stay unseen)",
            key=START_KEY,
        )


def labelled_samples(federation: Federation, names: Iterable[str]) -> LabelledSamples | None:
    """Return the server's labelled samples in these sets.

    A curator with a dataset of its own is left out: only its inputs count. None without such samples.
    """
    wanted = federation.config.reserve.curator
    parts = [
        (map_inputs(federation.maps, kept.features) if name == "curator" else kept.features, kept.labels)
        for name, kept in federation.reserve.items()
        if name in names and not (name == "curator" and isinstance(wanted, ReserveSamples))
    ]
    if not parts:
        return None
    return LabelledSamples(torch.cat([part for part, _ in parts]).double(), torch.cat([part for _, part in parts]))


def minimise_loss(federation: Federation, own: LabelledSamples) -> Tensor:
    """Return the parameters (P,) that L-BFGS reaches from the model's start."""
    from scipy.optimize import minimize  # which a run without reserved samples does not wait for

    model = federation.new_model()
    config = federation.config
    wanted = config.reserve.weight_decay
    decay = config.training.weight_decay if wanted is None else wanted
    features, labels = own
    if config.model.start == "reserve":
        begin = initial_model(config.model, model, federation.streams.generator("initial")).parameters.double().cpu()
    else:
        begin = federation.start.parameters.double().cpu()
    shares = torch.full((1, len(labels)), 1.0 / len(labels), dtype=torch.float64, device=features.device)

    def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        parameters = torch.from_numpy(values.copy()).to(features.device)
        logits = model.logits(parameters[None], features)[0]
        loss = torch.nn.functional.cross_entropy(logits, labels) + 0.5 * decay * parameters.square().sum()
        slope = model.gradient(parameters[None, None], features[None], labels[None], shares).reshape(-1)
        return float(loss), (slope + decay * parameters).cpu().numpy()

    with errors_of("model", config.model):
        found = minimize(objective, begin.numpy(), jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS})
    return torch.from_numpy(found.x).to(features.device, federation.dtype)
