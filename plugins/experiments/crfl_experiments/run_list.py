"""List of the runs below a folder, and its table, which fits the terminal."""

from __future__ import annotations

import json
import re
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
from crfl_core.runs.recorded_directory import STATUS
from crfl_core.runs.run_directory import CONFIG, LEDGER, RunDirectory
from crfl_experiments.commands.comparison_table import short_names
from crfl_experiments.sweeps.overview import format_duration
from crfl_experiments.sweeps.values import table_value

if TYPE_CHECKING:
    from rich.console import RenderableType

DEEPEST = 4
"""Depth of folders below the given one that are searched."""

CLIENTS = 1.0
"""The number of attackers for which certified accuracy is listed."""

SORTS = ("name", "accuracy", "backdoor", "certified", "age", "size")


@dataclass(frozen=True)
class RunSummary:
    """Summary of one run; None where a number is missing. `certified` is that of the best client certificate.

    `server_alone` is the accuracy on the server's own labelled samples, which holds against any number of clients.
    """

    name: str
    state: str
    age: float
    size: int
    accuracy: float | None = None
    backdoor: float | None = None
    certified: float | None = None
    certificate: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    server_alone: float | None = None


def list_runs(folder: Path, sort: str = "name") -> list[RunSummary]:
    """List all runs below a folder.

    Raises `StoreError` if the folder does not exist.
    """
    if not folder.is_dir():
        raise StoreError(f"{folder}: there is no such folder: give one that holds runs")
    directories = list(find_runs(folder))
    configs = {}
    for directory in directories:
        try:
            configs[directory.path] = config_diff.read_config(directory)
        except CrflError:
            continue
    settings = dict(zip(configs, config_diff.differences(list(configs.values())), strict=True))
    listed = [describe_run(directory, folder, settings.get(directory.path, {})) for directory in directories]
    return sorted(listed, key=lambda one: sort_key(one, sort))


def sort_key(one: RunSummary, sort: str) -> tuple[Any, ...]:
    """Return the key that sorts the best, newest or largest first.

    Missing numbers come last.
    """
    if sort == "name":
        return (natural_key(one.name),)
    value = getattr(one, sort)
    sign = 1 if sort in ("age", "backdoor") else -1
    return (value is None, 0 if value is None else sign * value, one.name)


def natural_key(value: object) -> tuple[Any, ...]:
    """Return a key that sorts numbers by size.

    This holds within texts as well. Numbers come before texts.

    >>> sorted(["scale-100", "scale-9", 10.0, 2], key=natural_key)
    [2, 10.0, 'scale-9', 'scale-100']
    """
    if isinstance(value, int | float):
        return (0, float(value))
    parts = re.split(r"(\d+)", str(value))
    return (1, *((part, 0) if place % 2 == 0 else ("", int(part)) for place, part in enumerate(parts)))


def find_runs(folder: Path, depth: int = DEEPEST) -> Iterator[RunDirectory]:
    """Yield the run directories below a folder, by name.

    Directories inside a run are left out.
    """
    directory = RunDirectory(folder)
    if directory.has_marker or has_run_files(folder):
        yield directory
        return
    for path in sorted(folder.iterdir()) if depth else ():
        if path.is_dir() and not path.name.startswith("."):
            yield from find_runs(path, depth - 1)


def has_run_files(folder: Path) -> bool:
    """Return whether a folder holds the files of a run.

    It detects runs whose marker is damaged.
    """
    return all((folder / name).is_file() for name in (CONFIG, STATUS, LEDGER))


def describe_run(directory: RunDirectory, folder: Path, settings: dict[str, Any]) -> RunSummary:
    """Summarise a run; a damaged one has the state "damaged"."""
    path = directory.path
    name = str(path.relative_to(folder)) if path != folder else path.name
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    status = path / "status.json"
    age = time.time() - (status if status.exists() else path).stat().st_mtime
    texts = {key: table_value(value) for key, value in settings.items()}
    if not directory.has_marker:
        return RunSummary(name, "damaged", age, size, settings=texts)
    try:
        state: str = directory.state
        if state != "finished":
            return RunSummary(name, state, age, size, settings=texts)
        metrics = directory.read_facts("metrics.json", Metrics)
    except CrflError:
        return RunSummary(name, "damaged", age, size, settings=texts)
    backdoor = None if metrics.backdoor is None else metrics.backdoor.success_rate
    proved = metrics.proven_accuracy(CLIENTS)
    certified, certificate = (None, "") if proved is None else (proved[0], proved[1].certificate)
    alone = None if metrics.trusted_baseline is None else metrics.trusted_baseline.accuracy
    return RunSummary(name, state, age, size, metrics.accuracy, backdoor, certified, certificate, texts, alone)


def as_json(listed: list[RunSummary]) -> str:
    """Write the list as JSON."""
    return json.dumps([vars(one) for one in listed], indent=2)


LEAST_NAME = 16
MOST_NAME = 44
"""Letters that the name of a run has on one line."""
WIDEST = 16
"""Letters of a setting on one line; longer ones are folded."""
BETWEEN = 2
"""Letters between two columns: a space on both sides of each."""
NAMED = 5
"""Settings that do not fit and are named nevertheless."""
RIGHT = ("age", "size")
DISPENSABLE = ("size", "age")
"""Columns that a narrow terminal leaves out, the least missed first."""
WANTED = 3
"""Number of settings that are worth more than those columns, and than a state that all runs share."""

Columns = dict[str, list[str]]


def list_table(listed: Sequence[RunSummary], width: int) -> RenderableType:
    """Build one row per run.

    A row has the numbers of the run and the settings that fit.
    """
    settings = settings_of(listed)
    longest = max(len(one.name) for one in listed)
    room = width - BETWEEN - min(longest, LEAST_NAME)
    facts = choose_facts(facts_of(listed), room, total_width(dict([*settings.items()][:WANTED])))
    fitting = dict(leading_columns(settings, room - total_width(facts)))
    room -= total_width(facts) + total_width(fitting)
    name_width = min(longest, MOST_NAME, LEAST_NAME + max(0, room))
    table = build_table([one.name for one in listed], facts | fitting, name_width)
    if not (left_out := [name for name in settings if name not in fitting]):
        return table
    more = f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
    return Group(table, Text(f"they also differ in {', '.join(left_out[:NAMED])}{more}: see --json"))


def choose_facts(facts: Columns, room: int, wanted: int) -> Columns:
    """Choose all facts if they fit, else drop some.

    The choice leaves room for the settings if it can. Otherwise at least the facts fit.
    """
    dispensable = (*DISPENSABLE, *(("state",) if set(facts["state"]) == {"finished"} else ()))
    less = [
        {name: facts[name] for name in facts if name not in dispensable[:count]}
        for count in range(len(dispensable) + 1)
    ]
    with_settings = (some for some in less if total_width(some) + wanted <= room)
    alone = (some for some in less if total_width(some) <= room)
    return next(with_settings, None) or next(alone, less[-1])


def facts_of(listed: Sequence[RunSummary]) -> Columns:
    """Return the columns of numbers that are not empty."""
    columns = {
        "state": [one.state for one in listed],
        "age": [format_age(one.age) for one in listed],
        "size": [format_size(one.size) for one in listed],
        "accuracy": [format_share(one.accuracy) for one in listed],
        "backdoor": [format_share(one.backdoor) for one in listed],
        "certified": [format_share(one.certified) for one in listed],
        "server alone": [format_share(one.server_alone) for one in listed],
    }
    return {name: values for name, values in columns.items() if any(values)}


def settings_of(listed: Sequence[RunSummary]) -> Columns:
    """Return the columns of the settings in which the runs differ."""
    keys = list(dict.fromkeys(key for one in listed for key in one.settings))
    names = short_names(keys)
    return {name: [str(one.settings.get(key, "")) for one in listed] for key, name in zip(keys, names, strict=True)}


def leading_columns(columns: Mapping[str, list[str]], room: int) -> Iterator[tuple[str, list[str]]]:
    """Yield columns from the left, as long as there is room."""
    for column in columns.items():
        room -= column_width(column)
        if room < 0:
            return
        yield column


def total_width(columns: Mapping[str, list[str]]) -> int:
    """Count the letters that some columns take of a line."""
    return sum(map(column_width, columns.items()))


def column_width(column: tuple[str, list[str]]) -> int:
    """Count the letters that a column takes of a line."""
    name, values = column
    return max(len(name), min(WIDEST, max(map(len, values)))) + BETWEEN


def build_table(names: Sequence[str], columns: Mapping[str, list[str]], name_width: int) -> Table:
    """Build the table."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold", min_width=name_width)
    for column in columns.items():
        name, values = column
        number = all(value.replace(".", "", 1).isdigit() for value in values if value)
        justify: Literal["right", "left"] = "right" if number or name in RIGHT else "left"
        table.add_column(escape(name), justify=justify, overflow="fold", min_width=column_width(column) - BETWEEN)
    for name, *row in zip(names, *columns.values(), strict=True):
        table.add_row(escape(name), *map(escape, row))
    return table


def format_share(value: float | None) -> str:
    """Format a share; empty if there is none."""
    return "" if value is None else f"{value:.3f}"


def format_age(seconds: float) -> str:
    """Format an age in its largest unit."""
    days = int(seconds // 86_400)
    return f"{days} d" if days else " ".join(format_duration(seconds).split()[:2])


def format_size(count: int) -> str:
    """Format a number of bytes.

    >>> format_size(900), format_size(1_700_000)
    ('1 kB', '1.7 MB')
    """
    return f"{max(1, round(count / 1e3))} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"
