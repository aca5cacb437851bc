"""Rules that only weigh: the core forms the sum, reports the same weights and passes state and notes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import crfl_core
from crfl_core.extend import (
    ClientUpdates,
    PluginError,
    PluginFailure,
    Registry,
    RuleResult,
    State,
    WeightedRule,
    Weighting,
)
from crfl_core.testing import check_plugin
from tests.oracle import federation_of, played, tiny


class Shorter(WeightedRule):
    """Mean of the updates that are not longer than the median one."""

    def weigh(self, updates: ClientUpdates, state: State) -> torch.Tensor:
        lengths = torch.linalg.vector_norm(updates.values.double(), dim=1)
        chosen: torch.Tensor = (lengths <= lengths.median()).double()
        weights: torch.Tensor = chosen / chosen.sum()
        return weights


class Arrays(Shorter):
    """The same, in NumPy."""

    def weigh(self, updates: ClientUpdates, state: State) -> Any:
        return super().weigh(updates, state).numpy()


class Counting(Shorter):
    """The same, and counts its rounds."""

    def weigh(self, updates: ClientUpdates, state: State) -> Any:
        rounds = state.get("rounds", torch.zeros(1)) + 1
        return Weighting(super().weigh(updates, state), {"rounds": rounds}, {"rounds": float(rounds)})


class Few(Shorter):
    """Forgets a client."""

    def weigh(self, updates: ClientUpdates, state: State) -> Any:
        return super().weigh(updates, state)[1:]


PLUGINS = {one.__name__.lower(): one for one in (Shorter, Arrays, Counting, Few)}


def test_the_core_forms_the_sum_and_records_the_same_weights() -> None:
    federation = federation_of(tiny(aggregation="shorter", attack="none"), PLUGINS)
    for line in played(federation):
        (result,) = line.outcome.results
        assert result.reported is not None
        np.testing.assert_allclose(line.clients.weight.sum(), 1.0)
        assert set(np.round(line.clients.weight, 12)) == {0.0, 0.25}
        assert line.record.depends == "all"


def test_arrays_state_and_notes_are_passed_on() -> None:
    models = []
    for name in ("shorter", "arrays", "counting"):
        lines = played(federation_of(tiny(aggregation=name, attack="none"), PLUGINS))
        models.append(lines[-1].aggregate)
        if name == "counting":
            assert [line.record.notes["rounds"] for line in lines] == [1.0, 2.0, 3.0, 4.0]
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])


def test_weights_of_another_shape_are_refused_by_name() -> None:
    with pytest.raises(PluginFailure, match=r"weigh\(\) must return a weight for each of 8 updates"):
        played(federation_of(tiny(aggregation="few", attack="none"), PLUGINS))


def test_such_a_rule_keeps_its_promises() -> None:
    assert [result.message for result in check_plugin(Shorter()) if result.status == "failed"] == []


def test_the_sum_is_not_for_rules_to_form() -> None:
    with pytest.raises(PluginError, match=r"replaces WeightedRule\.aggregate, which is final"):

        class Both(Shorter):
            """Would like to do both."""

            def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:  # type: ignore[misc]
                return super().aggregate(updates, state)


def shorter(updates: ClientUpdates) -> torch.Tensor:
    """Mean of the updates that are not longer than the median one."""
    return Shorter().weigh(updates, {})


def test_a_plain_function_is_a_rule(tmp_path: Path) -> None:
    config = tiny(aggregation="short", attack="none", certificates=[])
    found = crfl_core.run(config, out=tmp_path / "function", plugins={"short": shorter})
    expected = crfl_core.run(config, out=tmp_path / "class", plugins={"short": Shorter})
    assert torch.equal(found.parameters, expected.parameters)
    assert found.config.aggregation[0].configured_as == "short"
    again = crfl_core.load(tmp_path / "function", plugins={"short": shorter})
    assert torch.equal(again.parameters, found.parameters)
    assert Registry({"short": shorter}).load("aggregator", "short").__doc__ == shorter.__doc__


@pytest.mark.parametrize("plugin", [Shorter(), "shorter", lambda: None, lambda updates, state: None, int])
def test_what_is_neither_a_class_nor_a_function_of_updates_is_refused(plugin: Any) -> None:
    with pytest.raises(PluginError, match="'mine' must be a class of a plugin, or a function that takes the updates"):
        Registry({"mine": plugin})
