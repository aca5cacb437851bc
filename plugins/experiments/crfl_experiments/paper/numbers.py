"""The numbers behind a figure as a table: means over seeds with their deviation, and what is sound beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crfl_experiments.paper.beside import Answer, distance_bounds
from crfl_experiments.paper.book import Figure
from crfl_experiments.paper.measures import spread
from crfl_experiments.paper.readings import BACKDOORED, CLEAN, Point, Reading

Row = tuple[str, ...]
ALL = "all"
"""The column of all test samples."""


@dataclass(frozen=True)
class Column:
    """A number of every cell; `doubled` if that of all test samples stands beside it, where these are more."""

    title: str
    of: Callable[[Reading], float]
    doubled: bool = True


COLUMNS = (
    Column("accuracy of the model", lambda one: one.base_accuracy),
    Column("certified at r = 0", lambda one: float(one.samples().accuracy([0.0])[0])),
    Column("area", lambda one: one.samples().area),
    Column("largest radius", lambda one: one.samples().reach, doubled=False),
)
BACKDOOR_COLUMNS = (
    Column("clean area", lambda one: one.samples().without(one.target).area),
    Column("backdoored area", lambda one: one.samples(BACKDOORED).without(one.target).area),
)
DISTANCE_COLUMNS = (
    Column("distance in round t_adv", lambda one: float(one.distances[0]), doubled=False),
    Column("in the last round", lambda one: float(one.distances[-1]), doubled=False),
)


def table(figure: Figure, points: Sequence[Point], sound: Sequence[Answer]) -> tuple[Row, ...]:
    """Its first row are the titles."""
    if figure.name == "closeness":
        return with_bounds(figure, points, sound)
    columns = BACKDOOR_COLUMNS if figure.takes else COLUMNS
    both = any(one.first is not None and one.first < size(one) for point in points for one in point.readings.values())
    titles: list[str] = [figure.symbol or "figure"]
    for column in columns:
        titles += [column.title, ALL] if both and column.doubled else [column.title]
    titles += (["sound, at every r", ALL] if both else ["sound, at every r"]) if sound else []
    return tuple(titles), *(row(figure, point, columns, sound, both) for point in points)


def row(figure: Figure, point: Point, columns: Sequence[Column], sound: Sequence[Answer], both: bool) -> Row:
    """A point."""
    found = [" ".join(filter(None, (point.figure if figure.takes else "", point.series, f"{point.value:g}")))]
    for column in columns:
        found.append(spread(point.of(column.of)))
        if both and column.doubled:
            found.append(spread(point.everything.of(column.of)))
    answer = next((one for one in sound if one.value in (None, point.value)), None)
    test_set = BACKDOORED if figure.takes else CLEAN
    if answer is not None:
        found += [spread(one.share(test_set)) for one in ((answer, answer.everything) if both else (answer,))]
    elif sound:
        found += [""] * (2 if both else 1)
    return tuple(found)


def with_bounds(figure: Figure, points: Sequence[Point], sound: Sequence[Answer]) -> tuple[Row, ...]:
    """Distances to the clean model, and what no attack exceeds."""
    bounds = ("sound bound in round t_adv", "in the last round") if sound else ()
    rows = [(figure.symbol, *(column.title for column in DISTANCE_COLUMNS), *bounds)]
    for point in points:
        found = [f"{point.value:g}", *(spread(point.of(column.of)) for column in DISTANCE_COLUMNS)]
        for answer in sound:
            limits = distance_bounds(answer, int(point.value))
            found += [spread(list(limits[:, place])) for place in (0, -1)]
        rows.append(tuple(found))
    return tuple(rows)


def size(one: Reading) -> int:
    """How many samples the clean test set has."""
    return len(one.everything.samples().labels)
