"""Groups of a federation do not notice what nodes of other groups do: their models are the same to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_flower.messages import RAW_FORMAT, TrainingOrder, array_from_tensor
from flwr.app import Array, ArrayRecord, Context, Message
from safetensors.torch import load_file

from crfl_core import RunResult
from tests.flower.support import Answer, experiment, federated, founded, honest
from tests.flower.test_replies import changed, raises, saying, sending

GROUPS = {
    "groups": {"count": 3},
    "certificates": ["group-vote"],
    "training": {"learning_rate": 0.02, "steps": 3, "batch_size": 1},
}
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {"model": {"type": "softmax", "bias": False}},
    "mlp": {"model": {"type": "mlp", "hidden": [5]}},
    "double": {"model": {"type": "mlp", "hidden": [5]}, "dtype": "float64"},
}


def filled(value: float) -> Answer:
    """A node whose update is one number everywhere."""
    return changed(
        sending(lambda order: ArrayRecord({"update": array_from_tensor(torch.full_like(order.starts, value))}))
    )


def unreadable(order: TrainingOrder) -> ArrayRecord:
    shape = tuple(order.starts.shape)
    return ArrayRecord({"update": Array(dtype="|O", shape=shape, stype=RAW_FORMAT, data=b"\x80")})


def late(message: Message, context: Context) -> Message | None:
    """A node that takes part in every other round."""
    return honest(message, context) if TrainingOrder.from_message(message).round % 2 else None


ATTACKS: dict[str, Answer] = {
    "silent": changed(lambda *_: None),
    "raises": raises,
    "not a number": filled(np.nan),
    "infinite": filled(np.inf),
    "huge": filled(1e38),
    "tiny": filled(1e-45),
    "unreadable": changed(sending(unreadable)),
    "old": changed(saying(round=0)),
    "late": late,
}


@pytest.mark.parametrize("model", MODELS)
def test_no_reply_changes_a_bit_of_another_group(tmp_path: Path, model: str) -> None:
    config = founded(tmp_path / "fed", experiment(tmp_path / "e", 6, **GROUPS, **MODELS[model]), deadline=0.05)
    clean = federated(config, [honest] * 6, tmp_path / "clean")
    groups = clean.ledger.facts.groups
    assert groups is not None
    attacked = next(number for number, members in enumerate(groups.members) if 0 in members)
    expected = models_of(clean)
    for name, attack in ATTACKS.items():
        found = models_of(federated(config, [attack, *[honest] * 5], tmp_path / name.replace(" ", "-")))
        same = [all(torch.equal(found[key][group], expected[key][group]) for key in expected) for group in range(3)]
        assert same == [group != attacked for group in range(3)], name


def models_of(run: RunResult) -> dict[str, torch.Tensor]:
    """The parameters of all groups, group by group."""
    return load_file(run.path / "model.safetensors")
