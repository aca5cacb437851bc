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
    TrainingTask,
    WeightedRule,
    Weighting,
)
from crfl_core.testing import check_plugin
from crfl_core.training.federation import Federation
from crfl_core.training.local_training import LocalTraining
from tests.oracle import Played, federation_of, played, tiny


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


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_robust_learning_rate_turns_coordinates_without_a_majority(weighting: str) -> None:
    """Equation 3 of Ozdayi et al. (2021), one coordinate after the other."""
    rule = {"type": "robust-learning-rate", "threshold": 4, "weighting": weighting}
    federation = federation_of(tiny(dtype="float64", aggregation=rule, attack="none"))
    turned = 0
    for line in played(federation):
        (result,) = line.outcome.results
        values = trained(federation, line).numpy()
        samples = line.outcome.plan.clients.samples.astype(float)
        shares = samples / samples.sum() if weighting == "samples" else np.full(len(samples), 1 / len(samples))
        expected = []
        for column in values.T:
            votes = abs(sum(int(np.sign(value)) for value in column))
            expected.append((1 if votes >= 4 else -1) * float(shares @ column))
            turned += votes < 4
        np.testing.assert_allclose(result.update.numpy(), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(line.clients.weight, shares)
    assert turned > 0


def trained(federation: Federation, line: Played) -> torch.Tensor:
    """The updates of a round's participants, trained once more, (n, P)."""
    start = line.outcome.before.models[:, None]
    task = TrainingTask(line.outcome.plan.number, start, line.outcome.plan.clients, attacked=True)
    return LocalTraining(federation).train(task, slice(0, len(task.clients))).updates[0]


def test_sound_certificates_about_weights_refuse_signed_ones(tmp_path: Path) -> None:
    certificates = ["pathwise-linear", "postprocess", {"type": "tail", "continuations": 10}]
    ball = {"type": "softmax", "features": {"type": "unit-ball", "radius": 2.0}}
    rule = {"type": "robust-learning-rate", "threshold": 3}
    config = tiny(dtype="float64", model=ball, aggregation=rule, certificates=certificates)
    found = crfl_core.run(config, out=tmp_path / "run")
    assert set(found.metrics.refused) == {"pathwise-linear", "postprocess", "tail"}
    assert found.metrics.curves == ()
    voted = crfl_core.run(config | {"certificates": ["group-vote"], "groups": {"count": 2}}, out=tmp_path / "voted")
    assert voted.metrics.refused == {}


def test_weights_that_keep_a_graph_of_gradients_are_refused_by_the_plugin_s_name(tmp_path: Path) -> None:
    def soft(updates: ClientUpdates) -> torch.Tensor:
        return torch.full((len(updates.values),), 0.1, requires_grad=True)

    with pytest.raises(PluginFailure, match=r"'soft' of .*weigh\(\) returned weights with requires_grad"):
        crfl_core.run(tiny(aggregation="soft", attack="none"), plugins={"soft": soft}, out=tmp_path / "run")
