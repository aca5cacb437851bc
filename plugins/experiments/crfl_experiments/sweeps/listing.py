"""The runs below a folder: how far each is, its most important numbers, and what sets it apart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crfl_core.errors import CrflError, StoreError
from crfl_core.reporting import config_diff
from crfl_core.reporting.metrics import Metrics
from crfl_core.runs.run_directory import RunDirectory
from crfl_experiments.sweeps.values import shown

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
            configs[directory.path] = config_diff.config_of(directory)
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
    proved = metrics.proved(CLIENTS)
    certified, certificate = (None, "") if proved is None else (proved[0], proved[1].certificate)
    return Listed(name, state, age, size, metrics.accuracy, backdoor, certified, certificate, told)


def as_json(listed: list[Listed]) -> str:
    """The list for programs."""
    return json.dumps([vars(one) for one in listed], indent=2)
