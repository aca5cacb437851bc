"""Cells take training from each other, and every bit is that of a run on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crfl_experiments.sweeps.cell_runner import copy_training, has_same_rounds
from crfl_experiments.sweeps.cells import define
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.results import SweepResult
from crfl_experiments.sweeps.schedule import Plan, plan_cells
from crfl_experiments.sweeps.sweep_runner import run_sweep

from crfl_core import load, run
from crfl_core.runs.run_directory import RunDirectory
from tests.experiments.support import SMALL, different_files, small


def planned(config: dict[str, Any]) -> list[Plan]:
    definition = define(config)
    found = {plan.cell.name: plan for plan in plan_cells(definition.cells())}
    return [found[cell.name] for cell in definition.cells()]


def shares(config: dict[str, Any]) -> list[str]:
    return [plan.shares for plan in planned(config)]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("threat.clients", [[1], [1, 2]]),
        ("votes.models", [16, 32]),
        ("certificates", [["paper"], [{"type": "paper", "name": "other"}]]),
        ("evaluation.radii", [[0.1], [0.2]]),
        ("seeds.votes", [1, 2]),
        ("name", ["one", "other"]),
    ],
)
def test_what_is_asked_afterwards_needs_no_training(key: str, values: list[Any]) -> None:
    assert shares(small(grid={key: values})) == ["nothing", "training"]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("seed", [0, 1]),
        ("seeds.noise", [0, 1]),
        ("attack.scale", [10.0, 20.0]),
        ("server.noise_std", [0.01, 0.02]),
        ("aggregation", ["fedavg", "rfa"]),
        ("evaluation.every", [1, 2]),
        ("rounds", [3, 5]),
        ("certificates", [["paper"], ["pathwise-linear"]]),  # which puts a cap on updates in front of the aggregation
    ],
)
def test_what_changes_training_shares_nothing(key: str, values: list[Any]) -> None:
    assert shares(small(grid={key: values})) == ["nothing", "nothing"]


MEMORY = {"server": {"optimiser": "momentum"}, "aggregation": ["foolsgold"]}
"""A server that remembers earlier rounds in two places."""


@pytest.mark.parametrize("changed", [{}, MEMORY, {"groups": {"count": 2}, "certificates": ["group-vote"]}])
def test_cells_that_take_from_each_other_are_bit_for_bit_runs_of_their_own(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    table = {"grid": {"rounds": [3, 4], "threat.clients": [[1], [1, 2]]}}
    definition = define({**SMALL, **changed, "sweep": table})
    assert run_sweep(definition, tmp_path / "sweep", workers=1, quiet=True) == {}
    found = SweepResult(tmp_path / "sweep")
    assert [one.note.shares for one in found.cells] == ["nothing", "training", "nothing", "training"]
    for one in found.cells:
        alone = run(one.cell.config, out=tmp_path / "alone" / one.cell.name)
        assert different_files(RunDirectory(one.path), alone.directory) == []


def test_continuations_start_from_kept_models_of_the_other_cell(tmp_path: Path) -> None:
    votes = {"type": "tail", "continuations": 8, "selection": 4}
    table = {"grid": {"threat.clients": [[1], [1, 2]]}, "fixed": {"certificates": [votes]}}
    run_sweep(define(small(**table)), tmp_path / "sweep", workers=1, quiet=True)
    one = SweepResult(tmp_path / "sweep").cells[1]
    assert one.note.shares == "training"
    alone = run(one.cell.config, out=tmp_path / "alone")
    assert different_files(RunDirectory(one.path), alone.directory) == []


def test_what_was_not_kept_is_trained_again(tmp_path: Path) -> None:
    kept = {"type": "postprocess", "continuations": 8, "selection": 4}
    table = {"list": [{"certificates": ["paper"]}, {"certificates": [kept]}], "fixed": {"server.cap_updates": False}}
    assert shares(small(**table)) == ["nothing", "training"]
    run_sweep(define(small(**table)), tmp_path / "sweep", workers=1, quiet=True)
    one = SweepResult(tmp_path / "sweep").cells[1]
    assert (one.note.state, one.note.shares) == ("finished", "nothing")


def test_the_environment_says_who_played_the_rounds(tmp_path: Path) -> None:
    definition = define(small(grid={"votes.models": [8, 16]}))
    run_sweep(definition, tmp_path / "sweep", workers=1, quiet=True)
    taken = RunDirectory(SweepResult(tmp_path / "sweep").cells[1].path).read_json("environment.json")
    assert taken["from_round"] == 4
    assert [one["from_round"] for one in taken["earlier"]] == [1]


def test_runs_of_other_data_are_not_mixed(tmp_path: Path, finished_run: Path) -> None:
    source = load(finished_run)
    folder = SweepFolder(tmp_path)
    other = run(SMALL, overrides=["partition.clients=10"], out=folder.cell("other"))
    assert not has_same_rounds(other.ledger.facts, source.ledger.facts)
    assert not copy_training(other.path, source)


def test_a_damaged_source_is_done_without(tmp_path: Path) -> None:
    definition = define(small(grid={"votes.models": [8, 16]}))
    first, second = definition.cells()
    folder = SweepFolder.open_or_create(tmp_path / "sweep", definition)
    run(first.config, out=folder.cell(first.name))
    (folder.cell(first.name) / "clients.npz").write_bytes(b"")
    assert run_sweep(definition, folder.path, workers=1, quiet=True) == {}
    assert SweepResult(folder.path).cells[1].note.shares == "nothing"
    alone = run(second.config, out=tmp_path / "alone")
    assert different_files(RunDirectory(folder.cell(second.name)), alone.directory) == []


def test_a_damaged_cell_says_how_to_get_it_again(tmp_path: Path) -> None:
    definition = define(small())
    (cell,) = definition.cells()
    folder = SweepFolder.open_or_create(tmp_path / "sweep", definition)
    run(cell.config, out=folder.cell(cell.name))
    (folder.cell(cell.name) / "status.json").write_text("{}")
    failures = run_sweep(definition, folder.path, workers=1, quiet=True)
    assert "--force" not in failures[cell.name]


@pytest.mark.parametrize("together", [False, True])
def test_cells_of_several_lengths_are_bit_for_bit_runs_of_their_own(together: bool, tmp_path: Path) -> None:
    grid = {"rounds": [3, 4], "server.noise_std": [0.01, 0.02]}
    definition = define(small(grid=grid, together=together))
    assert run_sweep(definition, tmp_path / "sweep", workers=1, quiet=True) == {}
    for cell in definition.cells():
        alone = run(cell.config, out=tmp_path / cell.name)
        assert different_files(RunDirectory(tmp_path / "sweep" / "cells" / cell.name), alone.directory) == []
