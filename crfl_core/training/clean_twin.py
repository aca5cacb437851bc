"""Clean twin of a run, which trains the same without the attack: how far the attack carries the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import ConfigError
from crfl_core.plugin_loading.hooks import Hooks
from crfl_core.records.ledger import LedgerRecord, RoundRecord
from crfl_core.training import rounds
from crfl_core.training.evaluation import backdoor_score, score
from crfl_core.training.federation import build
from crfl_core.training.groups import server_steps

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.runs.results import RunResult
    from crfl_core.training.rounds import Progress, RoundOutcome
    from crfl_core.training.session import Session

Array = NDArray[np.float64]
DATA = ("seed", "seeds", "dtype", "dataset", "reserve", "partition")
TRAINING = (*DATA, "rounds", "groups", "model", "training", "server", "aggregation")
"""Settings that a run must share with its clean twin."""
PARAMETERS = "parameters"


class AttackEffect(LedgerRecord):
    """Rates of an attacked model and of its clean twin, on the same inputs.

    `success_rate` and `clean_rate` are how often the two take the backdoored test inputs for the target class; what the
    clean model does is an ordinary error and no success. None if the attack has no target.
    """

    accuracy: float
    clean_accuracy: float
    success_rate: float | None
    clean_rate: float | None


def attack_effect(attacked: RunResult, clean: RunResult) -> AttackEffect:
    """Compare a run with one of `attacked.config.without_attack()`.

    Raises `ConfigError` for any other run.
    """
    if attacked.config.attack is None or clean.config.attack is not None:
        raise ConfigError("compare a run that was attacked with one that was not: set attack = 'none' there")
    if key := differing_key(attacked.config, clean.config):
        message = f"{attacked.path} and {clean.path} differ: only the attack may differ between the two"
        raise ConfigError(message, key=key)
    federation = build(attacked.config, fitted=attacked.fitted)
    models = [(run.parameters.to(federation.device), run.ledger.failed_groups) for run in (attacked, clean)]
    accuracies = [score(federation, model, failed=failed).accuracy for model, failed in models]
    rates = [backdoor_score(federation, *one) for one in models]
    successes = [None if rate is None else rate.success_rate for rate in rates]
    return AttackEffect(
        accuracy=accuracies[0], clean_accuracy=accuracies[1], success_rate=successes[0], clean_rate=successes[1]
    )


def differing_key(attacked: RunConfig, clean: RunConfig) -> str | None:
    """Return a key of training in which two configs differ.

    None if one may be the clean twin of the other.
    """
    return next((key for key in TRAINING if getattr(attacked, key) != getattr(clean, key)), None)


def twin_of(run: RunResult, clean: Sequence[RunResult]) -> RunResult:
    """Return the run among some that trained the same without the attack."""
    for other in clean:
        if differing_key(run.config, other.config) is None:
            return other
    raise ConfigError(
        f"{run.path}: its clean twin is not among these runs: train it with `crfl run {run.path}/config.toml "
        f"--set attack=none --out {run.path}-clean`, and draw both"
    )


def check_twin(config: RunConfig, twin: RunResult | None) -> None:
    """Raise `ConfigError` if a run cannot be another's clean twin.

    `config` is that of the run that is to start.
    """
    if twin is None:
        return
    if config.storage.keep != "distances":
        raise ConfigError("a twin is for runs that keep distances to it: set 'distances'", key="storage.keep")
    if twin.config.attack is not None:
        raise ConfigError(f"{twin.path}: is not a clean twin because it was attacked: set attack = 'none' there")
    if key := differing_key(config, twin.config):
        raise ConfigError(f"is not that of {twin.path}, so it is not a clean twin: only the attack may differ", key=key)
    check_kept(twin)


def check_kept(run: RunResult) -> None:
    """Raise `ConfigError` if a run did not keep its models."""
    if len(run.ledger.facts.resampled) < run.ledger.facts.rounds:
        raise ConfigError(f"{run.path}: models of rounds were not kept: set storage.keep = 'models' before the run")


def read_kept_model(run: RunResult, number: int) -> Array:
    """Read the kept model of a round."""
    return np.asarray(run.directory.read_resampled(number)[PARAMETERS], np.float64)


class CleanTwin:
    """The same run without the attack, as far as it is needed to know the distance to it.

    Until the first attacked round both are one. From there on the twin plays every round as well, with the engine of
    the run and plugins of its own; or its models are those that a run without the attack has `kept`. `progress` is
    where it stands, nothing as long as there is no second model.
    """

    progress: tuple[Progress, ...] = ()

    def __init__(self, session: Session, kept: RunResult | None) -> None:
        self._wanted = session.federation.config.storage.keep == "distances"
        self._kept = kept
        self._first = min(session.federation.participation.attack_rounds, default=0)
        if self._wanted and kept is None:
            self._session = separate_session(session)

    def add_distances(self, lines: Sequence[RoundRecord], outcomes: Sequence[RoundOutcome]) -> tuple[RoundRecord, ...]:
        """Return the lines of a round with the distances to the twin.

        The lines stay as they are unless the config asks for distances.
        """
        if not self._wanted:
            return tuple(lines)
        clipped = [outcome.clipped[0].double().cpu().numpy() for outcome in outcomes]
        clean = clipped if outcomes[0].plan.number < self._first else self._clipped(outcomes)
        distances = (float(np.linalg.norm(one - other)) for one, other in zip(clipped, clean, strict=True))
        return tuple(
            line.model_copy(update={"distance": distance}) for line, distance in zip(lines, distances, strict=True)
        )

    def _clipped(self, outcomes: Sequence[RoundOutcome]) -> list[Array]:
        """Return the twin's clipped models after a round, one per group."""
        number = outcomes[0].plan.number
        if self._kept is not None:
            return list(np.atleast_2d(read_kept_model(self._kept, number)))
        played: Sequence[RoundOutcome] = ()
        while not self.progress or self.progress[0].number < number:
            played = rounds.play_round(self._session, self.progress or self._start(outcomes), clean=True)
            self.progress = tuple(outcome.after for outcome in played)
        return [outcome.clipped[0].double().cpu().numpy() for outcome in played]

    def _start(self, outcomes: Sequence[RoundOutcome]) -> tuple[Progress, ...]:
        """Return where the run stood before its first attack.

        If that is not known any more, return where it stood before the first round.
        """
        if outcomes[0].plan.number == self._first:
            start = tuple(outcome.before for outcome in outcomes)
        else:
            start = rounds.initial_progress(self._session.federation)
        return tuple(replace(one, attack_state=None) for one in start)


def separate_session(session: Session) -> Session:
    """Return the same session with plugins of its own.

    So the run does not notice what they remember.
    """
    config = session.federation.config.with_own_plugins()
    servers = server_steps(config, len(session.federation.servers))
    federation = replace(session.federation, config=config, servers=servers)
    return replace(session, federation=federation, hooks=Hooks(config.named_plugins()))
