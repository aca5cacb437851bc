"""The wheel holds what it should, and works where nothing else is installed."""

from __future__ import annotations

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import crfl_core
from crfl_core.cli.scaffold import PluginNames, package_files
from crfl_core.cli.scaffold.names import KINDS_OF_PACKAGES
from crfl_core.extend import Registry

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


PROMISED = {
    "annotated_types": ["pydantic"],
    "cryptography": ["flwr"],
    "httpx": ["flwr"],
    "pydantic_core": ["pydantic"],
    "requests": ["pooch"],
    "starlette": ["flwr"],
    "uvicorn": ["flwr"],
}
"""Modules that a declared distribution requires itself, and works with in the open."""


def sources() -> set[str]:
    """Every file of the packages, as it should lie in the wheel."""
    packages = [ROOT / name for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    return {
        str(path.relative_to(package.parent))
        for package in packages
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


@pytest.mark.slow
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
    packages = {name.partition("/")[0] for name in files}
    assert {path.name for path in ROOT.glob("plugins/*/crfl_*")} < packages
    assert {f"{package}/py.typed" for package in packages} <= files


@pytest.mark.slow
def test_the_wheel_declares_every_entry_point(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    declared = configparser.ConfigParser()
    declared.read_string(text)
    expected = PROJECT["project"]["entry-points"] | {"console_scripts": PROJECT["project"]["scripts"]}
    assert {section: dict(declared[section]) for section in declared.sections()} == expected


@pytest.mark.slow
def test_the_wheel_says_where_the_project_lives_and_under_which_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
        licences = {Path(name).name for name in archive.namelist() if ".dist-info/licenses/" in name}
    assert {url.partition(",")[0] for url in metadata.get_all("Project-URL", [])} >= {"Homepage", "Issues"}
    assert metadata["License-Expression"] == "Apache-2.0 AND CC-BY-4.0 AND MIT"
    assert licences == {"LICENSE", "LICENSE-digits.txt"}


def imported_modules(package: str) -> set[str]:
    """The first names of all modules that the sources of a package import, anywhere."""
    found = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").partition(".")[0])
    return found


def test_whatever_the_packages_import_is_declared() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    ours = {Path(package).name for package in packages} | {"crfl_my_plugin"}
    imported = set().union(*map(imported_modules, packages)) - sys.stdlib_module_names - ours
    project = PROJECT["project"]
    requirements = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    declared = {canonicalize_name(Requirement(one).name) for one in requirements}
    distributions = {**packages_distributions(), **PROMISED}
    missing = {
        module
        for module in imported - {"pytest"}  # of those who test a plugin
        if declared.isdisjoint(map(canonicalize_name, distributions.get(module, [module])))
    }
    assert missing == set(), "declare what is imported, or say in PROMISED whose part it is"


def texts_of(path: Path) -> Iterator[str]:
    """Every text of a module that is not a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_no_message_cites_a_file_that_is_not_installed() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    cited = [
        f"{path.relative_to(ROOT)}: {text}"
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        for text in texts_of(path)
        if re.search(r"(?<!\.\./)\b(docs/[\w-]+|constraints\.txt|examples/\w+)", text) and "page.py" not in path.name
    ]
    assert cited == []


def test_the_tested_versions_are_within_the_declared_ranges() -> None:
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    tested = {canonicalize_name(name): version for name, version in pins.items()}
    for text in PROJECT["project"]["dependencies"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(tested[canonicalize_name(requirement.name)]), text


@pytest.mark.parametrize("version", ["0.26.0", "0.29.1"])
def test_a_typer_that_brings_its_own_click_is_refused(version: str) -> None:
    (typer,) = [one for one in map(Requirement, PROJECT["project"]["dependencies"]) if one.name == "typer"]
    assert not typer.specifier.contains(version)


@pytest.mark.slow
def test_a_strict_type_check_of_a_new_package_passes_against_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """The wheel is unpacked beside the libraries of this environment, without its editable installation."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    site = next((tmp_path / "venv").glob("lib/python3*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (site / "libraries.pth").write_text("\n".join(libraries))
    for kind in KINDS_OF_PACKAGES:
        names = PluginNames(kind, f"typed-{kind}")
        package = package_files(names, licence="mit", author=None, registry=Registry())
        source = tmp_path / "src" / names.module / "__init__.py"
        source.parent.mkdir(parents=True)
        source.write_text(package[f"src/{names.module}/__init__.py"])
    python = str(tmp_path / "venv" / "bin" / "python")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "src"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
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


def make_venv(folder: Path, *options: str) -> CompletedProcess[str]:
    """Let make create `.venv` with what this folder alone has."""
    make = shutil.which("make")
    assert make is not None
    target = f"{folder / 'venv'}/bin/python"
    command = [make, *options, f"VENV={folder / 'venv'}", target]
    alone = {"PATH": str(folder), "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=alone)


@pytest.mark.parametrize("name", ["python3.11", "python3.13", "python3", "python"])
def test_make_finds_any_python_that_is_new_enough(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to(sys.executable)
    assert f"\n{name} -m venv " in make_venv(tmp_path, "--dry-run").stdout


def test_make_passes_over_a_python_that_does_not_work(tmp_path: Path) -> None:
    (tmp_path / "python3.11").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "python3.11").chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    assert "\npython3 -m venv " in make_venv(tmp_path, "--dry-run").stdout


def test_make_says_what_it_needs_if_there_is_no_python(tmp_path: Path) -> None:
    done = make_venv(tmp_path)
    assert done.returncode == 2
    assert "no Python 3.11 or newer with venv was found: name one, as in make demo PYTHON=" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_the_linter_before_a_commit_is_the_one_of_the_tests() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    version = re.search(r"rev: v(\S+)", hooks)
    assert version is not None
    assert f"ruff=={version[1]}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
