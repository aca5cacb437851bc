"""What the page of a run shows, as plain data that its script draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfl_core.records.ledger import Ledger
from crfl_core.reporting.metrics import ClassHistogram, Curve
from crfl_core.runs.results import RunResult
from crfl_reports.figures import Grid, Heat, neighbours
from crfl_reports.pages.shapes import grid_data, rounded

COLUMNS = 60
"""So many clients have a column of their own in the picture of the partition; more share columns."""

MARKED = 12
"""So many attackers are drawn one by one."""


def figures(run: RunResult) -> dict[str, Any]:
    """All that is drawn but the explorer and the samples."""
    return {
        "classes": list(run.ledger.facts.class_names),
        "curves": [curve_data(curve) for curve in run.metrics.curves],
        "rounds": round_data(run.ledger),
        "weights": weight_data(run.ledger, run.metrics.partition.clients),
        "shown": {"partition": partition_data(run.metrics.partition)},
    }


def curve_data(curve: Curve) -> dict[str, Any]:
    """A curve with every digit that `metrics.json` has."""
    return {
        "certificate": curve.certificate,
        "level": curve.level,
        "set": curve.test_set,
        **stated(curve),
        "samples": curve.samples,
        "radii": numbers(curve.radii),
        "accuracy": list(curve.certified_accuracy),
        "rate": list(curve.certified_rate),
        "any_round": {"accuracy": list(curve.any_round_accuracy), "rate": list(curve.any_round_rate)},
    }


def stated(curve: Curve) -> dict[str, Any]:
    """What the numbers of a curve rest on."""
    return {
        "statement": curve.statement,
        "directions": list(curve.directions),
        "world": curve.clean_world,
        "label": curve.label,
        "conditional": list(curve.conditional),
        "rounds": curve.rounds,
    }


def numbers(values: Sequence[float] | NDArray[Any]) -> list[float | str | None]:
    """Numbers as JSON can hold them: infinity by its name, and nothing for what is no number."""
    return [number(value) for value in map(float, values)]


def number(value: float) -> float | str | None:
    """A number as JSON can hold it, whole ones without a point."""
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def round_data(ledger: Ledger) -> dict[str, Any]:
    """Accuracy, loss and, where it was measured, success of the backdoor in every round; groups are averaged."""
    lines: dict[int, list[dict[str, Any]]] = {}
    for record in ledger.rounds:
        lines.setdefault(record.round, []).append(record.model_dump())
    measured = {
        name: [mean([line.get(name) for line in of_round]) for of_round in lines.values()]
        for name in ("accuracy", "loss", "success_rate")
    }
    attacked = np.unique(ledger.clients.round[ledger.clients.attacking])
    rejected = [number for number, of_round in lines.items() if not all(line["accepted"] for line in of_round)]
    return {
        "round": list(lines),
        **measured,
        "models": ledger.facts.models,
        "attacked": attacked.tolist(),
        "rejected": rejected,
    }


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of what was measured."""
    found = [value for value in values if value is not None]
    return rounded(sum(found) / len(found)) if found else None


def weight_data(ledger: Ledger, names: Sequence[str]) -> dict[str, Any]:
    """The weights p_i that reached the model: the least, median and largest of honest clients, and the attackers'."""
    clients = ledger.clients
    attackers = np.unique(clients.client[clients.attacking])
    honest = clients.take(~np.isin(clients.client, attackers))
    shown: dict[str, list[float | None]] = {"low": [], "middle": [], "high": []}
    for number in range(1, ledger.facts.rounds + 1):
        weights = honest.of_round(number).weight
        for name, share in (("low", 0.0), ("middle", 0.5), ("high", 1.0)):
            shown[name].append(rounded(float(np.quantile(weights, share))) if len(weights) else None)
    return {
        "round": list(range(1, ledger.facts.rounds + 1)),
        **shown,
        "attackers": [attacker_data(ledger, int(client), names) for client in attackers[:MARKED]],
        "more": max(0, len(attackers) - MARKED),
    }


def attacker_data(ledger: Ledger, client: int, names: Sequence[str]) -> dict[str, Any]:
    """The weight of one attacker in every round, and the rounds in which it attacked."""
    rows = ledger.clients.take(ledger.clients.client == client)
    weights = {int(at): rounded(float(weight)) for at, weight in zip(rows.round, rows.weight, strict=True)}
    return {
        "name": names[client] if names else f"client {client}",
        "weight": [weights.get(number) for number in range(1, ledger.facts.rounds + 1)],
        "attacked": rows.round[rows.attacking].tolist(),
    }


def partition_data(histogram: ClassHistogram) -> dict[str, Any]:
    """Who holds how much of what: a column per client, or one for several neighbours if they are many."""
    counts = np.array(histogram.counts)
    clients = counts.shape[1]
    if clients <= COLUMNS:
        columns = [histogram.clients[client] if histogram.clients else str(client) for client in range(clients)]
        title = f"Samples of every class at {clients} clients"
        return {**partition_grid(histogram, counts, columns, "client", title), "totals": list(histogram.sizes)}
    means, starts = neighbours(counts, COLUMNS)
    ends = [*starts[1:].tolist(), clients]
    columns = [f"{start + 1} to {end}" for start, end in zip(starts.tolist(), ends, strict=True)]
    title = f"Samples of every class at {clients:,} clients, sorted by their most frequent class, neighbours averaged"
    found = partition_grid(histogram, means, columns, "clients", title)
    return {**found, "totals": [rounded(total) for total in means.sum(axis=0)]}


def partition_grid(
    histogram: ClassHistogram, counts: NDArray[Any], columns: Sequence[str], what: str, title: str
) -> dict[str, Any]:
    """The counts as a grid of classes and clients."""
    return grid_data(Grid([Heat(counts, "samples")], histogram.classes, columns, "class", what, title))
