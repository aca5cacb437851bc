"""What `crfl sweep` is asked for, and what it says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from crfl_core.cli.output import terminal
from crfl_core.errors import ConfigError, StoreError
from crfl_experiments.sweeps.cells import Definition
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.results import SweepResult
from crfl_experiments.sweeps.schedule import Plan, plan_cells
from crfl_experiments.sweeps.sweep_table import choices, fixed_of
from crfl_experiments.sweeps.values import parse_value, shown, split

MOST_TABLES = 3
"""How many measures a sweep shows when it is finished: accuracy, backdoor success and the first certificate."""


def asked(vary: Sequence[str], zipped: Sequence[str], links: Sequence[str], seeds: int | None) -> dict[str, Any]:
    """The parts of a `[sweep]` table that options stand for."""
    grid = {key: values(raw, f"--vary {key}") for key, raw in pairs(vary, "--vary")}
    together = {key: values(raw, f"--zip {key}") for key, raw in pairs(zipped, "--zip")}
    linked = dict(pairs(links, "--link"))
    parts = {"grid": grid, "zip": together, "linked": linked}
    return {name: part for name, part in parts.items() if part} | ({} if seeds is None else {"seeds": seeds})


def pairs(options: Sequence[str], name: str) -> list[tuple[str, str]]:
    """Keys and what stands behind them."""
    found: list[tuple[str, str]] = []
    for option in options:
        key, equals, raw = option.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{name} {option}: write it as key=..., for example {name} attack.scale=10,50")
        if key.strip() in dict(found):
            raise ConfigError(f"{name} {key.strip()}: is given twice: put all values into one")
        found.append((key.strip(), raw.strip()))
    return found


def values(raw: str, option: str) -> list[Any]:
    """The values of an option."""
    parts = split(raw)
    if not all(parts):
        raise ConfigError(f"{option}={raw}: a value is missing: write values with commas between them, such as 10,50")
    return [parse_value(part) for part in parts]


def goes_on(path: Path, *, changes: bool, trust: bool) -> tuple[Definition, Path]:
    """The sweep in a folder. Raises if that is none, if it is somebody else's, or if it is to be another sweep."""
    folder = SweepFolder.existing(path)
    if changes:
        raise ConfigError(f"{path}: holds a sweep, which goes on as it was begun: leave the other options out")
    if not trust:
        check_cells(folder.definition, path)
    return folder.definition, path


def check_cells(definition: Definition, path: Path) -> None:
    """Raise `StoreError` if a sweep in a folder runs third-party code, or writes elsewhere: that needs `--trust`."""
    fixed = fixed_of(definition.table)
    keys = {key for choice in choices(definition.table, 0) for key in (*fixed, *choice.settings)}
    if any(key.split(".")[0] == "plugins" for key in keys):
        raise StoreError(f"{path}: its sweep.toml sets plugins.allow: read it, then give --trust")
    careful = replace(definition, tree={**definition.tree, "plugins": {"allow": []}})
    try:
        cells = careful.cells()
    except ConfigError as error:
        if "is blocked by plugins.allow" not in str(error):
            raise
        raise StoreError(f"{path}: runs third-party code: read its sweep.toml, then give --trust: {error}") from error
    from crfl_core.runs.run import check_outside_effects  # imports torch

    for cell in cells:
        check_outside_effects(path, cell.config)


def dry(definition: Definition, *, as_json: bool) -> str:
    """The cells, and what each takes from another."""
    planned = {plan.cell.name: plan for plan in plan_cells(definition.cells())}
    ordered = [planned[cell.name] for cell in definition.cells()]
    if as_json:
        return json.dumps([entry(plan) for plan in ordered], indent=2)
    lines = [f"{plan.cell.title}{sharing(plan, planned)}" for plan in ordered]
    stacks = {plan.cell.stack for plan in ordered if plan.cell.stack is not None}
    if stacks:
        cells = sum(plan.cell.stack is not None and plan.shares == "nothing" for plan in ordered)
        lines.append(f"{cells} cells train their clients together, in {len(stacks)} stack{'s' * (len(stacks) > 1)}")
    trained = sum(plan.shares == "nothing" for plan in ordered)
    lines.append(f"{len(ordered)} cells: {trained} trained, {len(ordered) - trained} without training")
    return "\n".join(lines)


def entry(plan: Plan) -> dict[str, Any]:
    """A cell as JSON."""
    return {
        "cell": plan.cell.name,
        "settings": {key: shown(value) for key, value in plan.cell.columns.items()},
        "shares": plan.shares,
        "source": plan.source,
        "stack": plan.cell.stack,
    }


def sharing(plan: Plan, planned: Mapping[str, Plan]) -> str:
    """What a cell takes, in words."""
    return "" if plan.source is None else f"  <- the training of {planned[plan.source].cell.title}"


def told(path: Path, failures: Mapping[str, str], *, as_json: bool, quiet: bool) -> None:
    """What came out."""
    result = SweepResult(path)
    if as_json:
        typer.echo(json.dumps(summary(result, failures), indent=2))
    elif quiet:
        typer.echo(str(path))
    else:
        show(result, failures)


def summary(result: SweepResult, failures: Mapping[str, str]) -> dict[str, Any]:
    """The sweep as JSON: every cell with its state, and the long table."""
    cells = [
        {
            "cell": one.cell.name,
            "settings": {key: shown(value) for key, value in one.settings.items()},
            "state": one.note.state,
            "reason": failures.get(one.cell.name, ""),
            "seconds": one.note.seconds,
            "shares": one.note.shares,
        }
        for one in result.cells
    ]
    rows = [{key: finite(value) for key, value in row.items()} for row in result.rows]
    return {"path": str(result.path), "cells": cells, "rows": rows}


def finite(value: Any) -> Any:
    """A value that JSON has; infinite radii are written as texts, as in metrics.json."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value).replace("inf", "Infinity")


def show(result: SweepResult, failures: Mapping[str, str]) -> None:
    """A table of what was compared, the cells that failed, and where everything is."""
    from crfl_experiments.commands.comparison_table import comparison_table
    from crfl_experiments.comparison import compared, runs_of_sweep

    console = terminal()
    runs = runs_of_sweep(result)
    if runs:
        console.print(comparison_table(compared(runs), most=MOST_TABLES))
    for line in failed(failures):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{len(runs)} of {len(result.cells)} cells are finished", markup=False)
    console.print(f"all numbers: {result.path / 'sweep.csv'}", markup=False, soft_wrap=True)
    console.print(f"more: crfl compare {result.path}, crfl open {result.path}", markup=False, soft_wrap=True)


def failed(failures: Mapping[str, str]) -> Iterator[str]:
    """Which cells failed; those with the same reason in one line.

    >>> list(failed({"a": "no such rule", "b": "no such rule", "c": "killed"}))
    ['failed: a and 1 more: no such rule', 'failed: c: killed']
    """
    names: dict[str, list[str]] = {}
    for name, reason in failures.items():
        names.setdefault(reason, []).append(name)
    for reason, alike in names.items():
        more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        yield f"failed: {alike[0]}{more}: {reason}"
