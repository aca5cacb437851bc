"""Plugins that raise while a run uses them: a sentence that says which plugin it was, and how to resume the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]

SOURCE = """
from {module} import {base}

class Fragile({base}):
    def {method}(self, *_, **__):
        raise ZeroDivisionError("out of order")
"""

# group, module and class of something that works, the method that fails, and how a config names it
FRAGILE = [
    ("aggregators", "crfl_aggregators.median", "Median", "aggregate", "aggregation=['fragile']"),
    ("aggregators", "crfl_aggregators.median", "Median", "breakdown", "aggregation=['fragile']"),
    ("aggregators", "crfl_aggregators.median", "Median", "check", "aggregation=['fragile']"),
    ("aggregators", "crfl_aggregators.fedavg", "FedAvg", "weights", "aggregation=['fragile']"),
    ("aggregators", "crfl_aggregators.norm_bound", "NormBound", "caps", "aggregation=['fragile', 'fedavg']"),
    ("aggregators", "crfl_aggregators.norm_bound", "NormBound", "outputs", "aggregation=['fragile', 'fedavg']"),
    *(
        ("attacks", "crfl_attacks.model_replacement", "ModelReplacement", method, "attack={type='fragile', rounds=[2]}")
        for method in ("attackers", "prepare", "backdoored_set", "poison", "craft", "threat")
    ),
    ("datasets", "crfl_datasets.digits", "Digits", "read", "dataset='fragile'"),
    ("partitioners", "crfl_datasets.partitioners.iid", "Iid", "split", "partition='fragile'"),
    ("models", "crfl_models.softmax", "Softmax", "build", "model='fragile'"),
    ("feature_maps", "crfl_models.feature_maps.unit_ball", "UnitBall", "bind", "model.features=['fragile']"),
    *(
        ("certificates", "crfl_certificates.paper", "Paper", method, "certificates=['fragile']")
        for method in ("resampled_rounds", "audit", "request", "certify")
    ),
    ("engines", "crfl_engines.local", "Local", "train", "engine={type='fragile'}"),
]


@pytest.mark.parametrize(
    ("group", "module", "base", "method", "setting"), FRAGILE, ids=[f"{x[2]}.{x[3]}" for x in FRAGILE]
)
def test_a_plugin_that_raises_is_named_with_its_distribution_and_version(
    install: Install,
    crfl: Crfl,
    small: list[str],
    tmp_path: Path,
    group: str,
    module: str,
    base: str,
    method: str,
    setting: str,
) -> None:
    source = SOURCE.format(module=module, base=base, method=method)
    install("fragile-tools", "0.7", {f"crfl.{group}": {"fragile": "Fragile"}}, source)
    result = crfl("run", "--quiet", "--out", tmp_path / "run", *small, "--set", setting)
    assert result.returncode == 2
    assert "'fragile' of fragile-tools 0.7 failed" in result.stderr
    assert "ZeroDivisionError: out of order" in result.stderr
    first, *more = result.stderr.splitlines()
    assert first.endswith("ZeroDivisionError: out of order")
    assert more == ([f"resume with `crfl resume {tmp_path / 'run'}`"] if (tmp_path / "run").exists() else [])
