"""Every plugin of this distribution keeps the promises of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crfl_aggregators.centered_clipping import CenteredClipping
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.foolsgold import FoolsGold
from crfl_aggregators.norm_caps import NormBound, UpdateCap
from crfl_attacks.model_replacement import ModelReplacement
from crfl_attacks.triggers import FeatureTrigger
from crfl_models.feature_maps.group_norm import GroupNorm
from crfl_models.feature_maps.whiten import Whiten
from crfl_models.softmax import Softmax

from crfl_core.extend import Plugin, Registry
from crfl_core.plugin_api import KINDS
from crfl_core.plugin_api.command import Command
from crfl_core.testing import check_plugin, parametrize_with_checks
from tests.testing.own_data import shared_out
from tests.testing.own_modules import stored, stored_convolution

OPTIONS: dict[str, dict[str, Any]] = {
    "arrays": {"callable": "tests.testing.own_data:spots"},
    "huggingface": {"path": "not-saved"},  # tried on real files below
    "random-fourier": {"outputs": 40},
    "module": {"path": "tests.testing.own_modules:Net"},  # a model, and a feature map
    "feature-map file": {"path": stored()},
    "encoder": {"path": "tests.testing.own_modules:Convolution", "weights": stored_convolution()},
    "efficientnet-lite": {"resolution": 32},
    "partitioner file": {"path": shared_out()},
    "scattering": {"angles": 3},
    "group-norm": {"groups": 1},
    "whiten": {"components": 5, "floor": 2},
    "tail": {"continuations": 60, "selection": 20},
    "postprocess": {"continuations": 60, "selection": 20},
}
"""Options of plugins that cannot do without, or that would do more work than is needed here."""


ELSEWHERE = {("engine", "flower"), ("engine", "flower-strategy"), ("engine", "ray")}
"""Engines that are tried where a federation or a cluster is brought together: in tests/flower and tests/engines."""


def included() -> Iterator[Plugin | Command]:
    """One instance of every plugin that comes with crfl and that one process can try."""
    registry = Registry()
    for kind in KINDS:
        for name in registry.names(kind):
            if (kind, name) in ELSEWHERE:
                continue
            if any(found.distribution == "crfl" for found in registry.found[kind][name]):
                if kind == "command":
                    yield registry.command(name)
                    continue
                plugin = registry.load(kind, f"crfl:{name}")
                options = OPTIONS.get(f"{kind} {name}", OPTIONS.get(name, {}))
                yield plugin.model_validate(options).with_name(name)


@parametrize_with_checks(list(included()))
def test_every_plugin_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(
    [
        FedAvg(weighting="uniform"),
        CenteredClipping(radius=0.5, iterations=3, memory=False),
        FoolsGold(memory=False),
        UpdateCap(bound=1.0),
        NormBound(bound=0.5),
        ModelReplacement(clients=3, scale="replace", rounds=(2, 4), trigger=FeatureTrigger(features=(0, 3))),
        Softmax(bias=False),
        GroupNorm(groups=3, epsilon=0.01),
        Whiten(components=5, floor=2, radius=2.0),
    ]
)
def test_other_options_conform_as_well(check: Callable[[], None]) -> None:
    check()


def test_a_dataset_that_was_saved_to_disk_conforms(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from crfl_datasets.huggingface import HuggingFace

    train = {"a": [0.1 * number for number in range(40)], "label": [number % 2 for number in range(40)]}
    test = {"a": [0.1 * number + 0.05 for number in range(30)], "label": [number % 2 for number in range(30)]}
    datasets.DatasetDict(
        {"train": datasets.Dataset.from_dict(train), "test": datasets.Dataset.from_dict(test)}
    ).save_to_disk(tmp_path / "set")
    plugin = HuggingFace(path=tmp_path / "set", inputs=("a",), scaling="minmax").with_name("huggingface")
    assert [result for result in check_plugin(plugin) if result.status != "passed"] == []
