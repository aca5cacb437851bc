"""How far an attack carried the model: its distance to the clean twin, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from crfl_core.report.clean_twin import TRAINING
from crfl_core.report.gallery.together import banded, bands, groups
from crfl_figures import Panel, Panels
from crfl_interface.errors import ConfigError

if TYPE_CHECKING:
    from crfl_core.api import RunResult

PARAMETERS = "parameters"
LOG_FROM = 100.0
"""Distances are drawn on a logarithmic axis if the largest exceeds the smallest by this factor."""


def closeness(runs: Sequence[RunResult]) -> Panels:
    """The distance of attacked models to those of their clean twins, which are among the runs."""
    clean = [run for run in runs if run.config.attack is None]
    attacked = [run for run in runs if run.config.attack is not None]
    if not attacked:
        raise ConfigError("figure 'closeness' needs a run that was attacked, and its clean twin")
    together = groups(attacked)
    found = [[distances(run, twin_of(run, clean)) for run in group.runs] for group in together]
    positive = np.concatenate([np.ravel(one) for one in found])
    log = bool(positive.min() > 0 and positive.max() > LOG_FROM * positive.min())
    lines = [
        banded(group.named("" if group.label else "distance"), np.arange(1, len(values[0]) + 1), values)
        for group, values in zip(together, found, strict=True)
    ]
    rounds = sorted({number for run in attacked for number in run.ledger.facts.attack_rounds})
    panel = Panel(lines, "round", "distance to the clean model, L2 norm", log_y=log, marked=rounds)
    return Panels([panel], title=bands(together), marked="attacked rounds")


def twin_of(run: RunResult, clean: Sequence[RunResult]) -> RunResult:
    """The run among some that trained the same without the attack."""
    for other in clean:
        if all(getattr(run.config, key) == getattr(other.config, key) for key in TRAINING):
            return other
    raise ConfigError(
        f"{run.path}: its clean twin is not among these runs: train it with `crfl run {run.path}/config.toml "
        f"--set attack=none --out {run.path}-clean`, and draw both"
    )


def distances(run: RunResult, twin: RunResult) -> list[float]:
    """`||w_t - w'_t||` of the clipped models, before their noise, of every round; of all groups together."""
    for one in (run, twin):
        if len(one.ledger.facts.resampled) < one.ledger.facts.rounds:
            raise ConfigError(
                f"{one.path}: models of rounds were not kept: set storage.keep = 'models' before both runs"
            )
    return [
        float(np.linalg.norm(model(run, number) - model(twin, number)))
        for number in range(1, run.ledger.facts.rounds + 1)
    ]


def model(run: RunResult, number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The kept model of a round."""
    return np.asarray(run.directory.read_resampled(number)[PARAMETERS], np.float64)
