"""Data of a page's figures: plain numbers that the page's script draws, and pictures of inputs."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_core.errors import CrflError
from crfl_reports.figures import Grid, Heat, Line, Panel, Panels, image_of, neighbours
from crfl_reports.gallery import FIGURES
from crfl_reports.pages import words
from crfl_reports.pages.markup import Html, element, figure_place, join_parts

if TYPE_CHECKING:
    from crfl_core.records.ledger import Ledger
    from crfl_core.reporting.metrics import ClassHistogram, Curve
    from crfl_core.runs.results import RunResult

COLUMNS = 60
"""Clients that have a column of their own in the picture of the partition; more share columns."""

MARKED = 12
"""Attackers that are drawn one by one."""


def figures(run: RunResult) -> dict[str, Any]:
    """Return the data of all figures but the explorer and the samples."""
    return {
        "classes": list(run.ledger.facts.class_names),
        "curves": [curve_data(curve) for curve in run.metrics.curves],
        "rounds": round_data(run.ledger),
        "weights": weight_data(run.ledger, run.metrics.partition.clients),
        "shown": {"partition": partition_data(run.metrics.partition)},
    }


def curve_data(curve: Curve) -> dict[str, Any]:
    """Return a curve with every digit that `metrics.json` has."""
    return {
        "certificate": curve.certificate,
        "level": curve.level,
        "set": curve.test_set,
        **curve_basis(curve),
        "samples": curve.samples,
        "radii": numbers(curve.radii),
        "accuracy": list(curve.certified_accuracy),
        "rate": list(curve.certified_rate),
        "any_round": {
            "name": words.any_rounds(curve.rounds),
            "accuracy": list(curve.any_round_accuracy),
            "rate": list(curve.any_round_rate),
        },
    }


def curve_basis(curve: Curve) -> dict[str, Any]:
    """Return what the numbers of a curve rest on."""
    return {
        "statement": curve.statement,
        "directions": list(curve.directions),
        "world": curve.clean_world,
        "label": curve.label,
        "conditional": list(curve.conditional),
        "rounds": curve.rounds,
        "basis": words.basis(curve),
    }


def numbers(values: Sequence[float] | NDArray[Any]) -> list[float | str | None]:
    """Convert numbers to what JSON can hold.

    Infinity becomes its name, NaN becomes None.
    """
    return [number(value) for value in map(float, values)]


def number(value: float) -> float | str | None:
    """Convert a number to what JSON can hold.

    Whole numbers have no point.
    """
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def round_data(ledger: Ledger) -> dict[str, Any]:
    """Return accuracy, loss and backdoor success in every round; groups are averaged."""
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
    """Return the mean of the values that were measured."""
    found = [value for value in values if value is not None]
    return short_number(sum(found) / len(found)) if found else None


def weight_data(ledger: Ledger, names: Sequence[str]) -> dict[str, Any]:
    """Return the weights p_i of every round.

    Clients that never attack have their least, median and largest weight. The first `MARKED` attackers have their own.
    """
    clients = ledger.clients
    attackers = np.unique(clients.client[clients.attacking])
    honest = clients.take(~np.isin(clients.client, attackers))
    shown: dict[str, list[float | None]] = {"low": [], "middle": [], "high": []}
    for number in range(1, ledger.facts.rounds + 1):
        weights = honest.of_round(number).weight
        for name, share in (("low", 0.0), ("middle", 0.5), ("high", 1.0)):
            shown[name].append(short_number(float(np.quantile(weights, share))) if len(weights) else None)
    return {
        "round": list(range(1, ledger.facts.rounds + 1)),
        **shown,
        "attackers": [attacker_data(ledger, int(client), names) for client in attackers[:MARKED]],
        "more": max(0, len(attackers) - MARKED),
    }


def attacker_data(ledger: Ledger, client: int, names: Sequence[str]) -> dict[str, Any]:
    """Return an attacker's weight in every round, and its attacked rounds."""
    rows = ledger.clients.take(ledger.clients.client == client)
    weights = {int(at): short_number(float(weight)) for at, weight in zip(rows.round, rows.weight, strict=True)}
    return {
        "name": names[client] if names else f"client {client}",
        "weight": [weights.get(number) for number in range(1, ledger.facts.rounds + 1)],
        "attacked": rows.round[rows.attacking].tolist(),
    }


def partition_data(histogram: ClassHistogram) -> dict[str, Any]:
    """Return the samples by class.

    There is a column for each client, or one for several neighbours.
    """
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
    return {**found, "totals": [short_number(total) for total in means.sum(axis=0)]}


def partition_grid(
    histogram: ClassHistogram, counts: NDArray[Any], columns: Sequence[str], what: str, title: str
) -> dict[str, Any]:
    """Return the counts as a grid of classes and clients."""
    return grid_data(Grid([Heat(counts, "samples")], histogram.classes, columns, "class", what, title))


SHARE = (0.0, 1.0)
"""The range of an axis of shares."""
DIGITS = 6
"""Significant digits of what is drawn and not read off."""


def shape_data(found: Panels | Grid) -> dict[str, Any]:
    """Return panels or a grid as plain data."""
    if isinstance(found, Grid):
        return grid_data(found)
    names = list(dict.fromkeys(line.name for panel in found.panels for line in panel.lines))
    panels = [panel_data(panel, names) for panel in found.panels]
    return {"title": found.title, "marked": found.marked, "panels": panels}


def panel_data(panel: Panel, names: Sequence[str]) -> dict[str, Any]:
    """Return the lines of a panel at the places of all lines.

    Lines with equal names are the same line.
    """
    places = np.unique(np.concatenate([np.asarray(line.x, np.float64) for line in panel.lines]))
    return {
        "x": places.tolist(),
        "xLabel": panel.x_label,
        "yLabel": panel.y_label,
        "share": panel.y_range == SHARE,
        "steps": panel.steps,
        "log": panel.log_y,
        "marked": list(panel.marked),
        "lines": [
            {**line_data(line, places.tolist()), "number": names.index(line.name)}
            for line in panel.lines
            if len(np.asarray(line.x))
        ],
    }


def line_data(line: Line, places: list[float]) -> dict[str, Any]:
    """Return a line, and its band if it has one."""

    def spread(values: ArrayLike) -> list[float | None]:
        known = dict(zip(np.asarray(line.x, np.float64).tolist(), plain(values), strict=True))
        return [known.get(place) for place in places]

    found: dict[str, Any] = {"name": line.name, "values": spread(line.y)}
    if line.low is not None and line.high is not None:
        found["band"] = [spread(line.low), spread(line.high)]
    return found


def grid_data(grid: Grid) -> dict[str, Any]:
    """Return all tables of a grid.

    The page shows one of them at a time.
    """
    return {
        "title": grid.title,
        "rows": list(grid.rows),
        "columns": list(grid.columns),
        "rowLabel": grid.y_label,
        "columnLabel": grid.x_label,
        "empty": grid.empty,
        "measures": [heat_data(table) for table in grid.tables],
    }


def heat_data(table: Heat) -> dict[str, Any]:
    """Return one table.

    It has its numbers by row, the ends of its colours, and its spread.
    """
    spread = {"low": table.low, "high": table.high, "counts": table.counts}
    return {
        "name": table.title or table.label,
        "unit": table.label,
        "ends": [short_number(end) for end in table.ends],
        "values": [plain(row) for row in table.numbers],
        **{name: [plain(row) for row in np.asarray(of)] for name, of in spread.items() if of is not None},
    }


def plain(values: ArrayLike) -> list[float | None]:
    """Convert numbers to what JSON can hold.

    Numbers that are not finite become None.
    """
    return [short_number(value) if np.isfinite(value) else None for value in np.asarray(values, np.float64).tolist()]


def short_number(value: float) -> float:
    """Round a number to the digits that readers can see.

    Whole numbers have no point.
    """
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short


BACKDOOR = {
    "samples": "The trigger, inputs with it, and what attackers train on",
    "flips": "What the trigger turns predictions into",
}
CLOSENESS = {"closeness": "Distance to the clean twin in every round"}
TOGETHER = {
    "matrix": "Attacks against defences",
    "rounds": "Accuracy and attack success in every round",
    **CLOSENESS,
}


class Shown(NamedTuple):
    """Figures of a section: the data of those that a script draws, and the markup of all."""

    data: dict[str, Any]
    content: Html


def backdoor(run: RunResult) -> Shown:
    """Draw the effect of the attack on inputs and predictions.

    This runs code of the run's plugins.
    """
    return show_figures([run], BACKDOOR)


def closeness(run: RunResult) -> Shown:
    """Draw the distance to the clean twin.

    The run kept it in its ledger.
    """
    return show_figures([run], CLOSENESS)


def together(runs: Sequence[RunResult]) -> Shown:
    """Draw the figures that compare runs: attacks, defences, a clean twin."""
    return show_figures(runs, TOGETHER)


def show_figures(runs: Sequence[RunResult], titles: Mapping[str, str]) -> Shown:
    """Draw every figure that can be drawn.

    The others are listed with the reason.
    """
    data = {}
    parts = []
    left_out = []
    for name, title in titles.items():
        try:
            found = FIGURES[name].shows(runs)
        except CrflError as error:
            left_out.append(note(f"{title}: {error}."))
            continue
        parts.append(element("h3", title))
        if isinstance(found, Panels | Grid):
            data[name] = shape_data(found)
            parts.append(figure_place(name, title))
        else:
            parts.append(picture(image_of(found, "svg"), FIGURES[name].description))
    return Shown(data, join_parts([*parts, *left_out]))


def picture(image: bytes, description: str) -> Html:
    """Embed a picture as it would be printed."""
    address = f"data:image/svg+xml;base64,{b64encode(image).decode()}"
    shown = element("img", src=address, alt=description, class_="printed")
    return element("figure", element("div", shown, class_="scroll"))


def note(text: str) -> Html:
    """Build a remark in place of a figure."""
    return element("p", text, class_="note")
