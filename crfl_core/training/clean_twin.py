"""A run beside its clean twin: what the attack did to the model, and which runs are twins at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.config import RunConfig
from crfl_core.errors import ConfigError
from crfl_core.records.ledger import Record
from crfl_core.training.evaluation import backdoor_score, score
from crfl_core.training.federation import build

if TYPE_CHECKING:
    from crfl_core.runs.results import RunResult

Array = NDArray[np.float64]
DATA = ("seed", "seeds", "dtype", "dataset", "reserve", "partition")
TRAINING = (*DATA, "rounds", "groups", "model", "training", "server", "aggregation")
"""Settings that a run must share with its clean twin."""
PARAMETERS = "parameters"


class AttackEffect(Record):
    """Rates of an attacked model and of its clean twin, on the same inputs.

    `success_rate` and `clean_rate` are how often the two take the backdoored test inputs for the target class; what the
    clean model does is an ordinary error and no success. None if the attack has no target.
    """

    accuracy: float
    clean_accuracy: float
    success_rate: float | None
    clean_rate: float | None


def attack_effect(attacked: RunResult, clean: RunResult) -> AttackEffect:
    """Compare a run with one of `attacked.config.without_attack()`; any other run is a `ConfigError`."""
    if attacked.config.attack is None or clean.config.attack is not None:
        raise ConfigError("compare a run that was attacked with one that was not: set attack = 'none' there")
    if key := difference(attacked.config, clean.config):
        message = f"{attacked.path} and {clean.path} differ: only the attack may differ between the two"
        raise ConfigError(message, key=key)
    federation = build(attacked.config, fitted=attacked.fitted)
    models = [(run.parameters.to(federation.device), run.ledger.failed) for run in (attacked, clean)]
    accuracies = [score(federation, model, failed=failed).accuracy for model, failed in models]
    rates = [backdoor_score(federation, *one) for one in models]
    successes = [None if rate is None else rate.success_rate for rate in rates]
    return AttackEffect(
        accuracy=accuracies[0], clean_accuracy=accuracies[1], success_rate=successes[0], clean_rate=successes[1]
    )


def difference(attacked: RunConfig, clean: RunConfig) -> str | None:
    """A key of training in which two configs differ; None if one may be the clean twin of the other."""
    return next((key for key in TRAINING if getattr(attacked, key) != getattr(clean, key)), None)


def twin_of(run: RunResult, clean: Sequence[RunResult]) -> RunResult:
    """The run among some that trained the same without the attack."""
    for other in clean:
        if difference(run.config, other.config) is None:
            return other
    raise ConfigError(
        f"{run.path}: its clean twin is not among these runs: train it with `crfl run {run.path}/config.toml "
        f"--set attack=none --out {run.path}-clean`, and draw both"
    )


def check_twin(config: RunConfig, twin: RunResult | None) -> None:
    """Refuse a run as the clean twin of one that is to start: it trains otherwise, or has not kept its models."""
    if twin is None:
        return
    if config.storage.keep != "distances":
        raise ConfigError("a twin is for runs that keep distances to it: set 'distances'", key="storage.keep")
    if twin.config.attack is not None:
        raise ConfigError(f"{twin.path}: is no clean twin, since it was attacked: set attack = 'none' there")
    if key := difference(config, twin.config):
        raise ConfigError(f"is not that of {twin.path}, so this is no clean twin: only the attack may differ", key=key)
    check_kept(twin)


def check_kept(run: RunResult) -> None:
    """Refuse a run that did not keep its models."""
    if len(run.ledger.facts.resampled) < run.ledger.facts.rounds:
        raise ConfigError(f"{run.path}: models of rounds were not kept: set storage.keep = 'models' before the run")


def kept_model(run: RunResult, number: int) -> Array:
    """The kept model of a round."""
    return np.asarray(run.directory.read_resampled(number)[PARAMETERS], np.float64)
