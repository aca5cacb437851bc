"""How far an attack carried the model: its distance to the clean twin, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from crfl_core.errors import ConfigError
from crfl_core.training.clean_twin import check_kept, kept_model, twin_of
from crfl_reports.figures import Panel, Panels
from crfl_reports.gallery.together import banded, bands, groups

if TYPE_CHECKING:
    from crfl_core.runs.results import RunResult

LOG_FROM = 100.0
"""Distances are drawn on a logarithmic axis if the largest exceeds the smallest by this factor."""


def closeness(runs: Sequence[RunResult]) -> Panels:
    """The distance of attacked models to those of their clean twins, as it was kept or to those among the runs."""
    clean = [run for run in runs if run.config.attack is None]
    attacked = [run for run in runs if run.config.attack is not None]
    if not attacked:
        raise ConfigError("figure 'closeness' needs a run that was attacked")
    together = groups(attacked)
    found = [[distances(run, clean) for run in group.runs] for group in together]
    positive = np.concatenate([np.ravel(one) for one in found])
    log = bool(positive.min() > 0 and positive.max() > LOG_FROM * positive.min())
    lines = [
        banded(group.named("" if group.label else "distance"), np.arange(1, len(values[0]) + 1), values)
        for group, values in zip(together, found, strict=True)
    ]
    rounds = sorted({number for run in attacked for number in run.ledger.facts.attack_rounds})
    panel = Panel(lines, "round", "distance to the clean model, L2 norm", log_y=log, marked=rounds)
    return Panels([panel], title=bands(together), marked="attacked rounds")


def distances(run: RunResult, clean: Sequence[RunResult]) -> Sequence[float]:
    """`||w_t - w'_t||` of the clipped models, before their noise, of every round; of all groups together.

    As the run kept them; else from the models that it and its twin, which is among the clean runs, have kept.
    """
    if run.ledger.distances:
        return run.ledger.distances
    twin = twin_of(run, clean)
    for one in (run, twin):
        check_kept(one)
    return [
        float(np.linalg.norm(kept_model(run, number) - kept_model(twin, number)))
        for number in range(1, run.ledger.facts.rounds + 1)
    ]
