"""`crfl plugins show NAME`: what a plugin is, from its class alone."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from crfl_core import load_config
from crfl_core.cli.plugin_description import describe_plugin
from crfl_core.config.options import plugin_places
from crfl_core.plugin_api import CONFIGURABLE
from crfl_core.plugin_loading.registry import Registry

Crfl = Callable[..., CompletedProcess[str]]


def installed() -> list[tuple[str, str]]:
    registry = Registry()
    return [(kind, name) for kind in CONFIGURABLE for name in registry.names(kind)]


def test_a_rule_is_shown_with_all_that_a_person_wants_to_know(crfl: Crfl) -> None:
    result = crfl("plugins", "show", "krum")
    assert (result.returncode, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].startswith("aggregator krum, of crfl ")
    assert "The one update with the lowest Krum score (Blanchard et al., 2017)." in lines
    assert "f integer ≥ 0 1 malicious clients that are tolerated; needs clients >= 2 f + 3" in lines
    assert "depends: all" in lines
    assert any(line.startswith("needs of the updates: all together") for line in lines)
    assert any(line.startswith("breakdown: bounded") for line in lines)
    assert lines[-1] == 'aggregation = [{ type = "krum", f = 1 }]'


@pytest.mark.parametrize(
    ("name", "needs", "base"),
    [
        ("fedavg", "only their weighted sum", "LinearAggregator"),
        ("bucketing", "only their weighted sum", "FixedStage"),
        ("update-cap", "each by itself", "CapStage"),
        ("norm-filter", "all together", "Stage"),
        ("rfa", "all together", "WeightedRule"),
    ],
)
def test_what_a_step_needs_of_the_updates_follows_from_its_base(crfl: Crfl, name: str, needs: str, base: str) -> None:
    found = json.loads(crfl("plugins", "show", name, "--json").stdout)
    assert found["facts"]["needs of the updates"].startswith(needs)
    assert found["base"] == base
    assert found["facts"]["contract"].startswith(f"{base}: ")


@pytest.mark.parametrize(
    ("name", "threat"),
    [("model-replacement", "poisoned samples"), ("sign-flip", "update: attackers submit what they like (craft()")],
)
def test_an_attack_says_what_has_to_be_assumed_about_it(crfl: Crfl, name: str, threat: str) -> None:
    found = json.loads(crfl("plugins", "show", name, "--json").stdout)
    assert found["facts"]["threat"].startswith(threat)


def test_a_certificate_says_what_it_states(crfl: Crfl) -> None:
    sound, paper = (json.loads(crfl("plugins", "show", name, "--json").stdout)["facts"] for name in ("tail", "paper"))
    assert sound["statement"] == "tail, sound"
    assert sound["levels"] == "feature, sample, client"
    assert "sound" not in paper["statement"].partition(", ")[2].split()


ALSO = {name: ["dataset.path=samples.csv"] for name in ("arrays", "huggingface")}
"""Plugins that need one of two options, of which neither is required."""


@pytest.mark.parametrize(("kind", "name"), installed())
def test_the_example_of_every_plugin_is_a_config_that_loads(kind: str, name: str) -> None:
    registry = Registry()
    shown = describe_plugin(registry.find(kind, name), registry.load(kind, name))
    config = load_config(tomllib.loads(shown.example), overrides=ALSO.get(name, ())).config
    assert (kind, name) in [(found, plugin.configured_as) for found, plugin in config.named_plugins()]
    assert {option.name for option in shown.options} == set(registry.load(kind, name).model_fields)
    assert all(option.type and option.meaning for option in shown.options)


def test_every_kind_has_its_place_in_a_config() -> None:
    assert set(plugin_places()) == set(CONFIGURABLE)
    assert plugin_places()["aggregator"] == ("aggregation", True)
    assert plugin_places()["attack"] == ("attack", False)
    assert plugin_places()["feature-map"] == ("model.features", True)


def test_what_is_no_plugin_of_a_config_is_said(crfl: Crfl) -> None:
    command, typo = crfl("plugins", "show", "new"), crfl("plugins", "show", "kru")
    assert (command.returncode, typo.returncode) == (2, 2)
    assert command.stderr == "error: 'new' is a command: `crfl new --help` says what it does\n"
    assert typo.stderr == "error: there is no plugin 'kru': did you mean 'krum'?\n"


ODD = """
from collections.abc import Callable
from crfl_core.extend import Tracker

print("hello")

class Odd(Tracker):
    call: Callable[[], None] = print
"""


def test_a_plugin_of_odd_options_is_shown_too_and_what_it_prints_is_not(
    crfl: Crfl, install: Callable[..., None], tmp_path: Path
) -> None:
    install("odd-tools", "1.0", {"crfl.trackers": {"odd": "Odd"}}, ODD)
    result = crfl("plugins", "show", "odd-tools:odd")
    assert result.returncode == 0
    assert result.stdout.startswith("tracker odd, of odd-tools 1.0")
    assert "hello" not in result.stdout
