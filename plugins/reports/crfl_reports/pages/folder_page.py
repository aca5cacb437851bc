"""Page of several runs: a table, and their curves with bands over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from crfl_experiments.comparison import MOST_KEYS_IN_TITLE
from crfl_experiments.run_list import find_runs, natural_key
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.results import SweepResult

from crfl_core.errors import CrflError
from crfl_core.reporting.metrics import Curve, compute_curves
from crfl_core.runs.run_directory import RunDirectory
from crfl_reports.pages.experiment_table import experiment_table, experiments_of, words_for
from crfl_reports.pages.figure_data import curve_basis, numbers
from crfl_reports.pages.markup import Html, element, figure_place, join_parts, table
from crfl_reports.pages.samples import tables

if TYPE_CHECKING:
    from crfl_core.plugin_api.certificate import CertificateResult
    from crfl_core.runs.results import RunResult


def runs_in(folder: Path) -> list[Path]:
    """Return the finished runs below a folder.

    Runs of sweeps and of nested folders are included.
    """
    found = (directory for directory in find_runs(folder) if is_finished_run(directory))
    return sorted((one.path for one in found), key=lambda path: natural_key(path.relative_to(folder).as_posix()))


def is_finished_run(directory: RunDirectory) -> bool:
    """Return whether a folder is a finished run.

    A damaged run is not.
    """
    try:
        return directory.has_marker and directory.state == "finished"
    except CrflError:
        return False


def folder_sections(
    folder: Path, runs: Sequence[RunResult], reports: Mapping[Path, str], together: Html
) -> Iterator[tuple[str, str, Html]]:
    """Yield the sections of the page of a folder.

    `reports` has the addresses of the runs' reports; `together` has the figures of all runs.
    """
    yield "runs", "Runs", join_parts([experiment_table(folder, runs, reports), *missing_cells(folder)])
    yield "curves", "Certified", figure_place("folder", "Certified accuracy and rate")
    yield "together", "Runs side by side", together


def missing_cells(folder: Path) -> Iterator[Html]:
    """List the cells of a sweep that have no run.

    Failed cells come with the reason; waiting cells are counted.
    """
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


def experiments(runs: Sequence[RunResult]) -> dict[str, tuple[RunResult, ...]]:
    """Return the runs of every experiment by its name.

    The name is the settings, or the first run if the settings are too many.
    """
    found = experiments_of(runs)
    if len(found[0].settings) > MOST_KEYS_IN_TITLE:
        return {one.runs[0].path.name: one.runs for one in found}
    return {words_for(one.settings) or runs[0].config.name: one.runs for one in found}


def folder_data(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return the curves of all runs.

    The curves of one experiment become one, with a band.
    """
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
    """Return the certificate, the level and the test set.

    Curves with equal ones are drawn together.
    """
    return one.certificate, one.level, one.test_set


def common_grids(guarantees: Sequence[CertificateResult]) -> dict[Key, tuple[float, ...]]:
    """Return the radii at which the curves of all runs are read.

    The keys are certificate, level and test set.
    """
    found: dict[tuple[str, str], set[float]] = {}
    for one in guarantees:
        found.setdefault(group(one)[:2], set()).update(compute_curves([one], None)[0].radii)
    return {group(one): tuple(sorted(found[group(one)[:2]])) for one in guarantees}


def about(members: Sequence[RunResult], key: Key) -> Curve:
    """Return what the numbers of several runs rest on.

    The result has the conditions of all the runs.
    """
    found = [curve for run in members for curve in run.metrics.curves if group(curve) == key]
    conditions = dict.fromkeys(condition for curve in found for condition in curve.conditional)
    return found[0].model_copy(update={"conditional": tuple(conditions)})


def band_data(name: str, members: Sequence[Curve], basis: Curve) -> dict[str, Any]:
    """Return some runs as one curve with a band.

    The runs differ only in their seeds.
    """

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
