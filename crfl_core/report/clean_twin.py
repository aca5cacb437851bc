"""What an attack did to a model, beside the same model trained without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crfl_core.federation.evaluation import backdoor_score, score
from crfl_core.federation.setup import build
from crfl_interface.errors import ConfigError
from crfl_interface.ledger import Record

if TYPE_CHECKING:
    from crfl_core.api import RunResult

DATA = ("seed", "seeds", "dtype", "dataset", "reserve", "partition")
TRAINING = (*DATA, "rounds", "groups", "model", "training", "server", "aggregation")
"""Settings that a run must share with its clean twin."""


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
    for key in TRAINING:
        if getattr(attacked.config, key) != getattr(clean.config, key):
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
