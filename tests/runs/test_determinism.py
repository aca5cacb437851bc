"""Determinism: the same config and seed give the same bits, and one seed changes one thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import crfl_core
from crfl_core import RunResult
from crfl_core.training import local_training
from tests.oracle import OTHER_CONFIG, contents, federation_of, played, tiny

MODELS = [{"type": "softmax"}, {"type": "mlp", "hidden": [8]}]


@pytest.mark.parametrize("model", MODELS, ids=["softmax", "mlp"])
def test_two_runs_of_a_config_are_equal_byte_by_byte(model: dict[str, Any], tmp_path: Path) -> None:
    one, other = (crfl_core.run(tiny(model=model, storage={}), out=tmp_path / name) for name in ("one", "other"))
    assert contents(one.path) == contents(other.path)


def test_the_state_of_global_generators_changes_nothing(tmp_path: Path) -> None:
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)
        results.append(crfl_core.run(tiny(model=MODELS[1]), out=tmp_path / str(seed)))
    assert contents(results[0].path) == contents(results[1].path)


def test_how_often_a_checkpoint_is_written_changes_nothing(tmp_path: Path) -> None:
    often, never = (
        crfl_core.run(tiny(storage={"checkpoint_seconds": seconds, "figures": []}), out=tmp_path / str(seconds))
        for seconds in (0, 1000)
    )
    different = [name for name, content in contents(often.path).items() if content != contents(never.path)[name]]
    assert different == OTHER_CONFIG


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """The run with which the others are compared."""
    return varied(tmp_path_factory.mktemp("plain") / "run")


def varied(path: Path, **seeds: int) -> RunResult:
    """Half of the clients take part, one attacker of three is drawn: every purpose has something to draw."""
    training = {"learning_rate": 0.2, "steps": 5, "batch_size": 16, "participation": 0.5}
    attack = tiny()["attack"] | {"clients": 3, "rounds": {"first": 1}}
    votes = {"models": 64, "noise_std": 0.3}
    return crfl_core.run(tiny(seeds=seeds, training=training, attack=attack, model=MODELS[1], votes=votes), out=path)


def participants(run: RunResult) -> list[list[int]]:
    return [run.ledger.clients.of_round(number).client.tolist() for number in range(1, 5)]


def votes(run: RunResult) -> bytes:
    (file,) = (run.path / "votes").iterdir()
    return file.read_bytes()


@pytest.mark.parametrize("purpose", ["data", "initial", "batches", "participation", "noise", "votes", "attack"])
def test_a_seed_of_its_own_changes_its_purpose_and_nothing_else(purpose: str, plain: RunResult, tmp_path: Path) -> None:
    """`aggregation` is missing because averaging draws nothing."""
    other = varied(tmp_path / "run", **{purpose: 77})
    same = {
        "data": plain.ledger.facts.samples == other.ledger.facts.samples,
        "participation": participants(plain) == participants(other),
        "attack": plain.ledger.facts.attackers == other.ledger.facts.attackers,
        "votes": votes(plain) == votes(other),
        "model": torch.equal(plain.parameters, other.parameters),
    }
    expected = {
        "data": purpose != "data",
        "participation": purpose != "participation",
        "attack": purpose != "attack",
        "votes": False,
        "model": purpose == "votes",
    }
    assert same == expected


def test_another_seed_for_noise_leaves_the_batches_alone() -> None:
    """The first round starts from the same model and trains on the same batches, so only the noise differs."""
    plain, other = (federation_of(tiny(seeds=seeds)) for seeds in ({}, {"noise": 77}))
    plans = [
        local_training.draw_batches(federation.data.partition, clients, clients.steps, 3, federation.streams)
        for federation in (plain, other)
        for clients in (federation.participation.participants(3),)
    ]
    np.testing.assert_array_equal(plans[0].rows, plans[1].rows)
    first, second = (played(federation)[0] for federation in (plain, other))
    assert first.record == second.record
    np.testing.assert_array_equal(first.clients.submitted_norm, second.clients.submitted_norm)
    assert not torch.equal(first.parameters, second.parameters)


def test_another_seed_for_batches_leaves_the_noise_alone() -> None:
    outcomes = [played(federation_of(tiny(seeds=seeds, dtype="float64")))[0] for seeds in ({}, {"batches": 77})]
    noises = [outcome.parameters - outcome.aggregate for outcome in outcomes]
    assert not torch.equal(outcomes[0].aggregate, outcomes[1].aggregate)
    torch.testing.assert_close(noises[0], noises[1], rtol=1e-10, atol=1e-12)


def test_the_seed_of_a_run_moves_everything(plain: RunResult, tmp_path: Path) -> None:
    other = crfl_core.run(plain.config, overrides=["seed=2"], out=tmp_path / "run")
    assert plain.ledger.facts.samples != other.ledger.facts.samples
    assert participants(plain) != participants(other)
    assert not torch.equal(plain.parameters, other.parameters)
