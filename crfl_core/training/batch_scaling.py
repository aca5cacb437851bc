"""Batch-spectrum rule and ball rule: factors of batches in local training, and checks before training.

`L_s` and `F_s` are computed in double precision and rounded up, as `formulas.batch_spectrum` does. They depend on
the batch alone, so a client that trains on all its samples in every step has the same ones in every round. Under class
balance they are those of the weighted batch, `L_s = lambda_max(sum_b w_b x_b x_b^T / n)`. See
docs/certificates/every-round.md#the-batch-spectrum-rule for the proofs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import crfl_core.certification.formulas as formulas
from crfl_core.errors import ConfigError
from crfl_core.plugin_api.aggregator import CapStage, LinearAggregator
from crfl_core.plugin_api.server_optimiser import FixedRate
from crfl_core.plugin_api.softmax_regression import LinearModel
from crfl_core.plugin_loading.missing_plugins import MissingPlugin
from crfl_core.records import schedules
from crfl_core.records.ledger import BallFacts, TrainingFacts
from crfl_core.training.client_sampling import HonestTraining

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.config.schema import Training
    from crfl_core.plugin_api.model import BoundModel
    from crfl_core.records.input_rows import Rows
    from crfl_core.records.inputs import FederatedData
    from crfl_core.records.round import BatchMeasurements, Clients
    from crfl_core.training.class_balance import ClassBalance

BATCH_NUMBERS_AT_ONCE = 2**23
"""Numbers of inputs that are copied in double precision together."""

Measured = tuple[Tensor, Tensor]
"""L_s and F_s of some batches, (n,) each, on the CPU."""


class Spectra:
    """Spectra of clients that train on all of their samples in every step, computed once for each client."""

    def __init__(self, data: FederatedData, features: Rows, balance: ClassBalance | None = None) -> None:
        self._data = data
        self._features = features
        self._balance = balance
        self._known: dict[int, tuple[float, float]] = {}

    @property
    def classes(self) -> int:
        """Return the number of classes."""
        return self._data.facts.classes

    @property
    def dtype(self) -> torch.dtype:
        """Return the precision in which models are trained."""
        return self._features.dtype

    def of(self, client: int) -> tuple[float, float]:
        """Return L_s and F_s of all samples of a client."""
        if client not in self._known:
            rows = torch.from_numpy(self._data.partition[client]).to(self._features.device)
            x = self._features[rows][None]
            y = self._data.y[rows][None]
            weights = None if self._balance is None else self._balance.of(client)[y]
            spectrum, start = batch_spectra(x, y, torch.tensor([len(rows)]), self.classes, weights)
            self._known[client] = float(spectrum[0]), float(start[0])
        return self._known[client]


class BatchScaling:
    """Factors of the batches of some clients in a round.

    The last `poisoned` of these clients are attackers with data of their own, whose batches are measured in every step.
    """

    def __init__(self, spectra: Spectra, training: Training, clients: Clients, poisoned: int, steps: int) -> None:
        assert training.spectrum is not None
        self._spectrum_limit = training.spectrum
        self._start_limit = np.inf if training.ball is None else training.ball
        self._classes = spectra.classes
        self._dtype = spectra.dtype
        self._found = np.zeros((2, len(clients), steps))
        whole = np.equal(clients.batch_size, clients.samples)
        whole[len(clients) - poisoned :] = False
        for position in np.flatnonzero(whole):
            self._found[:, position] = np.array(spectra.of(int(clients.ids[position])))[:, None]
        self._whole = whole
        self._factors = np.ones((len(clients), steps))

    def factors(
        self, group: slice, step: int, x: Tensor, y: Tensor, sizes: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Return the factors of one step of some clients, (n,).

        The factor is 1 for clients that make no further step. `weights`, (n, b), are those of the samples, 1 on
        average; None: 1 each.
        """
        fresh = ~self._whole[group]
        if fresh.any():
            measured_sizes = sizes
            if not fresh.all():
                rows = torch.from_numpy(fresh)
                x = x[rows]
                y = y[rows]
                weights = None if weights is None else weights[rows]
                measured_sizes = sizes[rows]
            self._found[:, group, step][:, fresh] = torch.stack(
                batch_spectra(x, y, measured_sizes, self._classes, weights)
            ).numpy()
        made = sizes.cpu().numpy() > 0
        self._found[:, group, step][:, ~made] = 0.0
        spectrum, start = self._found[:, group, step]
        factors = np.asarray(formulas.batch_factor(self._spectrum_limit, spectrum, self._start_limit, start))
        self._factors[group, step] = factors
        return torch.from_numpy(factors).to(x.device, self._dtype)

    def add_measurements(self, measurements: BatchMeasurements) -> BatchMeasurements:
        """Return the measurements with what was found of every client's batches."""
        spectrum, start = self._found.max(axis=2)
        scaled: NDArray[np.int64] = np.count_nonzero(self._factors < 1.0, axis=1)
        factor = self._factors.min(axis=1)
        return replace(
            measurements, spectrum=spectrum, start_gradient=start, batch_factor=factor, scaled_batches=scaled
        )


def batch_spectra(x: Tensor, y: Tensor, sizes: Tensor, classes: int, weights: Tensor | None = None) -> Measured:
    """Return upper bounds on `L_s` and `F_s` of batches (n, b, d).

    Only the first `sizes` rows of a batch count. No bound is below the exact value. `weights`, (n, b), are those of the
    samples, 1 on average; None: 1 each.
    """
    at_once = max(1, BATCH_NUMBERS_AT_ONCE // max(1, x[0].numel()))
    each = (x, y, sizes.to(x.device)) if weights is None else (x, y, sizes.to(x.device), weights)
    pieces = zip(*(one.split(at_once) for one in each), strict=True)
    spectra, starts = zip(*(batch_spectra_in_memory(classes, *piece) for piece in pieces), strict=True)
    return torch.cat(spectra).cpu(), torch.cat(starts).cpu()


def batch_spectra_in_memory(
    classes: int, x: Tensor, y: Tensor, sizes: Tensor, weights: Tensor | None = None
) -> Measured:
    """Return the same for batches that fit into memory in double precision."""
    samples, features = x.shape[1:]
    real = torch.arange(samples, device=x.device) < sizes[:, None]
    if weights is not None:
        real = real * weights.double().sqrt()  # both factors of every product below have one root of the weight
    inputs = x.double() * real[..., None]
    count = sizes.clamp(min=1).double()
    turned = inputs.transpose(1, 2)
    gram = torch.bmm(inputs, turned) if samples <= features else torch.bmm(turned, inputs)
    size, terms = sorted((samples, features))
    largest = torch.linalg.eigvalsh(gram)[:, -1].clamp(min=0.0)
    spectrum = largest * float(1.0 + formulas.gamma(size * (terms + 16 * size))) / count
    residuals = (1.0 / classes - torch.nn.functional.one_hot(y, classes).double()) * real[..., None]
    gradient = torch.bmm(residuals.transpose(1, 2), inputs).flatten(1).norm(dim=1)
    lengths = residuals.flatten(1).norm(dim=1) * inputs.flatten(1).norm(dim=1)
    rounded = gradient + float(formulas.gamma(samples + 16)) * lengths
    return spectrum, rounded * float(1.0 + formulas.gamma(classes * features + 16)) / count


GRADIENT_BOUND_SLACK = 1e-6
"""By how much, relatively, kappa is above the smallest: its slack exceeds what rounding takes from gradients."""
INPUT_NORM_SLACK = {"float32": 1e-3, "float64": 1e-9}
"""By how much, relatively, rounding may carry inputs beyond the bound of the feature maps; the audit measures them."""


def apply_batch_rules(
    config: RunConfig, model: BoundModel, honest: HonestTraining, input_bound: float, classes: int
) -> HonestTraining:
    """Return what is known of honest training under the batch rules.

    Inputs are at most `input_bound` long. Raises `ConfigError` if the rules do not fit the model or the rest of the
    config.
    """
    limit = config.training.spectrum
    start_limit = config.training.ball
    if limit is None:
        return honest
    check_spectrum_model(model)
    bound = min(honest.gradient_bound, float(formulas.spectrum_gradient_bound(limit)))
    facts = honest.facts.model_copy(update={"spectrum": limit})
    if start_limit is None:
        return HonestTraining(facts, bound)
    check_ball(config, facts, input_bound)
    decay = config.training.weight_decay
    input_bound = input_bound * (1.0 + INPUT_NORM_SLACK[config.dtype])
    least = min(start_limit, math.sqrt(limit * (1.0 - 1.0 / classes)))  # the latter holds for all batches by itself
    kappa = (1.0 + GRADIENT_BOUND_SLACK) * float(
        formulas.ball_gradient_bound(least, limit, decay, input_bound, classes)
    )
    if kappa >= bound:
        raise ConfigError(
            f"the ball rule gains nothing here: gradients of up to {bound:.4g} are in no smaller ball under a weight "
            f"decay of {decay:g}: leave it out, raise training.weight_decay, or lower training.ball",
            key="training.ball",
        )
    ball = BallFacts(start_limit=least, input_bound=input_bound, weight_decay=decay, gradient_bound=kappa)
    return HonestTraining(facts.model_copy(update={"ball": ball}), kappa)


def smoothness(honest: HonestTraining, classes: int) -> float:
    """Return beta of softmax regression.

    It is `B^2 / 2` for inputs of norm B, `L / 2` with the spectrum rule, and less inside the ball of the ball rule.
    """
    limit = honest.facts.spectrum
    ball = honest.facts.ball
    if limit is None or ball is None:
        return honest.gradient_bound**2 / 4.0  # of gradients of at most sqrt(2) B, or sqrt(2 L)
    return float(formulas.ball_smoothness(limit, ball.gradient_bound, ball.weight_decay, ball.input_bound, classes))


def check_spectrum_model(model: BoundModel) -> None:
    """Raise `ConfigError` unless the model is softmax regression without a bias.

    The rule is proved for that model alone.
    """
    if not isinstance(model, LinearModel) or not model.facts.linear:
        raise ConfigError(
            "the batch-spectrum rule is proved for softmax regression alone: use model.type = 'softmax', or "
            "training.clip_gradients",
            key="training.spectrum",
        )
    if model.facts.bias:
        raise ConfigError(
            "a bias is a constant input of 1, with which no batch has a spectrum below 1, so all would be scaled: set "
            "model.bias = false and centre the features, as the feature map 'whiten' does",
            key="training.spectrum",
        )


def check_ball(config: RunConfig, facts: TrainingFacts, input_bound: float) -> None:
    """Raise `ConfigError` if the ball rule does not fit the config.

    Only scaled gradients, decay and capped messages may move the model.
    """
    noises = schedules.values(config.server.noise_std, config.rounds)[:-1]
    steps = [step for step in config.aggregation if not isinstance(step, CapStage | LinearAggregator | MissingPlugin)]
    optimiser = config.server.optimiser
    wrong = ""
    if not facts.plain or facts.proximal or facts.clip_gradients is not None:
        wrong = "needs plain SGD: set training.algorithm = 'sgd' and leave out training.clip_gradients"
    elif facts.class_balance or facts.toward_start:
        option = "class_balance" if facts.class_balance else "toward_start"
        wrong = f"is proved for the plain mean of losses and decay toward 0: leave out training.{option}"
    elif any(noises):
        wrong = (
            "needs a run without training noise, which would drive the model out of the ball: set server.noise_std = 0"
            " (votes.noise_std is for test-time noise)"
        )
    elif steps:
        wrong = f"needs caps and a rule with fixed weights: remove {steps[0].configured_as!r} from aggregation"
    elif optimiser is not None and not isinstance(optimiser, FixedRate | MissingPlugin):
        wrong = f"needs a plain step of the server: remove server.optimiser {optimiser.configured_as!r}"
    elif not math.isfinite(input_bound):
        wrong = "needs a bound on the norm of inputs: put 'unit-sphere' or 'unit-ball' into model.features"
    if wrong:
        raise ConfigError(f"the ball rule {wrong}", key="training.ball")
