"""The runs below a folder: how far each is, its most important numbers, and what sets it apart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from crfl_core.errors import CrflError, StoreError
from crfl_core.reporting import config_diff
from crfl_core.reporting.metrics import Metrics
from crfl_core.runs.run_directory import RunDirectory
from crfl_experiments.commands.comparison_table import short_names
from crfl_experiments.sweeps.overview import duration
from crfl_experiments.sweeps.values import shown

if TYPE_CHECKING:
    from rich.console import RenderableType

DEEPEST = 4
"""How many folders below the given one are looked into."""

CLIENTS = 1.0
"""The number of attackers for which certified accuracy is listed."""

SORTS = ("name", "accuracy", "backdoor", "certified", "age", "size")


@dataclass(frozen=True)
class Listed:
    """One run; numbers are None where there are none. `certified` is that of the best certificate for one client."""

    name: str
    state: str
    age: float
    size: int
    accuracy: float | None = None
    backdoor: float | None = None
    certified: float | None = None
    certificate: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


def listing(folder: Path, sort: str = "name") -> list[Listed]:
    """All runs below a folder. Raises `StoreError` if there is no such folder."""
    if not folder.is_dir():
        raise StoreError(f"{folder}: there is no such folder: give one that holds runs")
    directories = list(found_below(folder))
    configs = {}
    for directory in directories:
        try:
            configs[directory.path] = config_diff.read_config(directory)
        except CrflError:
            continue
    settings = dict(zip(configs, config_diff.differences(list(configs.values())), strict=True))
    listed = [described(directory, folder, settings.get(directory.path, {})) for directory in directories]
    return sorted(listed, key=lambda one: sort_key(one, sort))


def sort_key(one: Listed, sort: str) -> tuple[Any, ...]:
    """The best, newest or largest first; what has no number comes last."""
    if sort == "name":
        return (one.name,)
    value = getattr(one, sort)
    sign = 1 if sort in ("age", "backdoor") else -1
    return (value is None, 0 if value is None else sign * value, one.name)


def found_below(folder: Path, depth: int = DEEPEST) -> Iterator[RunDirectory]:
    """The run directories below a folder, by name; not what is inside of one."""
    directory = RunDirectory(folder)
    if directory.is_marked:
        yield directory
        return
    for path in sorted(folder.iterdir()) if depth else ():
        if path.is_dir() and not path.name.startswith("."):
            yield from found_below(path, depth - 1)


def described(directory: RunDirectory, folder: Path, settings: dict[str, Any]) -> Listed:
    """What is known about a run, however damaged it may be."""
    path = directory.path
    name = str(path.relative_to(folder)) if path != folder else path.name
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    status = path / "status.json"
    age = time.time() - (status if status.exists() else path).stat().st_mtime
    told = {key: shown(value) for key, value in settings.items()}
    try:
        state: str = directory.state
        if state != "finished":
            return Listed(name, state, age, size, settings=told)
        metrics = directory.read_facts("metrics.json", Metrics)
    except CrflError:
        return Listed(name, "damaged", age, size, settings=told)
    backdoor = None if metrics.backdoor is None else metrics.backdoor.success_rate
    proved = metrics.proven_accuracy(CLIENTS)
    certified, certificate = (None, "") if proved is None else (proved[0], proved[1].certificate)
    return Listed(name, state, age, size, metrics.accuracy, backdoor, certified, certificate, told)


def as_json(listed: list[Listed]) -> str:
    """The list for programs."""
    return json.dumps([vars(one) for one in listed], indent=2)


LEAST_NAME = 16
MOST_NAME = 44
"""Letters that the name of a run has on one line."""
WIDEST = 16
"""Letters of a setting on one line; longer ones are folded."""
BETWEEN = 2
"""Letters between two columns: a space on both sides of each."""
NAMED = 5
"""How many of the settings that do not fit are named."""
RIGHT = ("age", "size")
DISPENSABLE = ("size", "age")
"""What a narrow terminal goes without, first what is missed least."""
WANTED = 3
"""So many settings are worth more than that, and than a state that all runs share."""

Columns = dict[str, list[str]]


def list_table(listed: Sequence[Listed], width: int) -> RenderableType:
    """One row per run with its numbers, then the settings that fit; some of the others are named below the table."""
    settings = errors_of(listed)
    longest = max(len(one.name) for one in listed)
    room = width - BETWEEN - min(longest, LEAST_NAME)
    facts = fitting_facts(facts_of(listed), room, width_of(dict([*settings.items()][:WANTED])))
    fitting = dict(first_that_fit(settings, room - width_of(facts)))
    room -= width_of(facts) + width_of(fitting)
    name_width = min(longest, MOST_NAME, LEAST_NAME + max(0, room))
    table = filled([one.name for one in listed], facts | fitting, name_width)
    if not (left_out := [name for name in settings if name not in fitting]):
        return table
    more = f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
    return Group(table, Text(f"they also differ in {', '.join(left_out[:NAMED])}{more}: see --json"))


def fitting_facts(facts: Columns, room: int, wanted: int) -> Columns:
    """All facts if they fit; some are left out if the settings, or at least the other facts, fit then."""
    dispensable = (*DISPENSABLE, *(("state",) if set(facts["state"]) == {"finished"} else ()))
    less = [
        {name: facts[name] for name in facts if name not in dispensable[:count]}
        for count in range(len(dispensable) + 1)
    ]
    with_settings = (some for some in less if width_of(some) + wanted <= room)
    alone = (some for some in less if width_of(some) <= room)
    return next(with_settings, None) or next(alone, less[-1])


def facts_of(listed: Sequence[Listed]) -> Columns:
    """The columns of numbers, without those in which nothing stands."""
    columns = {
        "state": [one.state for one in listed],
        "age": [short(one.age) for one in listed],
        "size": [size(one.size) for one in listed],
        "accuracy": [share(one.accuracy) for one in listed],
        "backdoor": [share(one.backdoor) for one in listed],
        "certified": [share(one.certified) for one in listed],
    }
    return {name: values for name, values in columns.items() if any(values)}


def errors_of(listed: Sequence[Listed]) -> Columns:
    """The columns of the settings in which the runs differ."""
    keys = list(dict.fromkeys(key for one in listed for key in one.settings))
    names = short_names(keys)
    return {name: [str(one.settings.get(key, "")) for one in listed] for key, name in zip(keys, names, strict=True)}


def first_that_fit(columns: Mapping[str, list[str]], room: int) -> Iterator[tuple[str, list[str]]]:
    """Columns from the left, as long as there is room."""
    for column in columns.items():
        room -= taken(column)
        if room < 0:
            return
        yield column


def width_of(columns: Mapping[str, list[str]]) -> int:
    """How many letters of a line some columns take."""
    return sum(map(taken, columns.items()))


def taken(column: tuple[str, list[str]]) -> int:
    """How many letters of a line a column takes."""
    name, values = column
    return max(len(name), min(WIDEST, max(map(len, values)))) + BETWEEN


def filled(names: Sequence[str], columns: Mapping[str, list[str]], name_width: int) -> Table:
    """The table itself."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold", min_width=name_width)
    for column in columns.items():
        name, values = column
        number = all(value.replace(".", "", 1).isdigit() for value in values if value)
        justify: Literal["right", "left"] = "right" if number or name in RIGHT else "left"
        table.add_column(escape(name), justify=justify, overflow="fold", min_width=taken(column) - BETWEEN)
    for name, *row in zip(names, *columns.values(), strict=True):
        table.add_row(escape(name), *map(escape, row))
    return table


def share(value: float | None) -> str:
    """A share, or nothing."""
    return "" if value is None else f"{value:.3f}"


def short(seconds: float) -> str:
    """An age in its largest unit."""
    days = int(seconds // 86_400)
    return f"{days} d" if days else " ".join(duration(seconds).split()[:2])


def size(count: int) -> str:
    """A number of bytes for people.

    >>> size(900), size(1_700_000)
    ('1 kB', '1.7 MB')
    """
    return f"{max(1, round(count / 1e3))} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"
