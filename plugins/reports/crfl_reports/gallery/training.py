"""Training, round by round: accuracy, weights, the partition, and the distance to the clean twin."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import ConfigError
from crfl_core.training.clean_twin import check_kept, read_kept_model, twin_of
from crfl_reports.figures import Line, Panel, Panels, weights_figure
from crfl_reports.gallery.run_groups import Group, band_line, bands, groups, only

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from crfl_core.config.schema import FigureFormat
    from crfl_core.records.ledger import Ledger
    from crfl_core.reporting.metrics import ClassHistogram
    from crfl_core.runs.results import RunResult

SHARE = (0.0, 1.0)
MEASURES = {"accuracy": "accuracy on clean inputs", "success_rate": "attack success rate"}


def rounds(runs: Sequence[RunResult]) -> Panels:
    """Return accuracy and attack success rate in every round.

    One experiment has one panel; several experiments have two.
    """
    together = groups(runs)
    attacked = sorted({number for run in runs for number in run.ledger.facts.attack_rounds})
    of_groups = ", mean of groups" if any(run.ledger.facts.groups is not None for run in runs) else ""
    shown = {
        name: text + of_groups
        for name, text in MEASURES.items()
        if any(len(read_measure(group, name)[0]) > 1 for group in together)
    }
    if not shown:
        raise ConfigError(f"{runs[0].path}: accuracy was measured in fewer than two rounds: set evaluation.every = 1")
    if len(together) == 1:
        lines = [line(together[0], name, text) for name, text in shown.items()]
        panels = [Panel(lines, "round", "share of test samples", y_range=SHARE, marked=attacked)]
    else:
        panels = [
            Panel([line(group, name, "") for group in together], "round", text, y_range=SHARE, marked=attacked)
            for name, text in shown.items()
        ]
    return Panels(panels, title=bands(together), marked="attacked rounds")


def line(group: Group, name: str, text: str) -> Line:
    """Return one measure of a group as a line over rounds.

    The rounds are those in which all runs of the group measured it.
    """
    numbers, values = read_measure(group, name)
    return band_line(group.named(text), numbers, values)


def read_measure(group: Group, name: str) -> tuple[list[int], list[list[float]]]:
    """Return the rounds and values of a measure.

    The rounds are those in which every run of the group measured it.
    """
    found: list[dict[int, float]] = []
    for run in group.runs:
        by_round: dict[int, list[float]] = {}
        for record in run.ledger.rounds:
            if (value := getattr(record, name)) is not None:
                by_round.setdefault(record.round, []).append(value)
        found.append({number: float(np.mean(values)) for number, values in by_round.items()})
    common = sorted(set.intersection(*(set(one) for one in found)))
    return common, [[one[number] for number in common] for one in found]


def weights(runs: Sequence[RunResult]) -> Figure:
    """Draw the weights p_i that reached the model in every round.

    The attackers are marked.
    """
    run = only(runs, "weights")
    values, attacking = effective_weights(run.ledger)
    return weights_figure(values, attacking, run.metrics.partition.clients)


def effective_weights(ledger: Ledger) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the weights p_i, (clients, rounds), and the attacked cells.

    A weight is NaN where a client was absent.
    """
    rows = ledger.clients
    shape = (ledger.facts.clients, ledger.facts.rounds)
    place = rows.client, rows.round - 1
    total = np.zeros(shape)
    count = np.zeros(shape)
    attacking = np.zeros(shape, np.bool_)
    np.add.at(total, place, rows.weight)
    np.add.at(count, place, 1)
    np.logical_or.at(attacking, place, rows.attacking)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), attacking


DRAWING = Lock()
"""Runs that end together wait for the first to draw what all of them show."""


def partition_figure(histogram: ClassHistogram) -> Figure:
    """Draw each client's size and its samples of each class.

    The samples of each class are a heat map. More than 60 clients are sorted, by size above and by their most frequent
    class below, and averaged in columns.
    """
    import crfl_reports.figures

    return crfl_reports.figures.partition_figure(histogram.counts, histogram.classes, histogram.clients)


def partition_files(histogram: ClassHistogram, formats: Sequence[FigureFormat]) -> dict[FigureFormat, bytes]:
    """Draw a partition in some formats. Without formats Matplotlib is not imported."""
    if not formats:
        return {}
    with DRAWING:
        return dict(draw_partition(histogram, tuple(formats)))


@lru_cache(maxsize=1)
def draw_partition(histogram: ClassHistogram, formats: tuple[FigureFormat, ...]) -> dict[FigureFormat, bytes]:
    """Draw as `partition_files` does, and keep the last result.

    The next run of a sweep often has the same partition.
    """
    import crfl_reports.figures

    figure = partition_figure(histogram)
    return {suffix: crfl_reports.figures.image_of(figure, suffix) for suffix in formats}


LOG_FROM = 100.0
"""Distances are drawn on a logarithmic axis if the largest exceeds the smallest by this factor."""


def closeness(runs: Sequence[RunResult]) -> Panels:
    """Return the distance of attacked models to their clean twins.

    There is a distance for every round.
    """
    clean = [run for run in runs if run.config.attack is None]
    attacked = [run for run in runs if run.config.attack is not None]
    if not attacked:
        raise ConfigError("figure 'closeness' needs a run that was attacked")
    together = groups(attacked)
    found = [[distances(run, clean) for run in group.runs] for group in together]
    positive = np.concatenate([np.ravel(one) for one in found])
    log = bool(positive.min() > 0 and positive.max() > LOG_FROM * positive.min())
    lines = [
        band_line(group.named("" if group.label else "distance"), np.arange(1, len(values[0]) + 1), values)
        for group, values in zip(together, found, strict=True)
    ]
    rounds = sorted({number for run in attacked for number in run.ledger.facts.attack_rounds})
    panel = Panel(lines, "round", "distance to the clean model, L2 norm", log_y=log, marked=rounds)
    return Panels([panel], title=bands(together), marked="attacked rounds")


def distances(run: RunResult, clean: Sequence[RunResult]) -> Sequence[float]:
    """Return `||w_t - w'_t||` of the clipped models of every round.

    The distances are those before the noise, as the run kept them. Else they are computed from the models that it and
    its twin, which is among the clean runs, have kept.
    """
    if run.ledger.twin_distances:
        return run.ledger.twin_distances
    twin = twin_of(run, clean)
    for one in (run, twin):
        check_kept(one)
    return [
        float(np.linalg.norm(read_kept_model(run, number) - read_kept_model(twin, number)))
        for number in range(1, run.ledger.facts.rounds + 1)
    ]
