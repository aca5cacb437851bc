"""A package that takes a name of crfl disturbs only configs that name the plugin: defaults mean crfl's own."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.norm_caps import UpdateCap
from crfl_engines.local import Local
from crfl_reports.commands.demo import CONFIG

import crfl_core
from crfl_core import dump_config, load_config
from crfl_core.extend import ConfigError, RoundRecord, Tracker, hookimpl

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]

RIVAL = '''
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.norm_caps import UpdateCap
from crfl_engines.local import Local
from crfl_trackers.progress import Progress

class RivalMean(FedAvg):
    """Another mean."""

class RivalCap(UpdateCap):
    """Another cap."""

class RivalEngine(Local):
    """Another engine."""

class RivalProgress(Progress):
    """Another bar."""
'''
POINTS = {
    "crfl.aggregators": {"fedavg": "RivalMean", "update-cap": "RivalCap"},
    "crfl.engines": {"local": "RivalEngine"},
    "crfl.trackers": {"progress": "RivalProgress"},
}


@pytest.fixture(autouse=True)
def _rival(install: Install) -> None:
    install("rival-tools", "1.0", POINTS, RIVAL)


def test_a_config_that_does_not_name_the_plugin_gets_that_of_crfl() -> None:
    for source in (None, {}, {"rounds": 3}):
        config = load_config(source).config
        assert type(config.aggregation[-1]) is FedAvg
        assert type(config.engine) is Local


def test_the_demo_and_packaged_defaults_do_not_name_it() -> None:
    assert type(load_config(CONFIG).config.aggregation[-1]) is FedAvg


def test_options_of_a_default_do_not_name_it() -> None:
    config = load_config({}, overrides=["engine.threads=1", "aggregation.fedavg.weighting=uniform"]).config
    assert type(config.engine) is Local
    assert type(config.aggregation[-1]) is FedAvg


def test_a_stage_that_a_certificate_adds_is_that_of_crfl() -> None:
    config = load_config({"certificates": ["postprocess"], "server": {"cap_updates": True}}).config
    assert type(config.aggregation[0]) is UpdateCap


def test_a_config_that_names_it_must_choose() -> None:
    with pytest.raises(ConfigError, match="'rival-tools:fedavg' or 'crfl:fedavg'"):
        load_config({"aggregation": "fedavg"})
    with pytest.raises(ConfigError, match="'rival-tools:local' or 'crfl:local'"):
        load_config({}, overrides=["engine.type=local"])


def test_a_saved_config_means_the_same_plugins(tmp_path: Path) -> None:
    config = load_config({}).config
    tree = tomllib.loads(dump_config(config))
    assert (tree["aggregation"][0]["type"], tree["engine"]["type"]) == ("crfl:fedavg", "crfl:local")
    assert load_config(tree).config == config
    result = crfl_core.run({"rounds": 1, "certificates": []}, out=tmp_path / "run")
    assert crfl_core.load(result.path).config.aggregation == config.aggregation


def test_the_command_line_runs_the_default_with_its_progress(crfl: Crfl) -> None:
    done = crfl("run", "--set", "rounds=1", "--set", "attack=none", "--set", "certificates=[]", "--json")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert 0 < json.loads(done.stdout)["accuracy"] <= 1


class StopAfterOne(Tracker):
    """Ends a run after its first round."""

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        raise KeyboardInterrupt


def test_a_run_resumes_with_the_plugins_that_it_recorded(tmp_path: Path, install: Install) -> None:
    install("other-tools", "2.0", {"crfl.aggregators": {"own-mean": "RivalMean"}}, RIVAL)
    config = {"rounds": 2, "certificates": [], "aggregation": ["own-mean"], "storage": {"checkpoint_seconds": 0}}
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config, out=tmp_path / "run", trackers=[StopAfterOne()])
    install("third-tools", "3.0", {"crfl.aggregators": {"own-mean": "RivalMean"}}, RIVAL)
    with pytest.raises(ConfigError, match="is declared by"):
        load_config(config)
    result = crfl_core.resume(tmp_path / "run", trust=True)
    assert result.config.aggregation[0].full_name == "'own-mean' of other-tools 2.0"
    recorded = json.loads((result.path / "environment.json").read_text(encoding="utf-8"))
    assert [one["distribution"] for one in recorded["plugins"] if one["name"] == "own-mean"] == ["other-tools"]
