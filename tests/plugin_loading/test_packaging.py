"""The wheel holds what it should, and works where nothing else is installed."""

from __future__ import annotations

import configparser
import os
import subprocess
import tomllib
import zipfile
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import crfl_core

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def sources() -> set[str]:
    """Every file of the packages, as it should lie in the wheel."""
    packages = [ROOT / name for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    return {
        str(path.relative_to(package.parent))
        for package in packages
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_holds_every_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert files == sources()
    assert {
        "crfl/py.typed",
        "crfl/__init__.pyi",
        "crfl_core/py.typed",
        "crfl_core/__init__.pyi",
        "crfl_core/config/default.toml",
    } <= files
    assert {path.name for path in ROOT.glob("plugins/*/crfl_*")} < {name.partition("/")[0] for name in files}


def test_the_wheel_declares_every_entry_point(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    declared = configparser.ConfigParser()
    declared.read_string(text)
    expected = PROJECT["project"]["entry-points"] | {"console_scripts": PROJECT["project"]["scripts"]}
    assert {section: dict(declared[section]) for section in declared.sections()} == expected


def test_a_clean_environment_runs_the_default(clean_venv: Path, tmp_path: Path) -> None:
    def crfl(*arguments: str) -> CompletedProcess[str]:
        command = [str(clean_venv / "crfl"), *arguments]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)

    assert crfl("--version").stdout == f"crfl {crfl_core.__version__}\n"

    settings = ("--set", "rounds=12", "--set", "votes.models=50", "--set", "attack=none")
    result = crfl("run", "--quiet", "--out", str(tmp_path / "run"), *settings)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{tmp_path / 'run'}\n", "")
    assert crfl_core.load(tmp_path / "run").metrics.accuracy > 0.5

    (tmp_path / "run.yaml").write_text("rounds: 3\n")
    result = crfl("run", "run.yaml")
    assert result.returncode == 2
    assert result.stderr == ("error: run.yaml: reading YAML needs PyYAML: pip install 'crfl[yaml]', or write TOML\n")
