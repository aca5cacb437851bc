"""Training, round by round: how good the models were, and whose updates they were made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import ConfigError
from crfl_reports.figures import Line, Panel, Panels, weights_figure
from crfl_reports.gallery.together import Group, banded, bands, groups, only

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from crfl_core.records.ledger import Ledger
    from crfl_core.runs.results import RunResult

SHARE = (0.0, 1.0)
MEASURES = {"accuracy": "accuracy on clean inputs", "success_rate": "attack success rate"}


def rounds(runs: Sequence[RunResult]) -> Panels:
    """Accuracy and attack success rate: in one panel of one experiment, in a panel each of several."""
    together = groups(runs)
    attacked = sorted({number for run in runs for number in run.ledger.facts.attack_rounds})
    of_groups = ", mean of groups" if any(run.ledger.facts.groups is not None for run in runs) else ""
    shown = {
        name: text + of_groups for name, text in MEASURES.items() if any(measured(group, name)[0] for group in together)
    }
    if not shown:
        raise ConfigError(f"{runs[0].path}: accuracy was not measured along the way: set evaluation.every = 1")
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
    """One measure of a group over the rounds in which all of its runs measured it."""
    numbers, values = measured(group, name)
    return banded(group.named(text), numbers, values)


def measured(group: Group, name: str) -> tuple[list[int], list[list[float]]]:
    """The rounds in which something was measured in every run, and what; of several models the mean."""
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
    """Every client's effective weight in every round."""
    run = only(runs, "weights")
    values, attacking = effective_weights(run.ledger)
    return weights_figure(values, attacking, run.metrics.partition.clients)


def effective_weights(ledger: Ledger) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The weights p_i, (clients, rounds), NaN where a client did not take part, and where it attacked.

    A client that is in several groups has the mean of its weights in their models.
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
