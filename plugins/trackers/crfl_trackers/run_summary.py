"""Numbers and figures of a run, under names that all trackers share."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crfl_core.extend import CrflError, Curve, RoundRecord, RunResult, plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURED = ("accuracy", "loss", "success_rate", "distance")
PER_ROUND = (*MEASURED, "norm_before_clip", "noise_std", "participants", "quarantined")
"""Fields of a round's record that people follow."""


def flat_config(path: Path) -> dict[str, str]:
    """Read the complete config of a run as flat keys and values.

    Keys are such as `server.clip_norm` and `aggregation.0.type`.
    """
    return dict(flatten(tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))))


def flatten(tree: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every value of nested tables.

    A list of plain values is a single value.

    >>> dict(flatten({"server": {"clip_norm": 2.0}, "aggregation": [{"type": "rfa"}], "radii": [0, 1]}))
    {'server.clip_norm': '2.0', 'aggregation.0.type': 'rfa', 'radii': '[0, 1]'}
    """
    if isinstance(tree, list) and any(isinstance(item, dict) for item in tree):
        tree = {str(number): item for number, item in enumerate(tree)}
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from flatten(value, f"{key}.{name}" if key else name)
    else:
        yield key, tree if isinstance(tree, str) else json.dumps(tree)


def round_metrics(record: RoundRecord) -> dict[str, float]:
    """Return the measured numbers of a round and the rule's notes.

    Those of a second group are under its name.
    """
    measured = {name: getattr(record, name) for name in PER_ROUND} | {
        f"notes/{name}": value for name, value in record.notes.items()
    }
    where = f"group-{record.group}/" if record.group else ""
    return {f"{where}{name}": float(value) for name, value in measured.items() if value is not None}


def final_metrics(result: RunResult) -> dict[str, float]:
    """Return the headline numbers of a finished run."""
    metrics = result.metrics
    found = {"final/accuracy": metrics.accuracy, "final/loss": metrics.loss}
    if metrics.trusted_baseline is not None:
        found["final/accuracy_of_server_alone"] = metrics.trusted_baseline.accuracy
    if metrics.backdoor is not None:
        found |= {"final/success_rate": metrics.backdoor.success_rate, "final/clean_rate": metrics.backdoor.clean_rate}
    for curve in metrics.curves:
        if curve.median_radius is not None and math.isfinite(curve.median_radius):
            found[f"final/median_radius/{curve_name(curve)}"] = curve.median_radius
    return found


def curve_name(curve: Curve) -> str:
    """Join certificate, level and test set."""
    return f"{curve.certificate}/{curve.level}/{curve.test_set}"


def curve_points(curve: Curve) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the points of a curve for tools with whole steps.

    A step is a number of clients, or else the place on the grid.

    The radius of every point is logged beside its shares; an infinite one has no place on such an axis.
    """
    for place, radius in enumerate(curve.radii):
        if math.isfinite(radius):
            yield (
                round(radius) if curve.level == "client" else place,
                {
                    f"certified_accuracy/{curve_name(curve)}": curve.certified_accuracy[place],
                    f"certified_rate/{curve_name(curve)}": curve.certified_rate[place],
                    f"radius/{curve_name(curve)}": radius,
                },
            )


FIGURES = ("curves", "rounds", "weights", "partition")
"""Figures that need nothing but the run directory."""


def draw_figures(result: RunResult) -> dict[str, Figure]:
    """Draw the figures that this run can be shown in."""
    found = {}
    for name in FIGURES:
        try:
            found[name] = plot([result], name)
        except CrflError:  # such as a run that certifies nothing
            continue
    return found
