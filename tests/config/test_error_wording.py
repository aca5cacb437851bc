"""Errors of a config: what would be right in plain words, under the key that its author wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from crfl_core.config import load_config
from crfl_core.errors import ConfigError
from crfl_core.runs.run import locate_errors, prepare


def prepare_run(source: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Load and check a config as a run does, without starting it."""
    loaded = load_config(source, overrides=overrides)
    with locate_errors(loaded):
        prepare(loaded.config, Path("unused"), [])


def message(*overrides: str, source: Mapping[str, Any] | None = None) -> str:
    """The error about a config, without its origin."""
    with pytest.raises(ConfigError) as stop:
        prepare_run(source or {}, overrides)
    return str(stop.value).partition(": ")[2]


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("training.learning_rate", "-1", "must be greater than 0"),
        ("training.learning_rate", "0", "must be greater than 0"),
        ("training.learning_rate", "abc", "must be a number, a list or a table"),
        ("training.steps", "1.5", "must be a valid integer, got a number with a fractional part"),
        ("training.steps", "abc", "must be an integer, a list or a table"),
        ("server.clip_norm", "true", "must be a number, a list or a table: true and false are not numbers"),
        ("reserve.root", "abc", "must be an integer, a number or a table"),
        ("attack.scale", "0.5", "must be greater than or equal to 1, or must be 'replace'"),
        ("seeds.votes", "abc", "must be 'secret', or must be an integer"),
    ],
)
def test_a_key_with_several_types_says_what_would_be_right(key: str, value: str, right: str) -> None:
    source = {"attack": {"type": "sign-flip"}}
    shown = {"abc": "'abc'", "true": "True"}.get(value, value)
    assert message(f"{key}={value}", source=source) == f"{key} = {shown}: {right}"


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("lr=0.1", "training.learning_rate"),
        ("training.lr=0.1", "learning_rate"),
        ("epochs=2", "training.epochs"),
        ("num_clients=20", "partition.clients"),
        ("num_rounds=20", "rounds"),
        ("batch_size=20", "training.batch_size"),
        ("optimizer=adam", "server.optimiser"),
        ("defense=krum", "aggregation"),
        ("training.local_epochs=2", "epochs"),
        ("training.num_clients=3", ""),
        ("training.learnig_rate=3", "learning_rate"),
    ],
)
def test_names_of_other_libraries_lead_to_the_key(override: str, meant: str) -> None:
    told = message(override)
    assert "unknown key" in told
    assert (f"did you mean {meant!r}?" in told) if meant else ("did you mean" not in told)


@pytest.mark.parametrize("aggregation", ["fedavg", [{"type": "fedavg"}], {"type": "fedavg"}])
def test_items_are_numbered_as_their_author_counts_them(aggregation: object) -> None:
    source = {
        "aggregation": aggregation,
        "server": {"cap_updates": True},
        "certificates": "postprocess",
        "partition": {"type": "iid", "clients": 20},
    }
    overrides = ["aggregation.0.type=krum", "aggregation.0.f=12"]
    loaded = load_config(source, overrides=overrides)
    assert [step.configured_as for step in loaded.config.aggregation] == ["update-cap", "krum"]
    with pytest.raises(ConfigError) as stop:
        prepare_run(source, overrides)
    assert str(stop.value).startswith(
        "--set aggregation.0.f=12: aggregation.0.f: krum needs clients >= 2 f + 3, found 20"
    )


def test_a_rule_that_does_not_fit_a_group_says_how_large_groups_are() -> None:
    source = {"aggregation": "krum", "groups": {"count": 20}, "certificates": "group-vote"}
    told = message(source=source)
    assert "krum needs clients >= 2 f + 3, found 1 clients" in told
    assert told.endswith("; one of 20 groups has 1 of the 20 clients in a round")


def test_stages_that_change_the_number_of_updates_are_named_with_the_group() -> None:
    source = {
        "aggregation": [{"type": "bucketing", "size": 3}, {"type": "krum"}],
        "groups": {"count": 2},
        "certificates": "group-vote",
    }
    told = message(source=source)
    assert told.endswith("one of 2 groups has 10 of the 20 clients in a round; 'bucketing' makes 4 of 10 updates")
