"""Certified accuracy against malicious clients and a trigger at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from crfl_core.errors import ConfigError
from crfl_reports.figures import Grid, Heat
from crfl_reports.gallery.run_groups import only

if TYPE_CHECKING:
    from crfl_core.runs.results import RunResult


def backdoor(runs: Sequence[RunResult]) -> Grid:
    """Return the certified accuracy of the backdoor level, by the norm of the trigger and the number of clients."""
    run = only(runs, "backdoor")
    curves = [curve for curve in run.metrics.curves if curve.by_clients and curve.test_set == "clean"]
    if not curves:
        raise ConfigError(f"{run.path}: no backdoor level was certified: add 'backdoor' to certificates, with groups")
    curve = curves[0]
    values = 100.0 * np.array(curve.by_clients)
    return Grid(
        [Heat(values, "certified accuracy (%)", limits=(0, 100))],
        [str(clients) for clients in range(len(values))],
        [f"{norm:g}" for norm in curve.radii],
        y_label="malicious clients in every round",
        x_label="norm of the trigger on the test input",
        title=f"{curve.certificate}, {curve.samples} clean test samples",
    )
