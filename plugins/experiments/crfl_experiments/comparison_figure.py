"""Figure of a comparison: certified accuracy against the radius, or a measure against a varied key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from crfl_core.errors import ConfigError
from crfl_core.files.atomic_files import replace_file
from crfl_experiments.comparison import (
    LEAST_SEEDS,
    MOST_KEYS_IN_TITLE,
    Comparison,
    CurveKey,
    Run,
    Statistic,
    common_radii,
    compare_runs,
    curve_keys,
    labels_of,
    point_title,
    runs_title,
)
from crfl_experiments.sweeps.expressions import is_number
from crfl_experiments.sweeps.folder import SweepFolder

if TYPE_CHECKING:
    from crfl_reports.figures import Line
    from matplotlib.figure import Figure

FORMATS: tuple[Literal["png", "svg", "pdf"], ...] = ("png", "svg", "pdf")


def comparison_figure(runs: Sequence[Run], against: str | None = None, measure: str | None = None) -> Figure:
    """Draw some runs. Raises `ConfigError` if there is nothing to draw along."""
    from crfl_reports.figures import RADIUS, Panel, lines_figure, panels_figure

    if against is not None:
        comparison = compare_runs(runs)
        name = measure or comparison.measures[0]
        return lines_figure(lines_along_key(comparison, against, name), x_label=against, y_label=name)
    questions = curve_keys(runs)
    if measure is not None:
        names = dict.fromkeys(one.certificate for one in questions)
        questions = [one for one in questions if one.certificate == measure]
        if names and not questions:
            raise ConfigError(f"--measure {measure}: there is no such certificate: there are {', '.join(names)}")
    if not questions:
        raise ConfigError("there is no certified accuracy to draw: give --against a key with numbers that was varied")
    question = questions[0]
    label = labels_of(runs).get(question.certificate)
    title = f"{question.certificate}, {question.level} level{f': {label}' if label else ''}"
    lines = lines_over_radii(runs, question)
    x_label = RADIUS.get(question.level, "radius")
    return panels_figure([Panel(lines, x_label, "certified accuracy", title, steps=question.level == "client")])


def lines_over_radii(runs: Sequence[Run], question: CurveKey) -> list[Line]:
    """Return one line for each point.

    Its band is one standard deviation over the seeds.
    """
    from crfl_reports.figures import Line

    radii = common_radii([run.numbers.curves[question] for run in runs if question in run.numbers.curves])
    points: dict[str, list[list[float]]] = {}
    titles = line_titles(runs)
    for run in runs:
        if (values := run.numbers.certified(question, radii)) is not None:
            points.setdefault(titles[point_title(run.point)], []).append(values)
    return [
        make_line(Line, title, radii, [Statistic.of(column) for column in zip(*rows, strict=True)])
        for title, rows in points.items()
    ]


def line_titles(runs: Sequence[Run]) -> dict[str, str]:
    """Return the title of every point's line.

    The title has the settings of the point, or its runs if the settings are too many.
    """
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(point_title(run.point), []).append(run)
    many = len({key for run in runs for key in run.point}) > MOST_KEYS_IN_TITLE
    return {title: runs_title(own) if many else title for title, own in alike.items()}


def lines_along_key(comparison: Comparison, key: str, measure: str) -> list[Line]:
    """Return the lines of a measure against a key.

    There is one line for each combination of the other keys.
    """
    from crfl_reports.figures import Line

    if key not in comparison.keys:
        raise ConfigError(f"--against {key}: was not varied: what was: {', '.join(comparison.keys) or 'nothing'}")
    if measure not in comparison.measures:
        raise ConfigError(f"--measure {measure}: there is none: there are {', '.join(comparison.measures)}")
    lines: dict[str, list[tuple[float, Statistic]]] = {}
    for point in comparison.points:
        if not is_number(point.settings.get(key)):
            raise ConfigError(f"--against {key}: {point.settings.get(key)!r} is not a number, which the axis needs")
        others = {name: value for name, value in point.settings.items() if name != key}
        if measure in point.statistics:
            lines.setdefault(point_title(others), []).append((point.settings[key], point.statistics[measure]))
    ordered = {title: sorted(found, key=lambda pair: pair[0]) for title, found in lines.items()}
    return [
        make_line(Line, title, [x for x, _ in found], [one for _, one in found]) for title, found in ordered.items()
    ]


def make_line(kind: type[Line], title: str, x: Sequence[float], statistics: Sequence[Statistic]) -> Line:
    """Make a line of mean shares with a band.

    The band is one standard deviation, within [0, 1]. The line has no band if there are too few seeds.
    """
    means = [one.mean for one in statistics]
    spreads = [one.spread for one in statistics if one.spread is not None and one.n >= LEAST_SEEDS]
    if len(spreads) < len(means):
        return kind(title, x, means)
    low = [max(0.0, mean - spread) for mean, spread in zip(means, spreads, strict=True)]
    high = [min(1.0, mean + spread) for mean, spread in zip(means, spreads, strict=True)]
    return kind(title, x, means, low, high)


def save_figure(
    runs: Sequence[Run], paths: Sequence[Path], wanted: Path | None, against: str | None, measure: str | None
) -> Path | None:
    """Save the figure to the given file, else into a sweep.

    The result is None without a file and a sweep, or if the runs have no curves. Raises `ConfigError` if a figure was
    asked for and has no place.
    """
    asked = wanted is not None or against is not None or measure is not None
    target = wanted or default_target(paths)
    if target is None:
        if asked:
            raise ConfigError("--figure: say where the figure of several runs goes, for example --figure compare.png")
        return None
    if not asked and not curve_keys(runs):
        return None
    formats = {f".{one}": one for one in FORMATS}
    if target.suffix not in formats:
        raise ConfigError(f"--figure {target}: must end with one of {', '.join(formats)}")
    from crfl_reports.figures import image_of

    replace_file(target, image_of(comparison_figure(runs, against, measure), formats[target.suffix]))
    return target


def default_target(paths: Sequence[Path]) -> Path | None:
    """Return the file of the figure in a sweep; None for runs."""
    return paths[0] / "compare.png" if len(paths) == 1 and SweepFolder(paths[0]).has_marker else None
