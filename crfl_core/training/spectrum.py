"""The batch-spectrum rule and the ball rule, before training: whether they fit a config, and what they promise.

See docs/certificates/every-round.md#the-batch-spectrum-rule for the proofs.
"""

from __future__ import annotations

import math

import crfl_core.certification.formulas as formulas
from crfl_core.config import RunConfig
from crfl_core.errors import ConfigError
from crfl_core.plugin_api.aggregator import CapStage, LinearAggregator
from crfl_core.plugin_api.model import BoundModel
from crfl_core.plugin_api.server_optimiser import FixedRate
from crfl_core.plugin_api.softmax_regression import LinearModel
from crfl_core.plugin_loading.missing_plugins import StandIn
from crfl_core.records import schedules
from crfl_core.records.ledger import BallFacts, TrainingFacts
from crfl_core.training.client_sampling import HonestTraining

ROOM = 1e-6
"""By how much, relatively, kappa is above the smallest: what it leaves of gradients is more than rounding takes."""
LONGER = {"float32": 1e-3, "float64": 1e-9}
"""By how much, relatively, rounding may carry inputs beyond the bound of the feature maps; the audit measures them."""


def with_spectrum(
    config: RunConfig, model: BoundModel, honest: HonestTraining, input_bound: float, classes: int
) -> HonestTraining:
    """What is known of honest training under the rules that a config asks for; no input is longer than `input_bound`.

    Raises `ConfigError` if they do not fit the model or the rest of the config.
    """
    limit = config.training.spectrum
    start_limit = config.training.ball
    if limit is None:
        return honest
    check_model(model)
    bound = min(honest.gradient_bound, float(formulas.spectrum_gradient_bound(limit)))
    facts = honest.facts.model_copy(update={"spectrum": limit})
    if start_limit is None:
        return HonestTraining(facts, bound)
    check_ball(config, facts, input_bound)
    decay = config.training.weight_decay
    input_bound = input_bound * (1.0 + LONGER[config.dtype])
    least = min(start_limit, math.sqrt(limit * (1.0 - 1.0 / classes)))  # the latter holds for all batches by itself
    kappa = (1.0 + ROOM) * float(formulas.ball_gradient_bound(least, limit, decay, input_bound, classes))
    if kappa >= bound:
        raise ConfigError(
            f"the ball rule gains nothing here: gradients of up to {bound:.4g} are in no smaller ball under a weight "
            f"decay of {decay:g}: leave it out, raise training.weight_decay, or lower training.ball",
            key="training.ball",
        )
    ball = BallFacts(start_limit=least, input_bound=input_bound, weight_decay=decay, gradient_bound=kappa)
    return HonestTraining(facts.model_copy(update={"ball": ball}), kappa)


def smoothness(honest: HonestTraining, classes: int) -> float:
    """beta of softmax regression: `B^2 / 2`, with the spectrum rule `L / 2`, with the ball rule what it is inside."""
    limit = honest.facts.spectrum
    ball = honest.facts.ball
    if limit is None or ball is None:
        return honest.gradient_bound**2 / 4.0  # of gradients of at most sqrt(2) B, or sqrt(2 L)
    return float(formulas.ball_smoothness(limit, ball.gradient_bound, ball.weight_decay, ball.input_bound, classes))


def check_model(model: BoundModel) -> None:
    """The rule is about the gradients of softmax regression, and of no use with a constant input of 1."""
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
    """Nothing but scaled gradients, decay and capped messages moves the model."""
    noises = schedules.values(config.server.noise_std, config.rounds)[:-1]
    steps = [step for step in config.aggregation if not isinstance(step, CapStage | LinearAggregator | StandIn)]
    optimiser = config.server.optimiser
    wrong = ""
    if not facts.plain or facts.proximal or facts.clip_gradients is not None:
        wrong = "needs plain SGD: set training.algorithm = 'sgd' and leave out training.clip_gradients"
    elif any(noises):
        wrong = (
            "needs a run without training noise, which would drive the model out of the ball: set server.noise_std = 0"
            " (votes.noise_std is for test-time noise)"
        )
    elif steps:
        wrong = f"needs caps and a rule with fixed weights: remove {steps[0].configured_as!r} from aggregation"
    elif optimiser is not None and not isinstance(optimiser, FixedRate | StandIn):
        wrong = f"needs a plain step of the server: remove server.optimiser {optimiser.configured_as!r}"
    elif not math.isfinite(input_bound):
        wrong = "needs a bound on the norm of inputs: put 'unit-sphere' or 'unit-ball' into model.features"
    if wrong:
        raise ConfigError(f"the ball rule {wrong}", key="training.ball")
