"""Options of `crfl sweep` as a `[sweep]` table, and its output."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from crfl_core.cli import echo
from crfl_core.cli.output import terminal
from crfl_core.errors import ConfigError, StoreError
from crfl_experiments.attack_settings import attack_lines
from crfl_experiments.sweeps.cells import Definition
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.results import SweepResult
from crfl_experiments.sweeps.schedule import Plan, plan_cells
from crfl_experiments.sweeps.sweep_table import read_choices, settings_outside_table
from crfl_experiments.sweeps.values import parse_value, split_values, table_value

MOST_TABLES = 4
"""How many measures a sweep shows: accuracy, backdoor success, that of the server alone, and the first certificate."""


def table_from_options(
    vary: Sequence[str], zipped: Sequence[str], links: Sequence[str], seeds: int | None
) -> dict[str, Any]:
    """Return the parts of a `[sweep]` table that options stand for."""
    grid = {key: parse_values(raw, f"--vary {key}") for key, raw in split_options(vary, "--vary")}
    together = {key: parse_values(raw, f"--zip {key}") for key, raw in split_options(zipped, "--zip")}
    linked = dict(split_options(links, "--link"))
    parts = {"grid": grid, "zip": together, "linked": linked}
    return {name: part for name, part in parts.items() if part} | ({} if seeds is None else {"seeds": seeds})


def split_options(options: Sequence[str], name: str) -> list[tuple[str, str]]:
    """Split options at their first equals sign into keys and values."""
    found: list[tuple[str, str]] = []
    for option in options:
        key, equals, raw = option.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{name} {option}: write it as key=..., for example {name} attack.scale=10,50")
        if key.strip() in dict(found):
            raise ConfigError(f"{name} {key.strip()}: is given twice: put all values into one")
        found.append((key.strip(), raw.strip()))
    return found


def parse_values(raw: str, option: str) -> list[Any]:
    """Parse the values of an option."""
    parts = split_values(raw)
    if not all(parts):
        raise ConfigError(f"{option}={raw}: a value is missing: write values with commas between them, such as 10,50")
    return [parse_value(part) for part in parts]


def open_for_resume(path: Path, *, changes: bool, trust: bool) -> tuple[Definition, Path]:
    """Open the sweep of a folder to resume it.

    Raises `ConfigError` for changes and `StoreError` for a folder that needs trust.
    """
    folder = SweepFolder.open(path)
    if changes:
        raise ConfigError(f"{path}: holds a sweep, which resumes with its own options: leave the others out")
    if not trust:
        check_cells(folder.definition, path)
    return folder.definition, path


def check_cells(definition: Definition, path: Path) -> None:
    """Raise `StoreError` if a sweep in a folder needs `--trust`.

    It needs it if it runs third-party code or writes outside the folder.
    """
    fixed = settings_outside_table(definition.table)
    keys = {key for choice in read_choices(definition.table, 0) for key in (*fixed, *choice.settings)}
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


def list_cells(definition: Definition, *, as_json: bool) -> str:
    """List the cells, and what each copies from another."""
    planned = {plan.cell.name: plan for plan in plan_cells(definition.cells())}
    ordered = [planned[cell.name] for cell in definition.cells()]
    if as_json:
        return json.dumps([plan_json(plan) for plan in ordered], indent=2)
    lines = [f"{plan.cell.title}{source_note(plan, planned)}" for plan in ordered]
    stacks = {plan.cell.stack for plan in ordered if plan.cell.stack is not None}
    if stacks:
        cells = sum(plan.cell.stack is not None and plan.shares == "nothing" for plan in ordered)
        lines.append(f"{cells} cells train their clients together, in {len(stacks)} stack{'s' * (len(stacks) > 1)}")
    lines += attack_lines((plan.cell.attack for plan in ordered), varied_keys(ordered))
    trained = sum(plan.shares == "nothing" for plan in ordered)
    lines.append(f"{len(ordered)} cells: {trained} trained, {len(ordered) - trained} without training")
    return "\n".join(lines)


def varied_keys(plans: Sequence[Plan]) -> set[str]:
    """Return every key that cells set."""
    return {key for plan in plans for key in plan.cell.columns}


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a cell as JSON."""
    return {
        "cell": plan.cell.name,
        "settings": {key: table_value(value) for key, value in plan.cell.columns.items()},
        "shares": plan.shares,
        "source": plan.source,
        "stack": plan.cell.stack,
        "attack": None if plan.cell.attack is None else str(plan.cell.attack),
    }


def source_note(plan: Plan, planned: Mapping[str, Plan]) -> str:
    """Name the cell whose training a cell copies.

    The text is empty if the cell trains itself.
    """
    return "" if plan.source is None else f"  <- the training of {planned[plan.source].cell.title}"


def print_result(path: Path, failures: Mapping[str, str], *, as_json: bool, quiet: bool) -> None:
    """Print the result of a sweep."""
    result = SweepResult(path)
    if as_json:
        echo(json.dumps(result_json(result, failures), indent=2))
    elif quiet:
        echo(str(path))
    else:
        print_tables(result, failures)


def result_json(result: SweepResult, failures: Mapping[str, str]) -> dict[str, Any]:
    """Return the sweep as JSON.

    It has every cell with its state, and the long table.
    """
    cells = [
        {
            "cell": one.cell.name,
            "settings": {key: table_value(value) for key, value in one.settings.items()},
            "state": one.note.state,
            "reason": failures.get(one.cell.name, ""),
            "seconds": one.note.seconds,
            "shares": one.note.shares,
        }
        for one in result.cells
    ]
    rows = [{key: json_number(value) for key, value in row.items()} for row in result.rows]
    return {"path": str(result.path), "cells": cells, "rows": rows}


def json_number(value: Any) -> Any:
    """Convert a value to JSON; infinite radii become texts, as in metrics.json."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value).replace("inf", "Infinity")


def print_tables(result: SweepResult, failures: Mapping[str, str]) -> None:
    """Print the comparison, the failed cells and the files' places."""
    from crfl_experiments.commands.comparison_table import comparison_table
    from crfl_experiments.comparison import compare_runs, runs_of_sweep

    console = terminal()
    runs = runs_of_sweep(result)
    if runs:
        console.print(comparison_table(compare_runs(runs), most=MOST_TABLES))
    for line in failure_lines(failures):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{len(runs)} of {len(result.cells)} cells are finished", markup=False)
    console.print(f"all numbers: {result.path / 'sweep.csv'}", markup=False, soft_wrap=True)
    console.print(f"more: crfl compare {result.path}, crfl open {result.path}", markup=False, soft_wrap=True)


def failure_lines(failures: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for every reason of failure.

    The line names the first cell with that reason.

    >>> list(failure_lines({"a": "no such rule", "b": "no such rule", "c": "killed"}))
    ['failed: a and 1 more: no such rule', 'failed: c: killed']
    """
    names: dict[str, list[str]] = {}
    for name, reason in failures.items():
        names.setdefault(reason, []).append(name)
    for reason, alike in names.items():
        more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        yield f"failed: {alike[0]}{more}: {reason}"
