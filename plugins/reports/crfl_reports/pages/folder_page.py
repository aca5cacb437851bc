"""Page of several runs: a table, and their curves with bands over seeds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from crfl_experiments.comparison import MOST_KEYS_IN_TITLE
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.results import SweepResult
from crfl_experiments.sweeps.values import toml_inline

from crfl_core.errors import CrflError
from crfl_core.reporting import config_diff
from crfl_core.reporting.metrics import Curve, Metrics, compute_curves
from crfl_core.runs.run_directory import RunDirectory
from crfl_reports.pages import words
from crfl_reports.pages.figure_data import curve_basis, number, numbers
from crfl_reports.pages.markup import Html, Part, element, figure_place, join_parts, table
from crfl_reports.pages.samples import tables

if TYPE_CHECKING:
    from crfl_core.plugin_api.certificate import CertificateResult
    from crfl_core.runs.results import RunResult

Settings = dict[str, Any]
MOST_TOLD = 8
"""How many settings of a run the table names."""


def runs_in(folder: Path) -> list[Path]:
    """Return the finished runs of a folder, directly in it or in its `cells`."""
    found = [path for path in (*folder.glob("*"), *folder.glob("cells/*")) if path.is_dir()]
    return sorted(path for path in found if is_finished_run(RunDirectory(path)))


def is_finished_run(directory: RunDirectory) -> bool:
    """Return whether a folder is a finished run; a damaged one is not."""
    try:
        return directory.has_marker and directory.state == "finished"
    except CrflError:
        return False


def folder_sections(folder: Path, runs: Sequence[RunResult], together: Html) -> Iterator[tuple[str, str, Html]]:
    """Yield the sections of the page; `together` holds the figures of all runs."""
    yield "runs", "Runs", join_parts([run_table(folder, runs), *missing_cells(folder)])
    yield "curves", "Certified", figure_place("folder", "Certified accuracy and rate")
    yield "together", "Runs side by side", together


def run_table(folder: Path, runs: Sequence[RunResult]) -> Html:
    """Build a row per run: the settings that differ, and its key numbers."""
    rows: list[list[Part]] = []
    for run, own in zip(runs, settings_of(runs), strict=True):
        metrics = run.metrics
        success = "" if metrics.backdoor is None else words.percent(metrics.backdoor.success_rate)
        told = words_for(dict([*own.items()][:MOST_TOLD])) or "nothing"
        more = f", and {len(own) - MOST_TOLD} more" if len(own) > MOST_TOLD else ""
        where = run.path.relative_to(folder).as_posix()
        shares = (accuracy_text(metrics, clients) for clients in (1.0, 2.0))
        rows.append([where, told + more, words.percent(metrics.accuracy), success, *shares])
    heads = ("run", "what differs", "accuracy", "backdoor", "certified, 1 client", "certified, 2 clients")
    note = element(
        "p",
        "Certified: the largest share of clean test samples that are right and certified by a sound certificate at the "
        "client level under the threat of the run; its audit says under which assumptions.",
        class_="note",
    )
    return join_parts([note, table(heads, rows, "Runs")])


def missing_cells(folder: Path) -> Iterator[Html]:
    """List the cells of a sweep without a run: failed ones with the reason, and waiting ones."""
    if not SweepFolder(folder).has_marker:
        return
    cells = SweepResult(folder).cells
    failed = [(one.cell.title, one.note.reason) for one in cells if one.note.state == "failed"]
    waiting = sum(one.note.state == "waiting" for one in cells)
    if failed:
        yield element("h3", f"{len(failed)} of {len(cells)} cells failed")
        yield table(("cell", "reason"), failed, "Cells that failed")
    if waiting:
        how = f"continue with `crfl sweep {folder.name}`"
        yield element("p", f"{waiting} of {len(cells)} cells are not finished: {how}.")


def accuracy_text(metrics: Metrics, clients: float) -> str:
    """Write the best certified accuracy against some clients, and its certificate."""
    proved = metrics.proven_accuracy(clients)
    return "" if proved is None else f"{words.percent(proved[0])} ({proved[1].certificate})"


def settings_of(runs: Sequence[RunResult]) -> list[Settings]:
    """Return the settings of each run in which not all are alike."""
    return config_diff.differences([config_diff.read_config(run.directory) for run in runs])


def words_for(settings: Settings) -> str:
    """Write settings on one line, without list indices and the `type` of plugins.

    >>> words_for({"aggregation.1.type": "rfa", "attack.scale": 10.0, "attack.rounds": [3], "reserve.type": "unset"})
    'aggregation = rfa, attack.scale = 10, attack.rounds = [3]'
    """
    told = []
    for key, value in settings.items():
        plugin = re.sub(r"(\.\d+)?\.type$", "", key)
        if value != config_diff.UNSET:
            known = number(value) if isinstance(value, float) else value
            told.append(f"{plugin} = {known if isinstance(known, str) else toml_inline(known)}")
    return ", ".join(told)


def experiments(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Group runs that differ only in their seeds, by the settings that set them apart."""
    found: dict[str, list[RunResult]] = {}
    points = [config_diff.split_seeds(own)[0] for own in settings_of(runs)]
    for run, point in zip(runs, points, strict=True):
        found.setdefault(words_for(point), []).append(run)
    if len(points[0]) > MOST_KEYS_IN_TITLE:
        return {alike[0].path.name: alike for alike in found.values()}
    return {told or runs[0].config.name: alike for told, alike in found.items()}


def folder_data(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return the curves of all runs; those of one experiment become one, with a band."""
    guarantees = {run.path: list(tables(run.directory)) for run in runs}
    grids = common_grids([one for found in guarantees.values() for one in found])
    shown = []
    for name, members in experiments(runs).items():
        for key, grid in grids.items():
            alike = [one for run in members for one in guarantees[run.path] if group(one) == key]
            if alike:
                shown.append(band_data(name, [compute_curves([one], grid)[0] for one in alike], about(members, key)))
    return shown


Key = tuple[str, str, str]


def group(one: CertificateResult | Curve) -> Key:
    """Return certificate, level and test set: curves with equal ones are drawn together."""
    return one.certificate, one.level, one.test_set


def common_grids(guarantees: Sequence[CertificateResult]) -> dict[Key, tuple[float, ...]]:
    """Return radii at which the curves of all runs are read, by certificate, level and test set."""
    found: dict[tuple[str, str], set[float]] = {}
    for one in guarantees:
        found.setdefault(group(one)[:2], set()).update(compute_curves([one], None)[0].radii)
    return {group(one): tuple(sorted(found[group(one)[:2]])) for one in guarantees}


def about(members: Sequence[RunResult], key: Key) -> Curve:
    """Return what the numbers of several runs rest on; conditions are those of any of them."""
    found = [curve for run in members for curve in run.metrics.curves if group(curve) == key]
    conditions = dict.fromkeys(condition for curve in found for condition in curve.conditional)
    return found[0].model_copy(update={"conditional": tuple(conditions)})


def band_data(name: str, members: Sequence[Curve], basis: Curve) -> dict[str, Any]:
    """Return runs that differ only in their seeds as one curve with a band."""

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
        **curve_basis(basis),
    }
