"""Comparison of runs: mean and spread over seeds, and differences within the same seeds.

Runs that share their seeds share data, batches and noise as far as their configs let them. What differs between two of
them is then mostly due to the settings, so differences are taken seed by seed: their spread is smaller than that of the
runs, and Student's t gives an interval that covers the mean difference with 95 %, if differences are normal.
"""

from __future__ import annotations

import csv
import io
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfl_core.certification.levels import LEVEL_WORDS
from crfl_core.errors import CrflError, CrflWarning, StoreError
from crfl_core.reporting import config_diff
from crfl_core.reporting.metrics import Curve, Metrics
from crfl_core.runs.run_directory import RunDirectory
from crfl_experiments.attack_settings import AttackSettings, attack_lines
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.results import SweepResult
from crfl_experiments.sweeps.values import table_value

MOST_KEYS_IN_TITLE = 4
"""Runs that differ in more settings are called by their names."""
CONFIDENCE = 0.95
LEAST_SEEDS = 3
"""Fewer seeds say too little about their spread for an interval or a band."""
RADII = 3
"""At how many radii a table shows certified accuracy."""

RESULT_FILES = ("config.toml", "model.safetensors", "clients.npz", "metrics.json")
"""Files that two runs do not share by chance."""

Seed = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Run:
    """Finished run: its title, the settings that set it apart, its seeds and its numbers."""

    title: str
    point: dict[str, Any]
    seed: Seed
    numbers: RunNumbers


class Statistic(NamedTuple):
    """Mean and standard deviation over n runs; a single run has no spread."""

    mean: float
    spread: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Statistic:
        """Compute mean and standard deviation of some values."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


class Difference(NamedTuple):
    """Mean difference to the first point over n shared seeds, and its 95 % confidence interval.

    There is no interval below three seeds, nor if all differences are equal. It stays within [-1, 1], the range of
    differences of shares.
    """

    mean: float
    low: float | None
    high: float | None
    n: int

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> Difference:
        """Compute the mean difference of pairs (value, value of the first point)."""
        from scipy.stats import t

        each = [value - first for value, first in pairs]
        mean = fmean(each)
        if len(each) < LEAST_SEEDS or max(each) == min(each):
            return cls(mean, None, None, len(each))
        half = float(t.ppf(0.5 + CONFIDENCE / 2, len(each) - 1)) * stdev(each) / math.sqrt(len(each))
        return cls(mean, max(-1.0, mean - half), min(1.0, mean + half), len(each))


@dataclass(frozen=True)
class Measure:
    """Number that every run may have. `of` returns None where a run has none."""

    name: str
    of: Callable[[RunNumbers], float | None]
    is_short: bool = True


@dataclass(frozen=True)
class Point:
    """Runs that differ only in their seeds."""

    title: str
    settings: dict[str, Any]
    runs: tuple[Run, ...]
    statistics: dict[str, Statistic]
    differences: dict[str, Difference]


@dataclass(frozen=True)
class Comparison:
    """Points beside each other; the others are compared with the first.

    `few` are those of the measures that a short table shows: of every certificate and level one radius.
    """

    keys: tuple[str, ...]
    measures: tuple[str, ...]
    short_measures: tuple[str, ...]
    points: tuple[Point, ...]
    labels: dict[str, str]
    """Labels of certificates that prove nothing."""
    attacks: tuple[str, ...] = ()
    """Attackers, attacked rounds and scale on one line, after a warning if they differ and no key says so."""
    bounds: tuple[str, ...] = ()
    """Which collective certified accuracies are lower bounds, where others may be exact."""


def runs_of_sweep(result: SweepResult) -> list[Run]:
    """Return the finished cells of a sweep."""
    found = []
    for one in result.cells:
        if one.note.state == "finished":
            point, seed = config_diff.split_seeds(one.settings)
            found.append(
                Run(
                    one.cell.title,
                    {key: table_value(value) for key, value in point.items()},
                    seed,
                    RunNumbers(one.path),
                )
            )
    return found


def find_finished_runs(paths: Sequence[Path]) -> list[Run]:
    """Return the runs at some paths, each a run or a sweep.

    Raises `StoreError` for anything else, and for runs that are not finished.
    """
    if len(paths) == 1 and SweepFolder(paths[0]).has_marker:
        runs = runs_of_sweep(SweepResult(paths[0]))
        if not runs:
            raise StoreError(f"{paths[0]}: no cell is finished yet: continue with `crfl sweep {paths[0]}`")
        return runs
    directories = [RunDirectory(place) for path in paths for place in run_paths(path)]
    for directory in directories:
        if directory.state != "finished":
            raise StoreError(f"{directory.path}: the run is not finished: continue with `crfl run {directory.path}`")
    directories = drop_copies(directories)
    places = [directory.path for directory in directories]
    settings = config_diff.differences([config_diff.read_config(directory) for directory in directories])
    split = [config_diff.split_seeds({key: table_value(value) for key, value in one.items()}) for one in settings]
    return [Run(str(place), *own, RunNumbers(place)) for place, own in zip(places, split, strict=True)]


def drop_copies(directories: Sequence[RunDirectory]) -> list[RunDirectory]:
    """Keep every run once: a copy is not a further seed."""
    found: dict[Any, RunDirectory] = {}
    for directory in directories:
        known = {name: digest for name, digest in directory.digests.items() if name in RESULT_FILES}
        first = found.setdefault(tuple(sorted(known.items())) or directory.path, directory)
        if first is not directory:
            said = f"{directory.path}: is the same run as {first.path}, and counts once"
            warnings.warn(said, CrflWarning, stacklevel=2)
    return list(found.values())


def run_paths(path: Path) -> Iterable[Path]:
    """Return the path of a run.

    For a sweep, return the paths of its finished cells.
    """
    if not SweepFolder(path).has_marker:
        return [path]
    return [one.path for one in SweepResult(path).cells if one.note.state == "finished"]


def compare_runs(runs: Sequence[Run]) -> Comparison:
    """Compute the mean and spread of every point.

    Also compute the difference of every point from the first.
    """
    points: dict[str, list[Run]] = {}
    for run in runs:
        points.setdefault(point_title(run.point), []).append(run)
    measures = measures_of(runs)
    numbers = {id(run): {one.name: one.of(run.numbers) for one in measures} for run in runs}
    present = [one.name for one in measures if any(numbers[id(run)][one.name] is not None for run in runs)]
    first = next(iter(points.values()))
    made = []
    for title, own in points.items():
        statistics: dict[str, Statistic] = {}
        others: dict[str, Difference] = {}
        for name in present:
            values = [value for run in own if (value := numbers[id(run)][name]) is not None]
            column = {id(run): numbers[id(run)][name] for run in runs}
            pairs = [] if own is first else pair_values(own, first, column)
            statistics |= {name: Statistic.of(values)} if values else {}
            others |= {name: Difference.of(pairs)} if pairs else {}
        made.append(Point(title, own[0].point, tuple(own), statistics, others))
    keys = tuple(dict.fromkeys(key for run in runs for key in run.point))
    few = tuple(one.name for one in measures if one.name in present and one.is_short)
    attacks = [run.numbers.attack for run in runs]
    return Comparison(
        keys,
        tuple(present),
        few,
        tuple(made),
        labels_of(runs),
        tuple(attack_lines(attacks, keys)),
        tuple(bound_lines(made)),
    )


def pair_values(own: Sequence[Run], first: Sequence[Run], column: dict[int, float | None]) -> list[tuple[float, float]]:
    """Pair values of runs with those of the first point.

    The runs of a pair have the same seed.
    """
    known = {run.seed: column[id(run)] for run in reversed(first)}
    pairs = ((column[id(run)], known.get(run.seed)) for run in own)
    return [(mine, other) for mine, other in pairs if mine is not None and other is not None]


def measures_of(runs: Sequence[Run]) -> list[Measure]:
    """Return the measures of a table.

    They are accuracy, backdoor success, and certificates at a few radii.
    """
    found = [
        Measure("accuracy", lambda run: run.metrics.accuracy),
        Measure("backdoor success", backdoor_success),
        Measure("accuracy of the server alone", trusted_accuracy),
    ]
    for question in curve_keys(runs):
        curves = [run.numbers.curves[question] for run in runs if question in run.numbers.curves]
        for place, radius in enumerate(choose_radii(common_radii(curves), question.level)):
            name = f"{question.certificate}: certified accuracy at {question.radius_name} {radius:g}"
            found.append(Measure(name, partial(accuracy_at_radius, question=question, radius=radius), place == 0))
    found += collective_measures(runs)
    return found


def collective_measures(runs: Sequence[Run]) -> Iterator[Measure]:
    """Yield the measures of collective certified accuracy.

    There is one for every certificate at a few numbers of clients.
    """
    curves = [curve for run in runs for curve in run.numbers.metrics.collective]
    for certificate in dict.fromkeys(curve.certificate for curve in curves):
        clients = sorted({number for curve in curves if curve.certificate == certificate for number in curve.clients})
        for place, number in enumerate(choose_radii(clients, "client")):
            name = f"{certificate}: collective certified accuracy at clients {number}"
            yield Measure(name, partial(collective_accuracy, certificate=certificate, clients=int(number)), place == 0)


def collective_accuracy(run: RunNumbers, certificate: str, clients: int) -> float | None:
    """Return the collective certified accuracy of a run.

    The result is None if the run has none for this number of clients.
    """
    for curve in run.metrics.collective:
        if curve.certificate == certificate and clients in curve.clients:
            return curve.collective_accuracy[curve.clients.index(clients)]
    return None


def bound_lines(points: Sequence[Point]) -> Iterator[str]:
    """Yield the points whose collective certified accuracy is a lower bound.

    There is a line for every certificate with such points.
    """
    bounded: dict[str, list[str]] = {}
    for point in points:
        curves = [curve for run in point.runs for curve in run.numbers.metrics.collective]
        for certificate in dict.fromkeys(curve.certificate for curve in curves if not all(curve.exact)):
            bounded.setdefault(certificate, []).append(point.title)
    for certificate, titles in bounded.items():
        where = "" if len(titles) == len(points) else f" for {'; '.join(titles)}"
        yield f"{certificate}: collective certified accuracy is a lower bound{where}"


def backdoor_success(run: RunNumbers) -> float | None:
    """Return the attack success rate; None if there was no backdoor."""
    return None if run.metrics.backdoor is None else run.metrics.backdoor.success_rate


def trusted_accuracy(run: RunNumbers) -> float | None:
    """Return the accuracy on the server's own samples alone.

    The result is None if the server reserved none.
    """
    return None if run.metrics.trusted_baseline is None else run.metrics.trusted_baseline.accuracy


def labels_of(runs: Sequence[Run]) -> dict[str, str]:
    """Return the labels of certificates that have one."""
    curves = (curve for run in runs for curve in run.numbers.curves.values())
    return {curve.certificate: curve.label for curve in curves if curve.label}


def accuracy_at_radius(run: RunNumbers, question: CurveKey, radius: float) -> float | None:
    """Return certified accuracy at one radius."""
    values = run.certified(question, [radius])
    return None if values is None else values[0]


def curve_keys(runs: Sequence[Run], test_set: str = "clean") -> list[CurveKey]:
    """Return the keys of all curves of runs on one test set."""
    found = dict.fromkeys(question for run in runs for question in run.numbers.curves)
    return [question for question in found if question.test_set == test_set]


def choose_radii(radii: Sequence[float], level: str) -> list[float]:
    """Choose a few radii of a grid.

    At the client level these are the smallest numbers of clients; at others they lie evenly.
    """
    positive = [radius for radius in radii if radius > 0]
    if level == "client" or len(positive) <= RADII:
        return positive[:RADII]
    return [positive[(number + 1) * len(positive) // (RADII + 1)] for number in range(RADII)]


def runs_title(runs: Sequence[Run]) -> str:
    """Name the runs of a point."""
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return f"{runs[0].title}{more}"


def point_title(point: dict[str, Any]) -> str:
    """Write the settings that set a point apart on one line."""
    return ", ".join(f"{key}={value}" for key, value in point.items()) or "all runs"


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the runs at some paths now, before any output.

    Raises `StoreError` if a run is damaged.
    """
    runs = find_finished_runs(paths)
    for run in runs:
        try:
            run.numbers.curves  # noqa: B018  # reading it is the check
        except CrflError as error:
            raise StoreError(f"{error}: leave it out of the comparison, or run it again") from error
    return runs


class CurveKey(NamedTuple):
    """Certificate, level and test set of a curve."""

    certificate: str
    level: str
    test_set: str

    @property
    def radius_name(self) -> str:
        """Return the name of what its radius counts."""
        return LEVEL_WORDS[self.level].unit if self.level in LEVEL_WORDS else "radius"


class RunNumbers:
    """Numbers of one finished run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._directory = RunDirectory(path)

    @cached_property
    def metrics(self) -> Metrics:
        """Return the content of metrics.json.

        Raises `StoreError` if the config of the run was changed since.
        """
        self._directory.read("config.toml")
        return self._directory.read_facts("metrics.json", Metrics)

    @cached_property
    def attack(self) -> AttackSettings | None:
        """Return attackers, attacked rounds and scale; None without an attack."""
        return AttackSettings.read(config_diff.read_config(self._directory))

    @cached_property
    def curves(self) -> dict[CurveKey, Curve]:
        """Return its curves by certificate, level and test set."""
        return {CurveKey(one.certificate, one.level, one.test_set): one for one in self.metrics.curves}

    def certified(self, question: CurveKey, radii: Sequence[float]) -> list[float] | None:
        """Return the certified accuracy at each radius.

        The result is None if the run has no such curve.
        """
        curve = self.curves.get(question)
        if curve is None:
            return None
        known = dict(zip(curve.radii, curve.certified_accuracy, strict=True))
        if all(radius in known for radius in radii):
            return [known[radius] for radius in radii]
        reached = self._reached(question)
        return [float((reached >= radius).mean()) for radius in radii]

    def _reached(self, question: CurveKey) -> NDArray[np.float64]:
        """Return the radius of every sample that is predicted right.

        The others have -inf.
        """
        text = self._directory.read(f"certificates/{question.certificate}.csv").decode()
        return np.array(
            [
                float(row["radius"] or "-inf") if row["prediction"] == row["label"] else -math.inf
                for row in csv.DictReader(io.StringIO(text))
                if (row["level"], row["set"]) == (question.level, question.test_set)
            ]
        )


def common_radii(curves: Sequence[Curve]) -> list[float]:
    """Return the finite radii of the curve that reaches farthest."""
    finite = [[radius for radius in curve.radii if math.isfinite(radius)] for curve in curves]
    return max(finite, key=lambda radii: radii[-1] if radii else -1.0)


def compare(*runs: str | Path) -> Comparison:
    """Compare finished runs or the cells of a sweep.

    Runs and sweeps are given by their directories. Points with the same settings but other seeds are averaged; the
    first point is what the others are compared with. Raises `StoreError` for a directory that holds no finished run.
    """
    return compare_runs(read_runs([Path(run) for run in runs]))
