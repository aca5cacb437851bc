"""A package ships presets, and a config begins with one: `extends = "package:name"`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from crfl_core.config import load_config
from crfl_core.errors import ConfigError

PROJECT = """
[project]
name = "crfl-mine"
version = "1.0"
[project.entry-points."crfl.trackers"]
mine = "crfl_mine:Mine"
"""


@pytest.fixture
def ship(tmp_path: Path, editable: Callable[[Path], str]) -> Callable[..., None]:
    """Installs crfl-mine with these presets. Its code cannot be imported."""

    def write(**presets: str) -> None:
        package = tmp_path / "package" / "src" / "crfl_mine"
        (package / "presets").mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('imported')")
        for name, text in presets.items():
            (package / "presets" / f"{name}.toml").write_text(text)
        (tmp_path / "package" / "pyproject.toml").write_text(PROJECT)
        editable(tmp_path / "package")

    return write


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (tmp_path / "own.toml").write_text(text)
        return tmp_path / "own.toml"

    return write


def test_a_config_begins_with_a_preset_and_nothing_is_imported(
    ship: Callable[..., None], own: Callable[[str], Path]
) -> None:
    ship(small='rounds = 7\naggregation = "krum"')
    found = load_config(own('extends = "crfl-mine:small"\nseed = 3'))
    assert (found.config.rounds, found.config.seed) == (7, 3)
    assert found.config.aggregation[0].configured_as == "krum"
    assert found.origins.of(("rounds",)) == "crfl-mine:small"


def test_presets_extend_each_other_and_stand_beside_files(
    ship: Callable[..., None], own: Callable[[str], Path], tmp_path: Path
) -> None:
    ship(
        small="rounds = 7\nseed = 1", larger='extends = "small.toml"\nrounds = 9', other='extends = "crfl-mine:larger"'
    )
    (tmp_path / "file.toml").write_text("seed = 5")
    config = load_config(own('extends = ["crfl_mine:other", "file.toml"]')).config
    assert (config.rounds, config.seed) == (9, 5)


def test_an_error_in_a_preset_names_it(ship: Callable[..., None], own: Callable[[str], Path]) -> None:
    ship(small="rounds = 0")
    with pytest.raises(ConfigError, match=r"^crfl-mine:small: rounds = 0: must be"):
        load_config(own('extends = "crfl-mine:small"'))


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("crfl-unknown:small", "crfl-unknown is not installed: pip install crfl-unknown"),
        ("crfl-mine:smal", "crfl-mine has no preset 'smal': did you mean 'small'\\? there are large, small"),
        ("crfl:small", "crfl has no preset 'small': there are none"),
    ],
)
def test_a_preset_that_is_not_there_is_an_error_that_says_which_are(
    ship: Callable[..., None], own: Callable[[str], Path], base: str, message: str
) -> None:
    ship(small="", large="")
    with pytest.raises(ConfigError, match=f"own.toml: extends = '{base}': {message}"):
        load_config(own(f'extends = "{base}"'))


def test_a_preset_cannot_say_whose_code_may_run(ship: Callable[..., None], own: Callable[[str], Path]) -> None:
    ship(loose='extends = "hidden.toml"', hidden='plugins.allow = ["crfl-mine"]')
    with pytest.raises(ConfigError, match=r"^crfl-mine:loose: plugins: a preset cannot say whose code may run"):
        load_config(own('extends = "crfl-mine:loose"'))


def test_an_allow_list_counts_for_what_a_preset_names(ship: Callable[..., None], own: Callable[[str], Path]) -> None:
    ship(watched='trackers = ["mine"]')
    with pytest.raises(ConfigError, match=r"tracker 'mine' of crfl-mine 1.0 is blocked by plugins.allow"):
        load_config(own('extends = "crfl-mine:watched"\nplugins.allow = []'))
