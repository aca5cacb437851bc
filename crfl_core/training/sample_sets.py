"""Samples that models are measured on or that the server trusts, behind the feature maps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from crfl_core.config import RunConfig
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.plugin_api.plugin_errors import settings_of
from crfl_core.records.inputs import FederatedData
from crfl_core.records.ledger import SetFacts
from crfl_core.records.round import State
from crfl_core.training.features import features_of


@dataclass(frozen=True)
class TestSet:
    """Samples behind the feature maps, (m, features), with their true labels."""

    __test__ = False  # not for pytest

    features: Tensor
    labels: Tensor
    facts: SetFacts


def make_test_sets(config: RunConfig, data: FederatedData, maps: FeatureMaps, prepared: State) -> dict[str, TestSet]:
    """The clean test set and, if the attack has one, the backdoored one."""
    sets = {"clean": make_test_set(features_of(maps, data.test_x), data.test_y)}
    if config.attack is not None:
        with settings_of("attack", config.attack):
            backdoored = config.attack.backdoored_set(data, prepared)
        if backdoored is not None:
            sets["backdoored"] = make_test_set(features_of(maps, backdoored[0]), backdoored[1])
    return sets


def reserved_sets(kept: Mapping[str, tuple[Tensor, Tensor]], maps: FeatureMaps) -> dict[str, TestSet]:
    """What the server keeps for itself, behind the maps; that of the curator is what maps are fitted to."""
    return {
        name: make_test_set(x if name == "curator" else features_of(maps, x), labels)
        for name, (x, labels) in kept.items()
    }


def make_test_set(features: Tensor, labels: Tensor) -> TestSet:
    """A test set with its digest, by which stored votes are matched to it."""
    digest = hashlib.sha256()
    for tensor in (features, labels):
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    return TestSet(features, labels, SetFacts(samples=len(labels), digest=digest.hexdigest()))
