"""`crfl run --dry-run` maps no data, writes nothing, and says the same as a run would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from crfl_core.training import features

Crfl = Callable[..., CompletedProcess[str]]
SLOW_MAPS = """
rounds = 2
partition = { type = "iid", clients = 10 }
attack = "none"
threat = { clients = 1, rounds = [1] }
certificates = "group-vote"
groups = { count = 5 }
model.type = "softmax"
model.features = [
    { type = "scattering", angles = 2 },
    { type = "group-norm", groups = 3 },
    { type = "whiten", components = 20, floor = 5, samples = 100 },
]
"""


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """How many inputs were mapped at a time, with a cache that is empty in the beginning."""
    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "slow.toml").write_text(SLOW_MAPS)
    counts: list[int] = []
    real = features.compute_features

    def counting(maps: Any, x: Any, shown: Any, partition: Any = None) -> object:
        counts.append(len(x))
        return real(maps, x, shown, partition)

    monkeypatch.setattr(features, "compute_features", counting)
    return counts


def test_only_inputs_that_maps_are_fitted_to_are_mapped(crfl: Crfl, mapped: list[int], tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    done = crfl("run", "slow.toml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "1,438 training samples of 10 clients, 20 features" in done.stdout
    assert "votes          5 models, one of each group, on 359 test samples" in done.stdout
    assert mapped == [100]
    assert set(tmp_path.rglob("*")) == before


def test_a_run_maps_all_data_and_keeps_them(crfl: Crfl, mapped: list[int], tmp_path: Path) -> None:
    done = crfl("run", "slow.toml", "--quiet")
    assert done.returncode == 0, done.stderr
    assert {100, 1438, 359} <= set(mapped)
    assert list((tmp_path / "cache" / "features").iterdir())


def test_sizes_are_those_of_the_run(crfl: Crfl, mapped: list[int], tmp_path: Path) -> None:
    sizes = json.loads(crfl("run", "slow.toml", "--dry-run", "--json").stdout)
    crfl("run", "slow.toml", "--quiet", "--out", "done")
    facts = json.loads((tmp_path / "done" / "ledger.json").read_text())
    assert (sizes["features"], sizes["parameters"]) == (facts["features"], facts["parameters"])


def test_what_the_config_refuses_is_said_before_any_data_are_mapped(
    crfl: Crfl, mapped: list[int], tmp_path: Path
) -> None:
    refused = crfl("run", "slow.toml", "--dry-run", "--set", "certificates=pathwise-linear")
    assert refused.returncode == 2
    assert "refuses every certificate" in refused.stderr
    assert mapped == [100]
