"""Every rule and stage in a run: selected by name in a config, recorded in the ledger, resumed with its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crfl_core
from crfl_core.extend import RoundRecord, State, Tracker, hookimpl
from tests.aggregators.support import RULES, STAGES
from tests.oracle import contents, tiny

CHAINS: dict[str, list[dict[str, Any]]] = {
    **{name: [{"type": name} | rule.model_dump()] for name, rule in RULES.items()},
    **{name: [{"type": name} | stage.model_dump(), {"type": "fedavg"}] for name, stage in STAGES.items()},
}


def config(name: str, **changes: Any) -> dict[str, Any]:
    """Ten clients, of whom eight take part in a round; one attacks."""
    settings = tiny(aggregation=CHAINS[name], certificates=[], storage={"checkpoint_seconds": 0})
    settings["partition"] = {"type": "dirichlet", "clients": 10, "alpha": 0.7}
    settings["training"] = settings["training"] | {"participation": 0.8, "weight_decay": 0.01}
    settings["attack"] = settings["attack"] | {"clients": 3}
    settings["reserve"] = {"root": 30} if name == "fltrust" else {}
    return settings | changes


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CHAINS)
def test_a_config_selects_it_by_name(name: str, dtype: str, tmp_path: Path) -> None:
    ledger = crfl_core.run(config(name, dtype=dtype), out=tmp_path / "run").ledger
    for number in range(1, 5):
        rows = ledger.clients.of_round(number)
        assert len(rows) == 8
        assert np.isfinite(rows.weight).all()
        assert (rows.weight <= rows.weight_bound + 1e-9).all()
        assert 0.0 <= rows.weight.sum() <= 8.0 or name == "fltrust"


def test_the_ledger_says_on_what_weights_depend(tmp_path: Path) -> None:
    """A norm bound beside weight decay promises nothing, so it counts like a rule that looks at all clients."""
    training = {"learning_rate": 0.2, "steps": 5, "batch_size": 16}
    found = {
        name: crfl_core.run(config(name, training=training, rounds=2), out=tmp_path / name).ledger.round(2).depends
        for name in CHAINS
    }
    assert {name for name, depends in found.items() if depends == "fixed"} == {"fedavg", "weak-noise", "bucketing"}
    assert {name for name, depends in found.items() if depends == "own"} == {"norm-bound", "update-cap"}
    decayed = crfl_core.run(config("norm-bound"), out=tmp_path / "decayed").ledger
    assert decayed.round(2).depends == "all"


def test_rfa_leaves_in_the_ledger_how_good_its_answer_is(tmp_path: Path) -> None:
    notes = crfl_core.run(config("rfa"), out=tmp_path / "run").ledger.round(3).notes
    assert set(notes) == {"objective", "optimality_gap", "iterations", "nearest_half"}
    assert 0.0 <= notes["optimality_gap"] <= notes["objective"]
    assert 0.0 < notes["nearest_half"] <= 2.1 * notes["objective"]


REMEMBERING_OR_DRAWING = ["foolsgold", "centered-clipping", "baffle", "bucketing", "weak-noise", "fltrust", "flame"]


@pytest.mark.parametrize("name", REMEMBERING_OR_DRAWING)
def test_a_resumed_run_is_the_same_to_the_last_bit(name: str, tmp_path: Path) -> None:
    """What a step remembers is in the checkpoint, and what it draws depends on the round alone."""
    whole = crfl_core.run(config(name), out=tmp_path / "whole")
    stopped: list[int] = []

    class Stop(Tracker):
        @hookimpl
        def crfl_round_finished(self, record: RoundRecord) -> None:
            if record.round == 3 and not stopped:
                stopped.append(record.round)
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config(name), out=tmp_path / "halves", trackers=[Stop()])
    assert contents(crfl_core.resume(tmp_path / "halves").path) == contents(whole.path)


def test_only_a_step_of_the_aggregation_is_asked_with_a_state(tmp_path: Path) -> None:
    states: list[State] = []

    class Watch(Tracker):
        @hookimpl
        def crfl_accept_round(self, state: State) -> None:
            states.append(state)

    settings = config("foolsgold", trackers=["watch"])
    crfl_core.run(settings, out=tmp_path / "run", plugins={"watch": Watch})
    assert states == [{}] * 4
