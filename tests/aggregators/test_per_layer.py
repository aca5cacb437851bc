"""Any rule per layer: what it chooses, the weights it reports, what it remembers, how far it can be moved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_aggregators.centered_clipping import CenteredClipping
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.krum import Krum
from crfl_aggregators.per_layer import PerLayer
from crfl_aggregators.rfa import Rfa
from crfl_aggregators.trimmed_mean import Median

import crfl_core
from crfl_core.errors import ConfigError
from crfl_core.extend import ClientUpdates, Layout, Registry
from crfl_core.training import aggregator_contract as answers
from tests.aggregators import oracles
from tests.aggregators.support import gaussian, updates_of
from tests.oracle import federation_of, tiny

LAYOUT = Layout((("weight", (3, 4)), ("bias", (3,)), ("scale", ())))


def layered(clients: int = 9, seed: int = 0) -> ClientUpdates:
    updates = updates_of(gaussian(clients, LAYOUT.size, seed))
    return replace(updates, round=replace(updates.round, layout=LAYOUT))


@pytest.mark.parametrize("seed", range(4))
def test_krum_chooses_in_every_layer_by_itself(seed: int) -> None:
    updates = layered(seed=seed)
    values = updates.values.numpy()
    found = PerLayer(rule=Krum(f=2)).aggregate(updates, {})
    answers.check_weights(PerLayer(rule=Krum(f=2)), found, updates.values)
    expected = np.concatenate([oracles.krum(part, 2) for part in (values[:, :12], values[:, 12:15], values[:, 15:])])
    np.testing.assert_allclose(found.update, expected, atol=1e-12)
    assert found.full_weights is not None
    full = found.full_weights()
    torch.testing.assert_close(full.sum(0), torch.ones(16, dtype=torch.float64))
    torch.testing.assert_close(found.weights, full.amax(1))
    assert [len(torch.unique(full[:, columns], dim=1).T) for columns in (slice(12), slice(12, 15))] == [1, 1]


def test_rules_that_treat_coordinates_or_clients_alike_are_the_same_per_layer() -> None:
    updates = layered()
    for rule in (Median(), FedAvg()):
        whole, parts = rule.aggregate(updates, {}), PerLayer(rule=rule).aggregate(updates, {})
        torch.testing.assert_close(parts.update, whole.update)
        torch.testing.assert_close(parts.weights, whole.weights)


def test_each_layer_has_a_memory_of_its_own() -> None:
    rule = CenteredClipping(radius=0.5, iterations=1, memory=True)
    first, second = layered(seed=1), layered(seed=2)
    whole = PerLayer(rule=rule)
    state = whole.aggregate(first, {}).state
    bias = [updates_of(one.values[:, 12:15]) for one in (first, second)]
    alone = rule.aggregate(bias[1], rule.aggregate(bias[0], {}).state).update
    torch.testing.assert_close(whole.aggregate(second, state).update[12:15], alone)


def test_notes_say_of_which_layer_they_are() -> None:
    notes = PerLayer(rule=Rfa()).aggregate(layered(), {}).notes
    assert {"weight.iterations", "bias.iterations", "scale.nearest_half"} <= set(notes)


def test_no_attack_moves_it_farther_than_the_layers_together_admit() -> None:
    rule, clean = PerLayer(rule=Krum(f=2)), layered()
    bound = float(clean.values.norm(dim=1).max())
    before = rule.aggregate(clean, {})
    for push in (-100.0, -1.0, 0.3, 5.0):
        values = clean.values.clone()
        values[:2] = push * before.update
        after = rule.aggregate(replace(clean, values=values), {})
        admitted = rule.breakdown(clean.round.clients, after, bound)
        assert admitted is not None
        assert len(admitted) == 3
        assert float((after.update - before.update).norm()) <= admitted[2]
    whole = Krum(f=2).breakdown(clean.round.clients, before, bound)
    assert admitted == pytest.approx(np.sqrt(3) * whole)
    assert PerLayer(rule=Median()).breakdown(clean.round.clients, before, bound) is None


def test_a_config_names_the_rule_inside_and_its_options_are_checked_there(tmp_path: Path) -> None:
    config: dict[str, Any] = tiny(aggregation={"type": "per-layer", "rule": {"type": "krum", "f": 2}}, rounds=2)
    result = crfl_core.run(config, out=tmp_path / "run")
    assert result.ledger.round(2).depends == "all"
    assert (result.config.aggregation[0].rule.f) == 2  # type: ignore[attr-defined]
    for rule, message in (
        ({"type": "krum", "g": 2}, "aggregation.0.rule.g"),
        ({"type": "krum", "f": 3}, "krum needs clients >= 2 f \\+ 3"),
        ("bucketing", "'bucketing' is a stage: name a rule such as krum"),
        ("krun", "did you mean 'krum'"),
    ):
        with pytest.raises(ConfigError, match=message):
            federation_of(config | {"aggregation": {"type": "per-layer", "rule": rule}})


def test_the_record_of_a_run_names_the_plugin_inside() -> None:
    config = federation_of(tiny(aggregation=PerLayer(rule=Krum(f=1)))).config
    assert ("aggregator", "krum") in [(kind, plugin.configured_as) for kind, plugin in config.used_plugins()]
    assert Registry().load("aggregator", "per-layer") is PerLayer
