"""A run is read without the packages that trained it; what is missing is said with its version."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

import crfl_core
from crfl_core import load_config
from crfl_core.extend import Aggregator, ConfigError, PluginError, Registry, Stage
from crfl_core.plugin_api import CONFIGURABLE, KINDS
from crfl_core.plugin_loading.missing_plugins import (
    LenientRegistry,
    Requirement,
    missing_plugin_class,
    missing_plugin_messages,
)

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]

SOURCE = """
from crfl_aggregators.fedavg import FedAvg
from crfl_datasets.digits import Digits
from crfl_datasets.partitioners.random_splits import Iid
from crfl_engines.local import Local
from crfl_trackers.jsonl import JsonLines

class Rule(FedAvg):
    f: int = 1

class Data(Digits):
    scaling: str = "unit-range"
class Split(Iid): ...
class Here(Local): ...
class Watch(JsonLines): ...
"""
POINTS = {
    "crfl.aggregators": {"rule": "Rule"},
    "crfl.datasets": {"data": "Data"},
    "crfl.partitioners": {"split": "Split"},
    "crfl.engines": {"here": "Here"},
    "crfl.trackers": {"watch": "Watch"},
}
CONFIG: dict[str, Any] = {
    "rounds": 2,
    "dtype": "float64",
    "dataset": {"type": "data", "test_samples": 30},
    "partition": {"type": "split", "clients": 5},
    "training": {"steps": 2, "batch_size": 16},
    "server": {"clip_norm": 5.0, "noise_std": 0.1, "cap_updates": False},
    "aggregation": {"type": "rule", "f": 3},
    "certificates": ["paper", {"type": "tail", "continuations": 10, "selection": 5}],
    "votes": {"models": 20},
    "engine": {"type": "here", "threads": 1},
    "trackers": [{"type": "watch", "path": "log.jsonl"}],
}


@pytest.fixture
def uninstall(tmp_path: Path) -> Callable[[], None]:
    """Takes the package away again, as pip does."""

    def remove() -> None:
        site = tmp_path / "site-packages"
        (site / "robust_tools.py").unlink()
        shutil.rmtree(next(site.glob("robust_tools-*.dist-info")))
        sys.modules.pop("robust_tools", None)
        importlib.invalidate_caches()

    return remove


@pytest.fixture
def orphan(install: Install, uninstall: Callable[[], None], tmp_path: Path) -> Path:
    """A finished run whose package is gone."""
    install("robust-tools", "1.2", POINTS, SOURCE)
    path = crfl_core.run(CONFIG, out=tmp_path / "run").path
    uninstall()
    return path


RULE = "aggregator 'rule' is not installed: pip install robust-tools==1.2"


class TestReading:
    def test_predict_works(self, orphan: Path, crfl: Crfl, tmp_path: Path) -> None:
        np.savez(tmp_path / "new.npz", x=np.random.default_rng(0).integers(0, 17, size=(3, 64)))
        result = crfl("predict", orphan, "new.npz")
        assert (result.returncode, result.stderr) == (0, "")
        assert len(result.stdout.splitlines()) == 4

    def test_show_works(self, orphan: Path, crfl: Crfl) -> None:
        assert "accuracy " in crfl("show", orphan).stdout
        assert json.loads(crfl("show", orphan, "--json").stdout)["accuracy"] > 0

    @pytest.mark.parametrize("name", ["run", "run/config.toml"])
    def test_explain_shows_what_was_written_and_says_what_is_missing(self, orphan: Path, crfl: Crfl, name: str) -> None:
        result = crfl("explain", name)
        assert result.returncode == 0
        for setting in ('aggregation.0.type = "rule"', "aggregation.0.f = 3", "partition.clients = 5"):
            assert f"\n{setting}" in result.stdout
        assert 'dataset.scaling = "unit-range"' in result.stdout
        missing = result.stderr.splitlines()
        assert f"warning: {RULE}; its options are shown as they were written" in missing
        assert [line.split("'")[1] for line in missing] == ["data", "split", "rule", "here", "watch"]
        assert all("pip install robust-tools==1.2" in line for line in missing)

    def test_its_config_is_the_same_as_before(self, orphan: Path) -> None:
        config = crfl_core.load(orphan).config
        saved = load_config(orphan / "config.toml", registry=LenientRegistry(Registry())).config
        assert crfl_core.dump_config(config) == (orphan / "config.toml").read_text(encoding="utf-8")
        assert [step.configured_as for step in saved.aggregation] == ["rule"]
        assert config.aggregation[0].full_name == "'rule' of robust-tools 1.2"

    def test_formulas_are_asked_again(self, orphan: Path, crfl: Crfl) -> None:
        result = crfl("certify", orphan, "--set", "threat.clients=1")
        assert (result.returncode, result.stderr) == (0, "")
        assert "recomputed: certificates only" in result.stdout


class TestUsing:
    def test_new_continuations_say_what_they_need(self, orphan: Path, crfl: Crfl) -> None:
        result = crfl("certify", orphan, "--set", "certificates.tail.continuations=12")
        assert result.returncode == 2
        assert result.stderr.startswith("error: dataset 'data' is not installed: pip install robust-tools==1.2")
        assert result.stdout == ""

    def test_new_votes_need_the_data_alone(
        self, install: Install, uninstall: Callable[[], None], tmp_path: Path
    ) -> None:
        install("robust-tools", "1.2", POINTS, SOURCE)
        settings = CONFIG | {
            "dataset": {"type": "digits", "test_samples": 30},
            "partition": {"type": "iid", "clients": 5},
        }
        path = crfl_core.run(settings, out=tmp_path / "run").path
        uninstall()
        answer = crfl_core.certify(crfl_core.load(path), ["votes.models=30"])
        assert answer.needs == "votes"
        with pytest.raises(PluginError, match=RULE):
            crfl_core.certify(crfl_core.load(path), ["certificates.tail.continuations=12"])

    def test_resuming_says_what_it_needs(
        self, install: Install, uninstall: Callable[[], None], crfl: Crfl, tmp_path: Path
    ) -> None:
        stops = SOURCE + (
            "from crfl_core.extend import hookimpl\nfrom crfl_aggregators.trimmed_mean import Median\n"
            "class Stops(Median):\n    @hookimpl\n"
            "    def crfl_round_started(self, current):\n        if current.number == 2: raise KeyboardInterrupt\n"
        )
        install("robust-tools", "1.2", {"crfl.aggregators": {"stops": "Stops"}}, stops)
        with pytest.raises(KeyboardInterrupt):
            crfl_core.run({"rounds": 2, "aggregation": "stops"}, out=tmp_path / "run")
        uninstall()
        result = crfl("run", "run")
        assert result.returncode == 2
        assert result.stderr == (
            "error: run/config.toml: aggregation.0.type = 'stops': aggregator 'stops' is not installed: "
            "pip install robust-tools==1.2\n"
        )

    def test_a_misspelt_certificate_is_still_a_mistake(self, orphan: Path, crfl: Crfl) -> None:
        result = crfl("certify", orphan, "--set", "certificates=['papre']")
        assert result.returncode == 2
        assert (
            "--set certificates=['papre']: certificates.0.type = 'papre': there is no certificate 'papre'"
            in result.stderr
        )

    def test_a_package_that_is_here_and_does_not_fit_is_named_with_the_version_that_did(
        self, orphan: Path, install: Install
    ) -> None:
        install("robust-tools", "2.0", POINTS, "import gone")
        with pytest.raises(PluginError) as stop:
            crfl_core.load(orphan, trust=True).config.aggregation[0].check(None)  # type: ignore[arg-type]
        told = str(stop.value)
        assert told.startswith(
            "aggregator 'rule' of robust-tools 2.0 cannot be imported: ModuleNotFoundError: No module named 'gone' ("
        )
        assert told.endswith("robust_tools.py:1); the run used robust-tools 1.2: pip install robust-tools==1.2")

    def test_a_class_of_the_users_program_is_asked_back_from_it(self, tmp_path: Path) -> None:
        from crfl_aggregators.trimmed_mean import Median

        class Mine(Median):
            """Lives in this test."""

        small = {
            "rounds": 1,
            "aggregation": "mine",
            "votes": {"models": 10},
            "partition": {"type": "iid", "clients": 5},
        }
        path = crfl_core.run(small, out=tmp_path / "run", plugins={"mine": Mine}).path
        (step,) = crfl_core.load(path).config.aggregation
        with pytest.raises(
            PluginError, match=r"was a class of the program that made the run: give it as plugins=\{'mine'"
        ):
            step.check(None)  # type: ignore[arg-type]
        assert type(crfl_core.load(path, plugins={"mine": Mine}).config.aggregation[0]) is Mine


class TestPlainConfigs:
    """A config without a run: the name as far as it is known."""

    def test_explain_says_which_distribution_was_meant(self, crfl: Crfl, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text("aggregation = [{ type = 'robust-tools:rule', f = 3 }]\n")
        result = crfl("explain", "mine.toml")
        assert result.returncode == 0
        assert "aggregation.0.f = 3 " in result.stdout
        assert result.stderr.startswith("warning: there is no aggregator 'robust-tools:rule': ")
        assert "pip install robust-tools;" in result.stderr

    def test_explain_offers_the_closest_name_and_shows_no_defaults_that_it_cannot_know(
        self, crfl: Crfl, tmp_path: Path
    ) -> None:
        (tmp_path / "mine.toml").write_text("dataset = 'digitz'\n")
        result = crfl("explain", "mine.toml")
        assert "there is no dataset 'digitz': did you mean 'digits'?" in result.stderr
        assert [line.split(" = ")[0] for line in result.stdout.splitlines() if line.startswith("dataset")] == [
            "dataset.type"
        ]

    @pytest.mark.parametrize(
        "setting",
        [
            "model = { type = 'lost', features = ['unit-ball'] }",
            "model = { type = 'softmax', features = ['lost'] }",
            "attack = 'lost'",
            "certificates = ['lost', 'paper']",
        ],
    )
    def test_explain_does_without_a_plugin_of_any_kind(self, crfl: Crfl, tmp_path: Path, setting: str) -> None:
        (tmp_path / "mine.toml").write_text(f"{setting}\n")
        result = crfl("explain", "mine.toml")
        assert result.returncode == 0
        assert '.type = "lost"' in result.stdout
        assert result.stderr.count("warning: ") == 1

    def test_a_run_needs_everything_that_it_names(self, crfl: Crfl, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text("dataset = 'digitz'\n")
        assert crfl("run", "mine.toml").returncode == 2


class TestStandIns:
    @pytest.mark.parametrize("kind", CONFIGURABLE)
    def test_one_keeps_any_options_and_does_nothing_else(self, kind: str) -> None:
        plugin = (
            missing_plugin_class(kind, "it is gone")
            .model_validate({"odd": [1, {"a": 2}], "scaling": "own"})
            .with_name("lost")
        )
        assert plugin.model_dump() == {"odd": [1, {"a": 2}], "scaling": "own"}
        assert isinstance(plugin, KINDS[kind].base)
        assert missing_plugin_messages([(kind, plugin), (kind, plugin)]) == ("it is gone",)
        base = KINDS[kind].base
        for name in base.__abstractmethods__:
            with pytest.raises(PluginError, match=r"^it is gone$"):
                getattr(plugin, name)()

    def test_one_may_stand_for_a_stage_or_a_rule(self) -> None:
        plugin = missing_plugin_class("aggregator", "it is gone").model_validate({})
        assert isinstance(plugin, Stage)
        assert isinstance(plugin, Aggregator)
        for method in (plugin.check, plugin.outputs, plugin.transform, plugin.aggregate, plugin.breakdown):
            with pytest.raises(PluginError, match=r"^it is gone$"):
                method()

    def test_kinds_that_are_needed_are_refused_with_the_same_sentence(self) -> None:
        reading = LenientRegistry(
            Registry(), {("tracker", "lost"): Requirement("robust-tools", "1.2")}, needed=("tracker",)
        )
        with pytest.raises(ConfigError, match=r"tracker 'lost' is not installed: pip install robust-tools==1\.2"):
            load_config({"trackers": ["lost"]}, registry=reading)
