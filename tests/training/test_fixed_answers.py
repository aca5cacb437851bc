"""Steps that see no update answer as they did before round 1, whatever happens in the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import PrivateAttr
from torch import Tensor

import crfl_core
from crfl_core.extend import (
    CapStage,
    Clients,
    FixedRate,
    FixedStage,
    LinearAggregator,
    Mixing,
    PluginFailure,
    RoundFacts,
    RoundRecord,
    Tracker,
    hookimpl,
)
from tests.oracle import tiny

HEARD: list[float] = []
"""What a tracker and steps of the server share behind the back of the core."""


class Telling(Tracker):
    """Says how long the model became."""

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        HEARD.append(record.norm_before_clip)


class Hearing(LinearAggregator):
    """Weighs the first client by what it has heard."""

    def weights(self, clients: Clients) -> Tensor:
        weights = torch.full((len(clients),), 1.0 / len(clients), dtype=torch.float64)
        weights[0] /= 1.0 + sum(HEARD)
        return weights


class HearingCap(CapStage):
    def caps(self, clients: Clients) -> Tensor:
        return torch.full((len(clients),), 1.0 + sum(HEARD), dtype=torch.float64)


class HearingStage(FixedStage):
    def mixing(self, facts: RoundFacts) -> Mixing:
        return Mixing(torch.full((len(facts.clients),), 1.0 / (1.0 + sum(HEARD))))


class HearingRate(FixedRate):
    def rate(self, facts: RoundFacts) -> float:
        return 1.0 / (1.0 + sum(HEARD))


class Drawing(LinearAggregator):
    """Draws its weights from a source without a key."""

    _source: Any = PrivateAttr(default_factory=lambda: torch.Generator().manual_seed(1))

    def weights(self, clients: Clients) -> Tensor:
        drawn = torch.rand(len(clients), generator=self._source, dtype=torch.float64)
        return drawn / drawn.sum()


@pytest.fixture(autouse=True)
def _silence() -> None:
    HEARD.clear()


PLUGINS: dict[str, Any] = {
    "telling": Telling,
    "hearing": Hearing,
    "hearing-cap": HearingCap,
    "hearing-stage": HearingStage,
    "hearing-rate": HearingRate,
    "drawing": Drawing,
}
PARTICIPATION = {"learning_rate": 0.2, "steps": 2, "batch_size": 16, "participation": 0.5}


CHAINS: list[dict[str, Any]] = [
    {"aggregation": ["hearing"]},
    {"aggregation": ["hearing-cap", "fedavg"]},
    {"aggregation": ["hearing-stage", "fedavg"]},
    {"aggregation": ["hearing-cap", "median"]},
    {"aggregation": ["hearing"], "server": {"bad_update": "drop"}},
    {"server": {"optimiser": "hearing-rate"}},
    {"aggregation": ["hearing"], "training": PARTICIPATION},
]


@pytest.mark.parametrize("changes", CHAINS, ids=str)
def test_what_a_step_hears_in_the_rounds_changes_none_of_its_answers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = tiny(rounds=3, attack="none", certificates=["pathwise-linear"]) | changes
    deaf = crfl_core.run(config, out=tmp_path / "deaf", plugins=PLUGINS)
    HEARD.clear()
    run = crfl_core.run(config | {"trackers": ["telling"]}, out=tmp_path / "run", plugins=PLUGINS)
    assert len(HEARD) == 3
    assert torch.equal(run.parameters, deaf.parameters)


@pytest.mark.parametrize("changes", CHAINS, ids=str)
def test_an_answer_that_is_not_kept_and_changes_ends_the_run(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crfl_core.training.groups.KEPT_NUMBERS", 0)
    config = tiny(rounds=3, trackers=["telling"], attack="none", certificates=["pathwise-linear"]) | changes
    with pytest.raises(PluginFailure, match="has answered the same question differently before"):
        crfl_core.run(config, out=tmp_path / "run", plugins=PLUGINS)


def test_weights_without_a_key_are_those_of_before_round_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(rounds=3, aggregation=["drawing"], attack="none", certificates=["pathwise-linear"])
    clients = crfl_core.run(config, out=tmp_path / "kept", plugins=PLUGINS).ledger.clients
    assert all((clients.of_round(number).weight_bound == clients.of_round(1).weight_bound).all() for number in (2, 3))
    monkeypatch.setattr("crfl_core.training.groups.KEPT_NUMBERS", 0)
    with pytest.raises(PluginFailure, match="has answered the same question differently before"):
        crfl_core.run(config, out=tmp_path / "run", plugins=PLUGINS)
