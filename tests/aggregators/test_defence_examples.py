"""The composed defences in examples/defences: they run, and do what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

import crfl_core
from crfl_core import RunResult, load_config

DIRECTORY = Path(__file__).parents[2] / "examples" / "defences"
EXAMPLES = sorted(path.stem for path in DIRECTORY.glob("*.toml"))
FREE = 'aggregation=["fedavg"]'
HONEST = 'attack="none"'


def run(directory: Path, example: str, *overrides: str) -> RunResult:
    """An example with few votes."""
    out = directory / str(len(list(directory.iterdir())))
    small = ("votes.models=16", "engine.threads=1")
    return crfl_core.run(DIRECTORY / f"{example}.toml", overrides=[*small, *overrides], out=out)


def success(result: RunResult) -> float:
    """How often the backdoor works in the final model."""
    assert result.metrics.backdoor is not None
    return result.metrics.backdoor.success_rate


def test_every_example_has_a_name_of_its_own() -> None:
    names = [load_config(DIRECTORY / f"{example}.toml").config.name for example in EXAMPLES]
    assert len(set(names)) == len(EXAMPLES) == 10


def test_without_a_defence_the_backdoor_gets_in(tmp_path: Path) -> None:
    result = run(tmp_path, "base")
    assert success(result) > 0.9
    assert result.metrics.accuracy > 0.9


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example not in ("base", "capped-fedavg")])
def test_the_defence_keeps_the_backdoor_out_and_the_accuracy_up(tmp_path: Path, example: str) -> None:
    result = run(tmp_path, example)
    assert success(result) < 0.05
    assert result.metrics.accuracy > 0.9


def test_the_cap_changes_nothing_for_honest_clients_and_limits_one_attacker(tmp_path: Path) -> None:
    capped, free = (run(tmp_path, "capped-fedavg", HONEST, *chain).ledger for chain in ((), (FREE,)))
    assert [record.accuracy for record in capped.rounds] == [record.accuracy for record in free.rounds]
    defended, undefended = (run(tmp_path, "capped-fedavg", *chain) for chain in ((), (FREE,)))
    assert defended.metrics.accuracy > 0.8
    assert undefended.metrics.accuracy < 0.6
    assert success(defended) < 0.1
    assert success(undefended) > 0.9
