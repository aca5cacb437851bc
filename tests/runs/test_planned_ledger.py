"""What a config refuses by itself is found before round 1, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from crfl_certificates.pathwise_linear import PathwiseLinear

import crfl_core
from crfl_core.errors import ConfigError
from crfl_core.extend import Check, Ledger, Threat
from crfl_core.runs.planned_ledger import check_certificates, plan_audits
from tests.oracle import federation_of, tiny

RESAMPLED = {"continuations": 4, "selection": 2}
ALL = [
    "pathwise-linear",
    "pathwise-smoothed",
    {"type": "tail", **RESAMPLED},
    {"type": "postprocess", **RESAMPLED},
    "paper",
    "group-vote",
    "ensemble",
    "backdoor",
]
UNIT_BALL = {"type": "softmax", "features": "unit-ball"}
CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "unit ball": {"model": UNIT_BALL},
    "unit sphere": {"model": {"type": "softmax", "features": "unit-sphere"}},
    "large steps": {"model": UNIT_BALL, "training": {"learning_rate": 50.0, "steps": 1}},
    "falling steps": {"model": UNIT_BALL, "training": {"learning_rate": {"start": 5.0, "slope": -1.0}, "steps": 1}},
    "network": {"model": {"type": "mlp", "hidden": [4]}},
    "capped network": {
        "model": {"type": "mlp", "hidden": [4]},
        "aggregation": [{"type": "update-cap", "bound": 0.5}, "fedavg"],
    },
    "krum": {"model": UNIT_BALL, "aggregation": [{"type": "krum", "f": 1}]},
    "rfa": {"model": UNIT_BALL, "aggregation": ["rfa"]},
    "median": {"model": UNIT_BALL, "aggregation": ["median"]},
    "small cap": {"model": UNIT_BALL, "aggregation": [{"type": "update-cap", "bound": 1e-6}, "fedavg"]},
    "no cap": {"model": UNIT_BALL, "server": {"cap_updates": False}, "threat": {"poison": "update"}},
    "no noise": {"model": UNIT_BALL, "server": {"noise_std": 0.0}, "votes": {"models": 8, "noise_std": 0.1}},
    "adam": {"model": UNIT_BALL, "server": {"optimiser": "adam"}},
    "rate": {"model": UNIT_BALL, "server": {"optimiser": {"type": "rate", "learning_rate": 0.5}}},
    "unknown round": {"model": UNIT_BALL, "threat": {"rounds": "any"}},
    "every round": {"model": UNIT_BALL, "threat": {"rounds": "every", "poison": "update"}},
    "decay": {"model": UNIT_BALL, "training": {"learning_rate": 0.5, "steps": 2, "weight_decay": 0.1}},
    "groups": {"groups": {"count": 3}},
    "subsets": {"groups": {"by": "subsets", "count": 3, "size": 2}},
    "fitted scaling": {
        "dataset": {"type": "digits", "scaling": "standardise", "train_samples": 300, "test_samples": 60}
    },
    "no attack": {"model": UNIT_BALL, "attack": "none"},
    "byzantine": {"model": UNIT_BALL, "attack": {"type": "sign-flip", "clients": [0], "rounds": [2]}},
    "semantic": {
        "model": UNIT_BALL,
        "attack": {"type": "label-flip", "clients": [0], "rounds": [2], "source": 1, "target": 2},
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_refused_before_training_is_refused_after_it_for_the_same_reason(name: str, tmp_path: Path) -> None:
    config = tiny(**({"partition": {"type": "iid", "clients": 6}, "votes": {"models": 8}} | CONFIGS[name]))
    config |= {"certificates": ALL}
    planned = {name: why for audit in plan_audits(federation_of(config)) for name, why in audit.refusals.items()}
    refused = crfl_core.run(config, out=tmp_path / "run").metrics.refused
    assert planned.keys() <= refused.keys()
    for certificate, reason in planned.items():
        assert reason.partition(":")[0] in refused[certificate]
    assert refused.keys() - planned.keys() <= REFUSED_BY_THE_RUN.get(name, set())


REFUSED_BY_THE_RUN: dict[str, set[str]] = {}
"""What only the run shows."""


class Late(PathwiseLinear):
    """Refuses what it has not seen."""

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        good = (ledger.rounds[-1].accuracy or 0.0) > 0.01
        found = "a good model" if good else "a bad model"
        learned = Check("it learned", "held" if good else "failed", found, "a good model")
        return (*super().audit(ledger, threat), learned)


def test_certificates_of_others_are_asked_after_training(tmp_path: Path) -> None:
    config = tiny(model=UNIT_BALL, certificates=["late"])
    assert check_certificates(federation_of(config, {"late": Late})) == {}
    assert not crfl_core.run(config, out=tmp_path / "run", plugins={"late": Late}).metrics.refused
    grouped = federation_of(config | {"groups": {"count": 3}}, {"late": Late})
    with pytest.raises(ConfigError, match="late: one global model: found 3 groups"):
        check_certificates(grouped)


def test_a_config_whose_every_certificate_is_refused_is_not_trained(
    tmp_path: Path, crfl: Callable[..., CompletedProcess[str]]
) -> None:
    """Refusals that follow from the config come before training, and with --dry-run; others after it, with status 3."""
    few = ["--set", "rounds=2", "--set", "attack.rounds=[1]", "--set", "votes.models=8", "--set", "storage.figures=[]"]
    groups = ["--set", "groups={count=3}", "--set", "certificates=tail"]
    for option in ([], ["--dry-run"]):
        done = crfl("run", *few, *groups, "--out", str(tmp_path / "run"), *option)
        assert done.returncode == 2
        assert "certificates: this config refuses every certificate, so nothing is trained:" in done.stderr
        assert "tail: one global model: found 3 groups with a model each" in done.stderr
        assert not (tmp_path / "run").exists()
    both = ["--set", "groups={count=3}", "--set", "certificates=['tail','group-vote']"]
    done = crfl("run", *few, *both, "--out", str(tmp_path / "run"), "--quiet")
    assert done.returncode == 0
    assert "refused before round 1: tail: one global model" in done.stderr
    asked = crfl("certify", str(tmp_path / "run"), "--set", "certificates=['tail']")
    assert asked.returncode == 3
    assert "tail" in asked.stdout
