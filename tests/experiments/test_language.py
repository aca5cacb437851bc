"""A `[sweep]` table means the cells that it looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crfl_experiments.sweeps.cells import Cell, define
from crfl_experiments.sweeps.sweep_table import read_choices
from crfl_experiments.sweeps.values import parse_value, split_values, toml_inline

from crfl_core.errors import ConfigError
from tests.experiments.support import small


def settings(**table: Any) -> list[dict[str, Any]]:
    return [choice.settings for choice in read_choices(table, first_seed=0)]


def cells(**table: Any) -> list[Cell]:
    return define(small(**table)).cells()


def test_a_grid_multiplies_and_its_last_key_varies_first() -> None:
    assert settings(grid={"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


def test_dotted_keys_and_tables_are_the_same() -> None:
    assert settings(grid={"a": {"b": {"c": [1, 2]}}}) == settings(grid={"a.b.c": [1, 2]})


def test_zipped_keys_change_together_and_several_zips_multiply() -> None:
    assert settings(zip={"a": [1, 2], "b": [3, 4]}) == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
    assert len(settings(zip=[{"a": [1, 2], "b": [3, 4]}, {"c": [1, 2, 3]}])) == 6


def test_a_list_is_one_after_the_other_and_may_hold_tables_of_its_own() -> None:
    found = settings(list=[{"a": 1}, {"a": 2, "grid": {"b": [1, 2]}, "list": [{"c": {"d": 1}}, {"c.d": 2}]}])
    assert found[0] == {"a": 1}
    assert found[1:] == [{"a": 2, "b": b, "c.d": d} for b in (1, 2) for d in (1, 2)]


def test_seeds_are_counted_from_that_of_the_config() -> None:
    assert [choice.settings["seed"] for choice in read_choices({"seeds": 3}, first_seed=7)] == [7, 8, 9]
    assert settings(seeds=[4, 2], grid={"a": [1, 2]})[:2] == [{"a": 1, "seed": 4}, {"a": 1, "seed": 2}]


def test_without_anything_there_is_one_cell() -> None:
    (cell,) = cells()
    assert (cell.settings, cell.config.rounds) == ({}, 3)


def test_a_plugin_stays_whole_in_a_list() -> None:
    assert settings(list=[{"attack": {"scale": 2.0, "type": "dba"}}]) == [{"attack": {"scale": 2.0, "type": "dba"}}]


def test_linked_keys_follow_what_is_chosen_and_what_the_config_says() -> None:
    found = cells(
        grid={"partition.clients": [10, 20], "let.factor": [2, 4]},
        linked={"training.steps": "60 // partition.clients", "votes.noise_std": "server.noise_std * let.factor"},
    )
    assert [cell.config.training.steps for cell in found] == [6, 6, 3, 3]
    assert [cell.config.votes.noise_std for cell in found] == [0.02, 0.04, 0.02, 0.04]
    assert found[0].columns == {
        "partition.clients": 10,
        "let.factor": 2,
        "training.steps": 6,
        "votes.noise_std": 0.02,
    }


def test_links_may_follow_links_and_those_of_a_list_count_before_those_around_it() -> None:
    linked = {"training.batch_size": "2 * training.steps", "training.steps": "rounds"}
    found = cells(linked=linked, list=[{"rounds": 4}, {"rounds": 5, "linked": {"training.steps": "rounds + 1"}}])
    assert [(cell.config.training.steps, cell.config.training.batch_size) for cell in found] == [(4, 8), (6, 12)]


def test_what_is_fixed_is_no_column_and_overrides_count_before_it() -> None:
    (cell,) = define(small(fixed={"rounds": 4, "seed": 1}), overrides=["rounds=5"]).cells()
    assert (cell.config.rounds, cell.config.seed, cell.columns) == (5, 1, {})


def test_a_file_extends_another_and_loses_its_sweep_table_when_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('name = "based"\nrounds = 2\n[sweep]\nseeds = 3\n')
    (tmp_path / "sweep.toml").write_text('extends = "base.toml"\n[sweep.grid]\nserver.noise_std = [0.1, 0.2]\n')
    found = define(tmp_path / "sweep.toml").cells()
    assert len(found) == 6
    assert {cell.config.name for cell in found} == {"based"}


def test_names_of_cells_are_unique_and_can_be_directories() -> None:
    found = cells(grid={"aggregation": ["fedavg", {"type": "krum", "f": 1}], "threat.clients": [[1], [1, 2]]}, seeds=2)
    names = [cell.name for cell in found]
    assert len(set(names)) == 8
    assert all(name.replace("-", "").replace("_", "").replace(".", "").isalnum() for name in names)
    assert names[0].startswith("aggregation-fedavg_seed-0_clients-1_")


def test_names_of_cells_do_not_depend_on_the_order_of_keys() -> None:
    """Writing a sweep to a file changes it: tables come behind values."""
    one = cells(grid={"attack": ["none"], "rounds": [2, 3]})
    other = cells(grid={"rounds": [2, 3], "attack": ["none"]})
    assert {cell.name for cell in one} == {cell.name for cell in other}


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"gird": {}}, "sweep.gird: there is no such part of a sweep: did you mean 'grid'?"),
        ({"grid": {"rounds": []}}, "sweep.grid: rounds = []: has no values"),
        ({"grid": {"rounds": 5}}, "sweep.grid: rounds = 5: needs a list of values"),
        ({"grid": [1]}, "sweep.grid: must be a table of keys"),
        ({"zip": {"rounds": [1, 2], "seed": [1]}}, "all keys need as many values: rounds has 2, seed has 1"),
        ({"list": []}, "sweep.list: must be a list of tables"),
        ({"list": [{"rounds": 2, "seeds": 3}]}, "sweep.list.0.seeds: is for all cells: write sweep.seeds"),
        ({"seeds": 0}, "sweep.seeds: found 0"),
        ({"seeds": True}, "sweep.seeds: found True"),
        ({"fixed": 3}, "sweep.fixed: must be a table"),
        ({"linked": {"rounds": [1]}}, "sweep.linked: rounds = [1]: write the expression as a text"),
        ({"linked": {"rounds": "seed", "seed": "rounds"}}, "in a circle: rounds -> seed -> rounds"),
        ({"linked": {"rounds": "sed + 1"}}, "sed is not set in this config: did you mean 'seed'?"),
        ({"linked": {"rounds": "seed + 1"}, "grid": {"rounds": [1]}}, "rounds is varied as well"),
        ({"grid": {"rounds": [1]}, "zip": {"rounds": [2]}}, "rounds is set twice in one cell"),
        ({"grid": {"rounds": list(range(1, 201)), "seed": list(range(200))}}, "has 40,000 cells, at most 10,000"),
        ({"grid": {"atack.scale": [1]}}, "the cell with atack.scale=1: atack"),
        ({"grid": {"attack.scal": [1]}}, "the cell with attack.scal=1: attack.scal = 1: unknown"),
        ({"grid": {"aggregation": ["fedavgg"]}}, "did you mean 'fedavg'"),
        ({"grid": {"rounds": ["many"]}}, "must be an integer"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_key_and_remedy(table: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cells(**table)
    assert str(caught.value).startswith("the config: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("value", [1, 0.5, "a, b", 'with "quotes"', [1, [2, "x"]], {"type": "krum", "f": 1}, True])
def test_values_survive_as_text(value: Any) -> None:
    assert parse_value(toml_inline(value)) == value
    assert [parse_value(part) for part in split_values(f"{toml_inline(value)}, 2")] == [value, 2]
