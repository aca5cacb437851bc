"""A federation trains the same model, with the same ledger and certificates, as one process does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crfl_core
from tests.flower.support import experiment, federated, founded, honest

SAME = ("model.safetensors", "rounds.jsonl", "clients.npz")


def same(one: Path, other: Path, certificate: str = "pathwise-linear") -> list[str]:
    """The files that differ."""
    names = (*SAME, f"certificates/{certificate}.csv")
    return [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training": {"learning_rate": 0.02, "steps": 3, "batch_size": 8, "weight_decay": 0.1, "participation": 0.5}},
        {"dtype": "float64", "training": {"learning_rate": {"per_client": [0.01, 0.02, 0.03, 0.02]}, "epochs": 2}},
    ],
    ids=["plain", "some of the clients", "rates of their own"],
)
def test_nodes_train_as_one_process_does(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = experiment(tmp_path / "e", **changes)
    local = crfl_core.run(config, out=tmp_path / "local")
    fed = federated(founded(tmp_path / "fed", config), [honest] * 4, tmp_path / "federated")
    assert same(local.path, fed.path) == []
    ours, theirs = (json.loads((run.path / "ledger.json").read_text()) for run in (local, fed))
    assert {key for key in ours if ours[key] != theirs[key]} == {"engine", "partition_digest", "measured"}


def test_nodes_balance_classes_and_are_pulled_toward_the_start_as_one_process_is(tmp_path: Path) -> None:
    """A node weighs its own samples, and an order brings the model toward which decay pulls."""
    changes: dict[str, Any] = {
        "groups": {"count": 2},
        "certificates": ["group-vote"],
        "model": {"type": "softmax", "start": "random"},
        "training": {
            "learning_rate": 0.02,
            "steps": 3,
            "batch_size": 8,
            "weight_decay": 0.5,
            "class_balance": True,
            "toward_start": True,
        },
    }
    config = experiment(tmp_path / "e", **changes)
    local = crfl_core.run(config, out=tmp_path / "local")
    fed = federated(founded(tmp_path / "fed", config), [honest] * 4, tmp_path / "federated")
    assert same(local.path, fed.path, "group-vote") == []
    plain = changes | {"training": {"learning_rate": 0.02, "steps": 3, "batch_size": 8, "weight_decay": 0.5}}
    other = crfl_core.run(experiment(tmp_path / "p", **plain), out=tmp_path / "plain")
    assert "model.safetensors" in same(local.path, other.path, "group-vote")


def test_questions_can_be_put_to_a_federated_run(tmp_path: Path) -> None:
    fed = federated(founded(tmp_path / "fed", experiment(tmp_path / "e")), [honest] * 4, tmp_path / "federated")
    asked = crfl_core.certify(fed, overrides=["threat.clients=2"])
    assert asked.threat.clients == 2
    prediction = crfl_core.predict(fed, np.full((1, 64), 0.5))
    assert prediction.classes.shape == (1,)
