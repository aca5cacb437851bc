"""Where the values of a run's config came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from crfl_reports.pages.sections import origin_of, settings

import crfl_core
from crfl_core.plugin_api.hookspecs import hookimpl
from crfl_core.plugin_api.tracker import Tracker
from crfl_core.records.ledger import RoundRecord

FAST = ("attack=none", "certificates=['paper']", "votes.models=16", "storage.checkpoint_seconds=0")


def origins(run: Path) -> dict[str, str]:
    return {line.key: line.origin for line in settings(crfl_core.load(run))}


class Impatient(Tracker):
    """Stops a run in its second round."""

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        if record.round == 2:
            raise KeyboardInterrupt


def test_files_and_overrides_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('rounds = 3\n[model]\ntype = "softmax"\nfeatures = ["unit-ball"]\n')
    found = origins(crfl_core.run(file, overrides=[*FAST, "aggregation=rfa"], out=tmp_path / "run").path)
    assert found["rounds"] == found["model.type"] == found["model.features.0.type"] == str(file)
    assert found["model.bias"] == found["training.learning_rate"] == found["aggregation.0.iterations"] == "default"
    assert found["aggregation.0.type"] == "--set aggregation=rfa"


def test_a_resumed_run_still_knows_where_its_config_came_from(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(overrides=("rounds=3", *FAST), out=tmp_path / "run", trackers=[Impatient()])
    crfl_core.resume(tmp_path / "run")
    assert origins(tmp_path / "run")["rounds"] == "--set rounds=3"


def test_of_runs_that_recorded_no_origins_only_defaults_are_known(tmp_path: Path) -> None:
    run = crfl_core.run(overrides=("rounds=3", *FAST), out=tmp_path / "run")
    recorded = json.loads((run.path / "environment.json").read_text())
    assert recorded["origins"]["rounds"] == "--set rounds=3"
    assert origin_of("rounds", {}, default=False) == "the config"
    assert origin_of("seed", {}, default=True) == "default"


def test_receipts_hold_versions_and_no_paths(tmp_path: Path) -> None:
    from crfl_core.runs.verification import build_receipt

    run = crfl_core.run(overrides=("rounds=3", *FAST), out=tmp_path / "run")
    assert "origins" not in build_receipt(run.directory)["versions"]
