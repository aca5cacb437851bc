"""What the shell offers: real run directories, keys and plugins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crfl_core.cli import completion
from crfl_core.config import RunConfig


def completed(folder: Path, *words: str) -> list[str]:
    """What bash would be offered for the last of some words."""
    line = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1), "_CRFL_COMPLETE": "complete_bash"}
    code = "from crfl_core.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=folder, env=os.environ | line
    )
    return result.stdout.split()


def test_run_directories_are_found_through_their_folder(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished_run.parents[1])
    folder = finished_run.parent.name
    assert f"{folder}/" in completion.run_directories(folder[:3])
    assert completion.run_directories(f"{folder}/") == [f"{folder}/run"]
    assert completion.run_directories("no/such/folder") == []


def test_config_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.toml", "mine.yaml", "mine.txt"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()
    assert completion.config_files("m") == ["mine.toml", "mine.yaml", "more/"]
    assert completion.config_files("absent/") == []


def test_settings_are_the_keys_of_a_config() -> None:
    found = completion.settings("")
    assert {f"{name}=" for name in RunConfig.model_fields} <= set(found)
    assert "training.learning_rate=" in found
    assert completion.settings("server.cap") == ["server.cap_updates="]
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("begun", "offered"),
    [
        ("aggregation=kr", "aggregation=krum"),
        ("dataset=fash", "dataset=fashion-mnist"),
        ("attack.type=db", "attack.type=dba"),
        ("dtype=", "dtype=float64"),
        ("server.bad_update=z", "server.bad_update=zero"),
    ],
)
def test_values_are_plugins_and_words(begun: str, offered: str) -> None:
    assert offered in completion.settings(begun)


@pytest.mark.parametrize("begun", ["rounds=1", "nothing.at.all=", "training.nothing="])
def test_where_nothing_is_known_nothing_is_offered(begun: str) -> None:
    assert completion.settings(begun) == []


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("crfl", "plugins", "show", "kru"), "krum"),
        (("crfl", "plugins", "show", "x", "--kind", "agg"), "aggregator"),
        (("crfl", "run", "--set", "votes.al"), "votes.alpha="),
        (("crfl", "certify", "--set", "threat.cl"), "threat.clients="),
        (("crfl", "adv"), "advise"),
    ],
)
def test_a_shell_is_offered_them(tmp_path: Path, words: tuple[str, ...], offered: str) -> None:
    assert offered in completed(tmp_path, *words)
