"""Several runs on one page: a table, and their curves with bands over seeds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from crfl_experiments.comparison import MOST_KEYS
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.results import SweepResult
from crfl_experiments.sweeps.values import inline

from crfl_core.errors import CrflError
from crfl_core.plugin_api.certificate import CertificateResult
from crfl_core.reporting import config_diff
from crfl_core.reporting.metrics import Curve, Metrics, compute_curves
from crfl_core.runs.results import RunResult
from crfl_core.runs.run_directory import RunDirectory
from crfl_reports.pages import words
from crfl_reports.pages.figure_data import number, numbers, stated
from crfl_reports.pages.markup import Html, Part, drawn, element, joined, table
from crfl_reports.pages.samples import tables

Settings = dict[str, Any]
MOST_TOLD = 8
"""How many settings of a run the table names."""


def runs_in(folder: Path) -> list[Path]:
    """The finished runs of a folder: directly in it, or in its `cells`, as a sweep keeps them."""
    found = [path for path in (*folder.glob("*"), *folder.glob("cells/*")) if path.is_dir()]
    return sorted(path for path in found if is_finished(RunDirectory(path)))


def is_finished(directory: RunDirectory) -> bool:
    """Whether a folder is a run that is finished; whatever is damaged is not."""
    try:
        return directory.is_marked and directory.state == "finished"
    except CrflError:
        return False


def folder_sections(folder: Path, runs: Sequence[RunResult], together: Html) -> Iterator[tuple[str, str, Html]]:
    """The sections of the page; `together` is what is drawn of all runs."""
    yield "runs", "Runs", joined([run_table(folder, runs), *missing_cells(folder)])
    yield "curves", "Certified", drawn("folder", "Certified accuracy and rate")
    yield "together", "Runs side by side", together


def run_table(folder: Path, runs: Sequence[RunResult]) -> Html:
    """A row per run: what differs in its config, and its key numbers."""
    rows: list[list[Part]] = []
    for run, own in zip(runs, errors_of(runs), strict=True):
        metrics = run.metrics
        success = "" if metrics.backdoor is None else words.percent(metrics.backdoor.success_rate)
        told = words_for(dict([*own.items()][:MOST_TOLD])) or "nothing"
        more = f", and {len(own) - MOST_TOLD} more" if len(own) > MOST_TOLD else ""
        where = run.path.relative_to(folder).as_posix()
        shares = (certified_at(metrics, clients) for clients in (1.0, 2.0))
        rows.append([where, told + more, words.percent(metrics.accuracy), success, *shares])
    heads = ("run", "what differs", "accuracy", "backdoor", "certified, 1 client", "certified, 2 clients")
    note = element(
        "p",
        "Certified: the largest share of clean test samples that are right and certified by a sound certificate at the "
        "client level under the threat of the run; its audit says under which assumptions.",
        class_="note",
    )
    return joined([note, table(heads, rows, "Runs")])


def missing_cells(folder: Path) -> Iterator[Html]:
    """Cells of a sweep that are not among the runs: those that failed, with the reason, and those that wait."""
    if not SweepFolder(folder).is_marked:
        return
    cells = SweepResult(folder).cells
    failed = [(one.cell.title, one.note.reason) for one in cells if one.note.state == "failed"]
    waiting = sum(one.note.state == "waiting" for one in cells)
    if failed:
        yield element("h3", f"{len(failed)} of {len(cells)} cells failed")
        yield table(("cell", "reason"), failed, "Cells that failed")
    if waiting:
        yield element("p", f"{waiting} of {len(cells)} cells are not finished: `crfl resume {folder.name}` goes on.")


def certified_at(metrics: Metrics, clients: float) -> str:
    """The best certified accuracy against some clients, and who certifies it."""
    proved = metrics.proven_accuracy(clients)
    return "" if proved is None else f"{words.percent(proved[0])} ({proved[1].certificate})"


def errors_of(runs: Sequence[RunResult]) -> list[Settings]:
    """The settings of each run in which not all are alike."""
    return config_diff.differences([config_diff.read_config(run.directory) for run in runs])


def words_for(settings: Settings) -> str:
    """Settings on one line; which step of a list, and that a plugin is chosen by its type, goes without saying.

    >>> words_for({"aggregation.1.type": "rfa", "attack.scale": 10.0, "attack.rounds": [3], "reserve.type": "unset"})
    'aggregation = rfa, attack.scale = 10, attack.rounds = [3]'
    """
    told = []
    for key, value in settings.items():
        plugin = re.sub(r"(\.\d+)?\.type$", "", key)
        if value != config_diff.UNSET:
            known = number(value) if isinstance(value, float) else value
            told.append(f"{plugin} = {known if isinstance(known, str) else inline(known)}")
    return ", ".join(told)


def experiments(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Runs that differ in their seeds alone, by what sets them apart, or if that is too much, by the first of them."""
    found: dict[str, list[RunResult]] = {}
    points = [config_diff.split_seeds(own)[0] for own in errors_of(runs)]
    for run, point in zip(runs, points, strict=True):
        found.setdefault(words_for(point), []).append(run)
    if len(points[0]) > MOST_KEYS:
        return {alike[0].path.name: alike for alike in found.values()}
    return {told or runs[0].config.name: alike for told, alike in found.items()}


def folder_data(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """The curves of all runs; those that differ in their seeds alone are one, with its least and largest values."""
    guarantees = {run.path: list(tables(run.directory)) for run in runs}
    grids = common_grids([one for found in guarantees.values() for one in found])
    shown = []
    for name, members in experiments(runs).items():
        for key, grid in grids.items():
            alike = [one for run in members for one in guarantees[run.path] if group(one) == key]
            if alike:
                shown.append(banded(name, [compute_curves([one], grid)[0] for one in alike], about(members, key)))
    return shown


Key = tuple[str, str, str]


def group(one: CertificateResult | Curve) -> Key:
    """What is drawn together."""
    return one.certificate, one.level, one.test_set


def common_grids(guarantees: Sequence[CertificateResult]) -> dict[Key, tuple[float, ...]]:
    """Radii at which the curves of all runs are read, for every certificate, level and test set."""
    found: dict[tuple[str, str], set[float]] = {}
    for one in guarantees:
        found.setdefault(group(one)[:2], set()).update(compute_curves([one], None)[0].radii)
    return {group(one): tuple(sorted(found[group(one)[:2]])) for one in guarantees}


def about(members: Sequence[RunResult], key: Key) -> Curve:
    """What the numbers of several runs rest on, which tables do not say; conditions are those of any of them."""
    found = [curve for run in members for curve in run.metrics.curves if group(curve) == key]
    conditions = dict.fromkeys(condition for curve in found for condition in curve.conditional)
    return found[0].model_copy(update={"conditional": tuple(conditions)})


def banded(name: str, members: Sequence[Curve], basis: Curve) -> dict[str, Any]:
    """Runs that differ in their seeds alone, as one curve with a band."""

    def band(values: Sequence[Sequence[float]]) -> dict[str, list[float]]:
        found = np.array(values)
        return {"mean": found.mean(0).tolist(), "least": found.min(0).tolist(), "most": found.max(0).tolist()}

    return {
        "name": name,
        "kind": f"{basis.certificate}, {basis.level} level",
        "certificate": basis.certificate,
        "level": basis.level,
        "set": basis.test_set,
        "runs": len(members),
        "radii": numbers(members[0].radii),
        "accuracy": band([one.certified_accuracy for one in members]),
        "rate": band([one.certified_rate for one in members]),
        **stated(basis),
    }
