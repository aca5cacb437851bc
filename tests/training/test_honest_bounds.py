"""What a model says about its gradients is checked on every honest update: caps and drifts rest on it."""

from __future__ import annotations

from typing import Any

import pytest
from crfl_models.feature_maps.rescaling import BoundUnitBall

from crfl_core.extend import BoundMap, BoundModel, DataFacts, FeatureMap, Model, PluginFailure
from tests.models.second_hand import Regression
from tests.oracle import federation_of, played, tiny


class Promising(Regression):
    """Promises a share of its gradient bound."""

    def __init__(self, facts: DataFacts, share: float) -> None:
        super().__init__(facts.inputs, facts.classes, bias=True)
        self._share = share

    def gradient_bound(self, input_norm: float) -> float:
        return self._share * super().gradient_bound(input_norm)


class PromisingModel(Model):
    """Builds it."""

    share: float = 1.0

    def build(self, facts: DataFacts) -> BoundModel:
        return Promising(facts, self.share)


class Narrow(BoundUnitBall):
    """Promises shorter features than it has."""

    def norm_bound(self, inputs: float) -> float:
        return 1e-3


class NarrowMap(FeatureMap):
    """Binds it."""

    def bind(self, inputs: int) -> BoundMap:
        return Narrow(inputs, 1.0)


PLUGINS: dict[str, Any] = {"promising": PromisingModel, "narrow": NarrowMap}


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("aggregation", [["fedavg"], ["median"]], ids=["streamed", "gathered"])
def test_a_gradient_bound_that_is_too_small_stops_the_run(aggregation: list[str], weight_decay: float) -> None:
    training = {"learning_rate": 0.2, "steps": 5, "batch_size": 16, "weight_decay": weight_decay}
    config = tiny(model={"type": "promising", "share": 0.01}, training=training, aggregation=aggregation, attack="none")
    message = (
        r"model 'promising' of \(this process\): client \d trained a residual of norm [\d.]+ in round 1, which its "
        r"gradient_bound\(\) rules out \([\d.]+\): correct the bound"
    )
    with pytest.raises(PluginFailure, match=message):
        played(federation_of(config, PLUGINS))


@pytest.mark.parametrize("share", [-1.0, 0.0])
def test_a_bound_that_is_no_bound_at_all_is_refused_before_training(share: float) -> None:
    """Infinity times zero is not a number; standardised inputs have no bound."""
    dataset = {"type": "digits", "train_samples": 300, "test_samples": 60, "scaling": "standardise"}
    config = tiny(model={"type": "promising", "share": share}, dataset=dataset, attack="none")
    with pytest.raises(PluginFailure, match=r"gradient_bound\(\) must be at least 0, found (nan|-inf)"):
        federation_of(config, PLUGINS)


def test_a_feature_map_that_is_longer_than_it_says_is_found_in_the_same_way() -> None:
    config = tiny(model={"type": "softmax", "bias": False, "features": [{"type": "narrow"}]}, attack="none")
    with pytest.raises(PluginFailure, match=r"which its gradient_bound\(\) rules out"):
        played(federation_of(config, PLUGINS))


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_a_bound_that_holds_lets_honest_clients_train_and_attackers_do_what_they_like(weight_decay: float) -> None:
    training = {"learning_rate": 0.2, "steps": 5, "batch_size": 16, "weight_decay": weight_decay}
    attack = tiny()["attack"] | {"scale": 1e6}
    outcomes = played(federation_of(tiny(model={"type": "promising"}, training=training, attack=attack), PLUGINS))
    attacked = outcomes[1].clients
    assert attacked.submitted_norm[0] > 1e3 * attacked.update_bound[0]
    assert (attacked.submitted_norm[1:] < attacked.update_bound[1:]).all()
