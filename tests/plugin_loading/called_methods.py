"""Methods that a run calls on plugins of every kind, for tests of what happens if one of them goes wrong."""

from __future__ import annotations

from typing import NamedTuple

import pytest


class Called(NamedTuple):
    """A method of a class that works, and the setting that makes a run call it on a plugin named NAME."""

    group: str
    module: str
    base: str
    method: str
    setting: str

    def setting_for(self, name: str) -> str:
        """The setting with the plugin's name in it."""
        return self.setting.replace("NAME", name)


ATTACK = "attack={type='NAME', rounds=[2]}"
CALLED = (
    Called("aggregators", "crfl_aggregators.trimmed_mean", "Median", "aggregate", "aggregation=['NAME']"),
    Called("aggregators", "crfl_aggregators.trimmed_mean", "Median", "breakdown", "aggregation=['NAME']"),
    Called("aggregators", "crfl_aggregators.trimmed_mean", "Median", "check", "aggregation=['NAME']"),
    Called("aggregators", "crfl_aggregators.fedavg", "FedAvg", "weights", "aggregation=['NAME']"),
    Called("aggregators", "crfl_aggregators.norm_caps", "NormBound", "caps", "aggregation=['NAME', 'fedavg']"),
    Called("aggregators", "crfl_aggregators.norm_caps", "NormBound", "outputs", "aggregation=['NAME', 'fedavg']"),
    *(
        Called(
            "attacks", "crfl_attacks.model_replacement", "ModelReplacement", method, "attack={type='NAME', rounds=[2]}"
        )
        for method in ("attackers", "prepare", "backdoor_test_set", "poison", "craft", "threat")
    ),
    Called("datasets", "crfl_datasets.digits", "Digits", "read", "dataset='NAME'"),
    Called("partitioners", "crfl_datasets.partitioners.random_splits", "Iid", "split", "partition='NAME'"),
    Called("models", "crfl_models.softmax", "Softmax", "build", "model='NAME'"),
    Called("feature_maps", "crfl_models.feature_maps.rescaling", "UnitBall", "bind", "model.features=['NAME']"),
    *(
        Called("certificates", "crfl_certificates.paper", "Paper", method, "certificates=['NAME']")
        for method in ("rounds_to_resample", "audit", "request", "certify")
    ),
    Called("engines", "crfl_engines.local", "Local", "open", "engine={type='NAME'}"),
    Called("engines", "crfl_engines.local", "Local", "train", "engine={type='NAME'}"),
)
every_called_method = pytest.mark.parametrize("called", CALLED, ids=[f"{one.base}.{one.method}" for one in CALLED])
