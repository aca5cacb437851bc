"""Table of a folder of runs: a row per experiment, with means over its seeds and links to its runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from crfl_experiments.commands.comparison_table import short_names
from crfl_experiments.run_list import natural_key
from crfl_experiments.sweeps.expressions import is_number
from crfl_experiments.sweeps.values import toml_inline

from crfl_core.reporting import config_diff
from crfl_core.reporting.verdict import attack_text
from crfl_reports.pages import words
from crfl_reports.pages.figure_data import number
from crfl_reports.pages.markup import Cell, Html, Part, element, glossary_term, join_parts, sortable_table

if TYPE_CHECKING:
    from crfl_core.reporting.metrics import Curve
    from crfl_core.runs.results import RunResult

Settings = dict[str, Any]
MOST_COLUMNS = 5
"""Settings that have columns of their own; more are written into one."""
MOST_TOLD = 8
"""Settings of a run that the table names."""


@dataclass(frozen=True)
class Experiment:
    """Runs that differ only in their seeds, the settings that set them apart from others, and their attack."""

    settings: Settings
    runs: tuple[RunResult, ...]
    attack: str


def experiments_of(runs: Sequence[RunResult]) -> list[Experiment]:
    """Group runs that differ only in their seeds.

    The groups are sorted by their settings, numbers by size.
    """
    found: dict[str, list[int]] = {}
    points = [config_diff.split_seeds(own)[0] for own in settings_of(runs)]
    for place, point in enumerate(points):
        found.setdefault(repr(point), []).append(place)
    made = []
    for places in found.values():
        members = tuple(runs[place] for place in places)
        attacks = dict.fromkeys(attack_of(one) for one in members)
        made.append(Experiment(points[places[0]], members, " or ".join(attacks)))
    return sorted(made, key=lambda one: [natural_key(value) for value in one.settings.values()])


def attack_of(run: RunResult) -> str:
    """Say who attacked a run."""
    attackers = run.metrics.attackers
    return "none" if attackers is None else attack_text(attackers, run.metrics.partition.clients)


class Measured(NamedTuple):
    """Number of an experiment: the mean over its runs, its smallest and largest value, and a remark; None if missing.

    `n` is how many of the runs have the number.
    """

    mean: float | None
    low: float
    high: float
    n: int
    remark: str = ""


Measures = dict[str, list[Measured]]
Reader = Callable[["RunResult"], tuple[float, str] | None]
"""Reads a number of a run and a remark; None if the run has none."""


def experiment_table(folder: Path, runs: Sequence[RunResult], reports: Mapping[Path, str]) -> Html:
    """Build a table with one row for each experiment.

    A row has the settings that differ, means over seeds, and links to the reports of the runs.
    """
    found = experiments_of(runs)
    measures = measures_of(found)
    attacks = list(dict.fromkeys(one.attack for one in found))
    ranked_by = next((name for name in RANKED_BY if name in measures), None)
    best = best_rows(found, measures[ranked_by]) if ranked_by and len(found) > len(attacks) else set()
    keys = [key for key in found[0].settings if key != "attack.type" or len(attacks) == 1]
    many = len(keys) > MOST_COLUMNS
    heads = ["what differs"] if many else short_names(keys)
    if len(attacks) > 1:
        heads.append("attack")
    rows = []
    for place, one in enumerate(found):
        cells = [differing_cell(one)] if many else [setting_cell(one.settings[key]) for key in keys]
        if len(attacks) > 1:
            cells.append(Cell(one.attack))
        cells += [measured_cell(column[place], len(one.runs)) for column in measures.values()]
        cells.append(Cell(run_links(one, folder, reports), len(one.runs)))
        rows.append((cells, place in best))
    notes = table_notes(found, attacks, measures, ranked_by if best else None)
    heads += [*measures, "runs"]
    return join_parts([*notes, sortable_table(heads, rows, "Runs")])


def table_notes(
    found: Sequence[Experiment], attacks: Sequence[str], measures: Measures, ranked_by: str | None
) -> Iterator[Html]:
    """Yield the remarks above the table.

    They name the attack, explain the numbers, and say which row is marked.
    """
    if len(attacks) == 1:
        yield element("p", element("b", "Attack in every run: "), f"{attacks[0]}.")
    else:
        yield element(
            "p",
            element("b", f"{len(attacks)} different attacks. "),
            "Compare rows whose attackers, rounds and scale are equal.",
            class_="refusal",
        )
    note: list[Part] = []
    if any(len(one.runs) > 1 for one in found):
        note.append("Numbers are means over seeds, with the smallest and the largest below. ")
    if any(name.startswith("certified") for name in measures):
        note += [
            glossary_term("Certified", "certified accuracy"),
            ": the largest share of clean test samples that are right and certified by a sound certificate against "
            "that many clients; the report of the run names its assumptions.",
        ]
    if ranked_by is not None:
        same = "" if len(attacks) == 1 else " among the rows with the same attack"
        note.append(f" ★ marks the highest “{ranked_by}”{same}.")
    yield element("p", *note, class_="note")


def setting_cell(value: Any) -> Cell:
    """Return the cell of a setting."""
    return Cell(value_text(value), value if is_number(value) else None)


def differing_cell(one: Experiment) -> Cell:
    """Return the settings of a row as one text.

    The table uses it if the settings are too many for columns.
    """
    told = words_for(dict([*one.settings.items()][:MOST_TOLD])) or "nothing"
    more = f", and {len(one.settings) - MOST_TOLD} more" if len(one.settings) > MOST_TOLD else ""
    return Cell(told + more)


def measures_of(found: Sequence[Experiment]) -> Measures:
    """Return every measure that some run has, for all experiments."""
    columns = {name: [measure(one.runs, read) for one in found] for name, read in MEASURES.items()}
    return {name: column for name, column in columns.items() if any(one.n for one in column)}


def measure(runs: Sequence[RunResult], read: Reader) -> Measured:
    """Measure some runs.

    The mean is None unless all runs have a number, because it would hide those without one.
    """
    values = [pair for run in runs if (pair := read(run)) is not None]
    if not values:
        return Measured(None, 0.0, 0.0, 0)
    shares = [value for value, _ in values]
    remark = ", ".join(dict.fromkeys(text for _, text in values if text))
    mean = fmean(shares) if len(values) == len(runs) else None
    return Measured(mean, min(shares), max(shares), len(values), remark)


def accuracy(run: RunResult) -> tuple[float, str]:
    """Return the accuracy on clean samples."""
    return run.metrics.accuracy, ""


def backdoor_success(run: RunResult) -> tuple[float, str] | None:
    """Return the attack success rate of a backdoor."""
    backdoor = run.metrics.backdoor
    return None if backdoor is None else (backdoor.success_rate, "")


def server_alone(run: RunResult) -> tuple[float, str] | None:
    """Return the accuracy on the server's own labelled samples.

    This accuracy holds against any number of clients. It is None if the run did not measure it.
    """
    own = run.metrics.trusted_baseline
    return None if own is None else (own.accuracy, "")


def certified_against(clients: float) -> Reader:
    """Return a function that reads certified accuracy against some clients.

    The function returns the best certified accuracy and its certificate.
    """

    def read(run: RunResult) -> tuple[float, str] | None:
        proved = run.metrics.proven_accuracy(clients)
        if proved is not None:
            return proved[0], proved[1].certificate
        ended = [curve for curve in run.metrics.curves if ends_below(curve, clients)]
        return (0.0, ended[0].certificate) if ended and run.config.evaluation.radii is None else None

    return read


def ends_below(curve: Curve, clients: float) -> bool:
    """Return whether a curve ends below a number of clients.

    The radii of a curve over every number of clients were chosen up to the largest certified one, so no sample is
    certified beyond its end.
    """
    proves = (curve.level, curve.test_set) == ("client", "clean") and not (curve.label or curve.conditional)
    return proves and curve.radii == tuple(map(float, range(len(curve.radii)))) and curve.radii[-1] < clients


MEASURES: dict[str, Reader] = {
    "accuracy": accuracy,
    "attack success": backdoor_success,
    "certified, 1 client": certified_against(1.0),
    "certified, 2 clients": certified_against(2.0),
    "server alone": server_alone,
}
RANKED_BY = ("certified, 1 client", "accuracy")


def best_rows(found: Sequence[Experiment], column: Sequence[Measured]) -> set[int]:
    """Return the rows with the largest mean for their attack.

    Rows with equal means are all returned.
    """
    best: dict[str, float] = {}
    for one, measured in zip(found, column, strict=True):
        if measured.mean is not None:
            best[one.attack] = max(best.get(one.attack, measured.mean), measured.mean)
    return {
        number
        for number, (one, measured) in enumerate(zip(found, column, strict=True))
        if measured.mean is not None and measured.mean == best[one.attack]
    }


def measured_cell(measured: Measured, runs: int) -> Cell:
    """Return the cell of a number.

    The cell has the mean, the range over seeds, and the certificate.
    """
    if measured.n == 0:
        return Cell("")
    if measured.mean is None:
        return Cell(f"in {measured.n} of {runs} runs only")
    small = [measured.remark] if measured.remark else []
    if measured.n > 1:
        small.insert(0, f"{words.percent(measured.low)} to {words.percent(measured.high)}")
    below = element("small", "; ".join(small)) if small else None
    return Cell(join_parts([words.percent(measured.mean), below]), measured.mean)


def run_links(one: Experiment, folder: Path, reports: Mapping[Path, str]) -> Html:
    """Link to the report of every run of an experiment."""
    names = run_names(one.runs, folder)
    parts: list[Part] = []
    for name, run in zip(names, one.runs, strict=True):
        address = reports.get(run.path)
        parts += [" "] * bool(parts)
        parts.append(element("a", name, href=address) if address else element("span", name))
    return join_parts(parts)


def run_names(runs: Sequence[RunResult], folder: Path) -> list[str]:
    """Name the runs of an experiment.

    The names are their seeds, or their folders if two seeds are equal.
    """
    names = [f"seed {run.config.seed}" for run in runs]
    if len(set(names)) == len(names):
        return names
    return [run.path.relative_to(folder).as_posix() for run in runs]


def settings_of(runs: Sequence[RunResult]) -> list[Settings]:
    """Return the settings of each run in which not all are alike."""
    return config_diff.differences([config_diff.read_config(run.directory) for run in runs])


def value_text(value: object) -> str:
    """Write a setting in a cell.

    >>> value_text(10.0), value_text("rfa"), value_text([1, 2]), value_text("unset")
    ('10', 'rfa', '[1, 2]', '')
    """
    if value == config_diff.UNSET:
        return ""
    known = number(value) if isinstance(value, float) else value
    return known if isinstance(known, str) else toml_inline(known)


def words_for(settings: Settings) -> str:
    """Write settings on one line.

    List indices and the `type` of plugins are left out.

    >>> words_for({"aggregation.1.type": "rfa", "attack.scale": 10.0, "attack.rounds": [3], "reserve.type": "unset"})
    'aggregation = rfa, attack.scale = 10, attack.rounds = [3]'
    """
    told = []
    for key, value in settings.items():
        plugin = re.sub(r"(\.\d+)?\.type$", "", key)
        if value != config_diff.UNSET:
            told.append(f"{plugin} = {value_text(value)}")
    return ", ".join(told)
