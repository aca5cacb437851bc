"""Lists and comparisons of runs that have little in common stay readable in any terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from crfl_experiments.commands.comparison_table import comparison_table
from crfl_experiments.comparison import Comparison, Point, Run, Statistic
from crfl_experiments.run_list import RunSummary, list_table
from rich.console import Console, RenderableType

MANY = {f"part.setting_{number}": number for number in range(30)}


def lines(shown: RenderableType, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def listed(settings: dict[str, Any]) -> list[RunSummary]:
    names = ("demo/certified", "a-name-that-is-much-longer-than-others")
    return [RunSummary(name, "finished", 700, 2_000_000, 0.9, 0.01, 0.8, "tail", settings) for name in names]


@pytest.mark.parametrize("width", [60, 80, 110])
def test_many_settings_leave_every_number_whole(width: int) -> None:
    shown = lines(list_table(listed(MANY), width), width)
    assert all(len(line) <= width for line in shown)
    for word in ("finished", "0.900", "0.010", "0.800"):
        assert sum(word in line for line in shown) == 2
    assert "accuracy" in shown[1]
    assert "more: see --json" in " ".join(shown)


def test_settings_are_worth_more_than_size_and_age() -> None:
    few = {"attack.scale": 10.0, "aggregation.0.type": "fedavg"}
    wide = " ".join(lines(list_table(listed(few), 110), 110))
    assert all(word in wide for word in ("age", "size", "scale", "aggregation"))
    narrow = " ".join(lines(list_table(listed(few), 80), 80))
    assert "size" not in narrow
    assert "scale" in narrow
    assert "also differ" not in narrow


def test_what_a_sweep_varies_fits_eighty_columns() -> None:
    settings = {"seed": 0, "aggregation.1.type": "fedavg", "attack.scale": 10.0}
    shown = " ".join(lines(list_table(listed(settings), 80), 80))
    assert all(word in shown for word in ("seed", "aggregation", "scale", "certified"))
    assert "finished" not in shown
    assert "also differ" not in shown


def test_runs_that_differ_in_many_settings_are_called_by_their_names() -> None:
    runs = [Run(f"runs/{name}", MANY, (), SimpleNamespace()) for name in ("one", "other")]  # type: ignore[arg-type]
    points = tuple(Point("", MANY, (run,), {"accuracy": Statistic.of([0.5])}, {}) for run in runs)
    comparison = Comparison(tuple(MANY), ("accuracy",), ("accuracy",), points, {"paper": "not a proof"})
    shown = lines(comparison_table(comparison), 60)
    assert any(line.split()[:2] == ["runs/one", "0.5000"] for line in shown)
    assert "they differ in 30 settings: see --json" in shown
    assert shown[-1] == "paper: not a proof"
