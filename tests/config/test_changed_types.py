"""A table whose `type` changes keeps the settings that the new type also has, however the change is written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crfl_core.config import LoadedConfig, load_config
from crfl_core.config.options import list_settings
from crfl_core.errors import ConfigError, CrflWarning

ATTACK = """
rounds = 20
partition = { type = "dirichlet", clients = 9, alpha = 0.3 }
attack = { type = "sign-flip", clients = [0, 1, 2], rounds = { first = 1 }, scale = 10.0 }
"""
BACKDOOR = """
rounds = 20

[attack]
type = "model-replacement"
clients = [0, 1]
rounds = [2]
trigger = { type = "pixels", size = 3, norm = 2 }
"""

Loaded = Callable[..., LoadedConfig]


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    """The config of a file that extends a base, with overrides."""

    def load(base: str, text: str = "", *overrides: str) -> LoadedConfig:
        (tmp_path / "base.toml").write_text(base)
        (tmp_path / "own.toml").write_text(f'extends = "base.toml"\n{text}')
        return load_config(tmp_path / "own.toml", overrides=overrides)

    return load


def table(loaded: LoadedConfig, key: str) -> Any:
    """One table of a config as plain data."""
    return loaded.config.model_dump(mode="json", exclude_none=True)[key]


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("", ["attack.type=alie"]),
        ("", ["attack=alie"]),
        ("", ["attack={type='alie'}"]),
        ("attack = 'alie'", []),
        ("[attack]\ntype = 'alie'", []),
        ("", ["attack.type=model-replacement", "attack.type=alie"]),
    ],
)
def test_another_attack_keeps_its_clients_rounds_and_scale(loaded: Loaded, text: str, overrides: list[str]) -> None:
    attack = table(loaded(ATTACK, text, *overrides), "attack")
    assert attack["type"] == "alie"
    assert (attack["clients"], attack["rounds"], attack["scale"]) == ([0, 1, 2], {"first": 1, "every": 1}, 10.0)


def test_settings_beside_the_new_type_win(loaded: Loaded) -> None:
    attack = table(loaded(ATTACK, "attack = { type = 'alie', scale = 3.0 }", "attack.clients=[4]"), "attack")
    assert (attack["clients"], attack["rounds"], attack["scale"]) == ([4], {"first": 1, "every": 1}, 3.0)


def test_what_the_new_type_does_not_have_is_left_out_with_a_warning(loaded: Loaded) -> None:
    said = "^attack 'alie' leaves out inherited options that it does not have: trigger$"
    with pytest.warns(CrflWarning, match=said):
        attack = table(loaded(BACKDOOR, "", "attack.type=alie"), "attack")
    assert attack["clients"] == [0, 1]
    with pytest.warns(CrflWarning, match="^partitioner 'iid' leaves out .*: alpha$"):
        assert table(loaded(ATTACK, "partition.type = 'iid'"), "partition") == {"type": "iid", "clients": 9}


def test_nothing_is_said_if_nothing_is_left_out(loaded: Loaded) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded(ATTACK, "attack = 'alie'", "partition.clients=7")


def test_a_type_that_changes_back_has_all_its_settings_again(loaded: Loaded) -> None:
    attack = table(loaded(BACKDOOR, "attack = 'alie'", "attack.type=model-replacement"), "attack")
    assert attack["trigger"] == {"type": "pixels", "size": 3, "norm": 2.0, "corner": "top-left"}


def test_what_is_written_for_the_new_type_and_unknown_to_it_is_an_error(loaded: Loaded) -> None:
    with pytest.raises(ConfigError, match=r"own\.toml: attack\.target = 3: unknown key"):
        loaded(BACKDOOR, "attack = { type = 'alie', target = 3 }")
    with pytest.raises(ConfigError, match=r"--set attack\.target=3: attack\.target = 3: unknown key"):
        loaded(BACKDOOR, "", "attack.type=alie", "attack.target=3")


def test_none_keeps_nothing(loaded: Loaded) -> None:
    assert loaded(ATTACK, "attack = 'none'").config.attack is None
    assert loaded(ATTACK, "", "attack.type=none").config.attack is None
    assert table(loaded(ATTACK, "attack = 'none'", "attack.type=alie"), "attack")["clients"] == 1


def test_groups_are_switched_off_like_an_attack(loaded: Loaded) -> None:
    assert loaded("groups = { count = 4 }", "groups = 'none'").config.groups is None
    assert loaded("groups = { count = 4 }", "", "groups=none").config.groups is None
    assert loaded("certificates = ['paper']", "", "certificates=none").config.certificates == ()
    assert loaded("trackers = ['jsonl']", "trackers = 'none'").config.trackers == ()


def test_tables_that_are_no_plugins_keep_what_fits_too(loaded: Loaded) -> None:
    with pytest.warns(CrflWarning, match="^'features' leaves out inherited options that it does not have: size$"):
        attack = table(loaded(BACKDOOR, "[attack.trigger]\ntype = 'features'\nfeatures = [1]"), "attack")
    assert attack["trigger"] == {"type": "features", "norm": 2.0, "features": [1]}
    base = "training = { learning_rate = { start = 0.1, slope = 0.0 }, weight_decay = 0.1 }"
    with pytest.warns(CrflWarning, match="^'equal-influence' leaves out .*: slope$"):
        loaded(base, "training.learning_rate = { type = 'equal-influence' }")


def test_one_item_of_a_list_changes_its_type(loaded: Loaded) -> None:
    base = "aggregation = [{ type = 'norm-bound', bound = 0.7 }, { type = 'multi-krum', f = 2 }]"
    rules = table(loaded(base, "", "aggregation.1.type=krum"), "aggregation")
    assert [(rule["type"], rule.get("f")) for rule in rules] == [("norm-bound", None), ("krum", 2)]
    rules = table(loaded(base, "", "aggregation.1={type='krum'}"), "aggregation")
    assert rules[1]["f"] == 2
    assert table(loaded(base, "", "aggregation=krum"), "aggregation") == [{"type": "krum", "f": 1}]  # arrays replace


def test_every_setting_knows_where_it_was_written(loaded: Loaded, tmp_path: Path) -> None:
    found = loaded(ATTACK, "attack = { type = 'alie', scale = 3.0 }", "partition={type='dirichlet', alpha=0.5}")
    origins = {setting.key: setting.origin for setting in list_settings(found)}
    assert origins["attack.type"] == origins["attack.scale"] == str(tmp_path / "own.toml")
    assert origins["attack.clients"] == origins["partition.clients"] == str(tmp_path / "base.toml")
    assert origins["partition.alpha"] == "--set partition={type='dirichlet', alpha=0.5}"
    replaced = loaded(ATTACK, "", "attack={type='sign-flip', clients=[0], scale=2}", "attack.type=alie")
    origins = {setting.key: setting.origin for setting in list_settings(replaced)}
    assert origins["attack.scale"] == "--set attack={type='sign-flip', clients=[0], scale=2}"


def test_a_config_that_python_changes_keeps_its_settings_too() -> None:
    config = load_config({"attack": {"type": "sign-flip", "clients": [3], "scale": 4.0}}).config
    attack = table(load_config(config, overrides=["attack.type=alie"]), "attack")
    assert (attack["clients"], attack["scale"]) == ([3], 4.0)
