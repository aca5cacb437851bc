"""`crfl new`: packages that are complete and work before they are edited."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from datetime import date
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import crfl_core
from crfl_core.cli.scaffold import LICENCES, PluginNames, ScaffoldError, add_to_package, package_files, write_package
from crfl_core.cli.scaffold.names import KINDS_OF_PACKAGES
from crfl_core.extend import Registry
from crfl_core.plugin_api import KINDS
from tests.conftest import written_metadata

Crfl = Callable[..., CompletedProcess[str]]
ROOT = Path(__file__).parents[2]


def written(folder: Path) -> dict[str, str]:
    """Every file of a folder, by its path in it."""
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file()
    }


def with_site(site: Path) -> str:
    """The path on which modules are found, with one more folder in front."""
    return os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))


def test_every_kind_can_be_begun() -> None:
    assert set(KINDS_OF_PACKAGES) == {*KINDS, "stage"}


def test_a_package_has_everything(crfl: Crfl, tmp_path: Path) -> None:
    result = crfl("new", "aggregator", "my-own-rule")
    assert (result.returncode, result.stderr) == (0, "")
    assert "crfl-my-own-rule: the aggregator 'my-own-rule', class MyOwnRule in" in result.stdout
    found = written(tmp_path / "crfl-my-own-rule")
    assert sorted(found) == [
        ".github/workflows/publish.yml",
        ".github/workflows/tests.yml",
        ".gitignore",
        "LICENSE",
        "README.md",
        "example.toml",
        "pyproject.toml",
        "src/crfl_my_own_rule/__init__.py",
        "src/crfl_my_own_rule/py.typed",
        "tests/test_crfl_my_own_rule.py",
    ]
    project = tomllib.loads(found["pyproject.toml"])["project"]
    assert project["name"] == "crfl-my-own-rule"
    assert project["license"] == "Apache-2.0"
    assert project["entry-points"] == {"crfl.aggregators": {"my-own-rule": "crfl_my_own_rule:MyOwnRule"}}
    assert tomllib.loads(found["example.toml"])["aggregation"][0]["type"] == "my-own-rule"


def test_a_package_can_be_published(crfl: Crfl, tmp_path: Path) -> None:
    address = "https://example.org/ada/crfl-mine"
    assert crfl("new", "tracker", "mine", "--url", address, "--out", "new/folder/mine").returncode == 0
    found = written(tmp_path / "new" / "folder" / "mine")
    project = tomllib.loads(found["pyproject.toml"])
    assert project["project"]["urls"] == {"Repository": address, "Issues": f"{address}/issues"}
    versions = ["3.11", "3.12", "3.13"]
    assert [f"Programming Language :: Python :: {one}" for one in versions] == [
        one for one in project["project"]["classifiers"] if one.startswith("Programming Language")
    ]
    assert f"python: {json.dumps(versions)}" in found[".github/workflows/tests.yml"]
    assert "id-token: write" in found[".github/workflows/publish.yml"]
    assert {"ruff", "mypy"} <= set(project["tool"])


def test_a_package_without_an_address_says_where_it_belongs(crfl: Crfl, tmp_path: Path) -> None:
    crfl("new", "tracker", "mine")
    text = written(tmp_path / "crfl-mine")["pyproject.toml"]
    assert '# [project.urls]\n# Repository = "https://example.org/crfl-mine"\n' in text
    assert "urls" not in tomllib.loads(text)["project"]


def test_the_help_names_every_kind(crfl: Crfl) -> None:
    text = " ".join(crfl("new", "--help").stdout.split())
    assert all(re.search(rf"\b{kind}\b", text) for kind in KINDS_OF_PACKAGES)


def test_a_package_for_a_command_has_a_function_and_no_config(crfl: Crfl, tmp_path: Path) -> None:
    result = crfl("new", "command", "certified-share")
    assert (result.returncode, result.stderr) == (0, "")
    assert "the command 'certified-share', function certified_share in src/crfl_certified_share" in result.stdout
    assert result.stdout.endswith("crfl certified-share --help\n")
    found = written(tmp_path / "crfl-certified-share")
    assert "example.toml" not in found
    points = tomllib.loads(found["pyproject.toml"])["project"]["entry-points"]
    assert points == {"crfl.commands": {"certified-share": "crfl_certified_share:certified_share"}}
    assert "def certified_share(" in found["src/crfl_certified_share/__init__.py"]


def test_a_written_command_works_as_soon_as_it_is_installed(
    crfl: Crfl, tmp_path: Path, editable: Callable[[Path], str], finished_run: Path
) -> None:
    crfl("new", "command", "certified-share")
    editable(tmp_path / "crfl-certified-share")
    assert "Print which share of the test samples each certificate" in crfl("--help").stdout
    done = crfl("certified-share", finished_run, "--radius", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "paper, feature level, clean samples" in done.stdout
    assert crfl("plugins", "check", "certified-share").returncode == 0


@pytest.mark.parametrize("kind", KINDS_OF_PACKAGES)
def test_no_placeholder_is_left(kind: str) -> None:
    package = package_files(PluginNames(kind, "fresh-idea"), licence="mit", author="Ada", registry=Registry())
    for name, text in package.items():
        assert not [word for word in ("MY_", "MyPlugin", "my-plugin", "my_plugin", "0.0.0") if word in name + text]


def test_a_name_that_is_taken_is_said_and_the_example_says_which_is_meant(crfl: Crfl, tmp_path: Path) -> None:
    result = crfl("new", "aggregator", "trimmed-mean", "--out", "mine")
    assert result.returncode == 0
    assert "declares 'trimmed-mean', too: configs must write 'crfl-trimmed-mean:trimmed-mean'" in result.stdout
    assert "crfl-trimmed-mean:trimmed-mean" in (tmp_path / "mine" / "example.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("licence", LICENCES)
def test_the_licence_is_a_choice(licence: str) -> None:
    package = package_files(
        PluginNames("tracker", "fresh-idea"), licence=licence, author="Ada Lovelace", registry=Registry()
    )
    project = tomllib.loads(package["pyproject.toml"])["project"]
    assert project["authors"] == [{"name": "Ada Lovelace"}]
    assert project.get("license") == LICENCES[licence]
    assert ("license-files" in project) == ("LICENSE" in package) == (licence != "none")
    if licence == "apache-2.0":
        assert package["LICENSE"] == (ROOT / "LICENSE").read_text(encoding="utf-8")
    elif licence != "none":
        assert "Ada Lovelace" in package["LICENSE"]
        assert str(date.today().year) in package["LICENSE"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["aggregator", "Trimmed_Mean"], "'Trimmed_Mean' cannot be the name of a plugin: use lower-case words"),
        (["aggregator", "2-means"], "cannot be the name of a plugin"),
        (["aggregator", "../mean"], "cannot be the name of a plugin"),
        (["attack", "none"], "would be called None, a word of Python itself"),
        (["command", "import"], "would be called import, a word of Python itself"),
        (["command", "run"], "'run' is a command of crfl itself: choose another name"),
        (["command", "load"], "would be called load, which its module already uses"),
        (["stage", "stage"], "would be called Stage, which its module already uses"),
        (["dataset", "datasets"], "would hide the installed module crfl_datasets: choose another name"),
        (["aggregator", "core"], "would hide the installed module crfl_core"),
        (["optimizer", "adam"], "there is no kind of plugin 'optimizer': there are aggregator, stage, optimiser"),
        (["tracker", "mine", "--licence", "gpl"], "--licence gpl: there are apache-2.0, mit, bsd-3-clause, none"),
        (["tracker", "mine", "--author", 'Ada "the first"'], "use no quotes"),
        (["tracker", "mine", "--url", "my repository"], "--url 'my repository': use the address of a repository"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_written(
    crfl: Crfl, tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = crfl("new", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("occupied", ["file", "folder", "dangling link"])
def test_nothing_is_overwritten(crfl: Crfl, tmp_path: Path, occupied: str) -> None:
    target = tmp_path / "crfl-mine"
    if occupied == "file":
        target.write_text("precious")
    elif occupied == "folder":
        target.mkdir()
    else:
        target.symlink_to("nowhere")
    result = crfl("new", "tracker", "mine")
    assert result.returncode == 2
    assert "crfl-mine: exists already and is not overwritten: choose another --out" in result.stderr
    assert list(tmp_path.rglob("*")) == [target]


def test_a_package_is_there_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(path: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(ScaffoldError, match="mine: cannot be written: No space left on device"):
        write_package(
            PluginNames("tracker", "mine"), tmp_path / "mine", licence="mit", author=None, registry=Registry()
        )
    assert list(tmp_path.iterdir()) == []


def test_a_package_gets_a_second_plugin_and_keeps_what_it_has(
    crfl: Crfl, tmp_path: Path, editable: Callable[[Path], str]
) -> None:
    crfl("new", "aggregator", "my-own-rule")
    package = tmp_path / "crfl-my-own-rule"
    before = written(package)
    for kind, name in (("aggregator", "second-rule"), ("attack", "my-attack"), ("command", "my-report")):
        result = crfl("new", kind, name, "--into", package)
        assert (result.returncode, result.stderr) == (0, "")
    assert "function my_report in src/crfl_my_own_rule/my_report.py" in result.stdout
    after = written(package)
    new = {"second_rule", "my_attack", "my_report"}
    examples = {"example-second-rule.toml", "example-my-attack.toml"}
    modules = {f"src/crfl_my_own_rule/{name}.py" for name in new} | {f"tests/test_{name}.py" for name in new}
    assert set(after) - set(before) == modules | examples
    assert {name for name in before if before[name] != after[name]} == {"pyproject.toml"}
    points = tomllib.loads(after["pyproject.toml"])["project"]["entry-points"]
    assert points["crfl.aggregators"] == {
        "second-rule": "crfl_my_own_rule.second_rule:SecondRule",
        "my-own-rule": "crfl_my_own_rule:MyOwnRule",
    }
    assert set(before["pyproject.toml"].splitlines()) < set(after["pyproject.toml"].splitlines())
    assert not [word for word in ("MY_", "MyPlugin", "my-plugin", "my_plugin") if word in "".join(after.values())]
    editable(package)
    for name in ("second-rule", "my-attack", "my-report"):
        results = json.loads(crfl("plugins", "check", name, "--json").stdout)
        failed = {result["check"] for result in results if result["status"] == "failed"}
        assert failed <= ({"importing_is_light"} if name == "my-report" else set())  # the rule brings PyTorch along


def test_the_tests_of_a_second_plugin_pass_as_they_are_written(tmp_path: Path) -> None:
    write_package(PluginNames("tracker", "first"), tmp_path / "mine", licence="mit", author=None, registry=Registry())
    add_to_package(PluginNames("feature-map", "second"), tmp_path / "mine", registry=Registry())
    written_metadata(tmp_path / "mine", tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": with_site(tmp_path / "site")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [*command, str(tmp_path / "mine" / "tests")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tracker", "mine", "--into", "nowhere"], "--into nowhere: pyproject.toml cannot be read"),
        (["tracker", "mine", "--into", "empty"], "has no project.name: `crfl new` without --into begins a package"),
        (["tracker", "mine", "--into", "bare"], "bare: has no package bare, neither in src nor beside pyproject.toml"),
        (["tracker", "mine", "--into", "inline"], "cannot be added to: write them as tables"),
        (["aggregator", "first", "--into", "crfl-first"], "declares the aggregator 'first' already"),
        (["attack", "taken", "--into", "crfl-first"], "taken.py: exists already and is not overwritten"),
        (["attack", "import", "--into", "crfl-first"], "would be called import, a word of Python itself"),
        (["attack", "two", "--into", "crfl-first", "--out", "two"], "--into adds to a package and --out begins one"),
    ],
)
def test_what_cannot_be_added_is_refused_and_nothing_changes(
    crfl: Crfl, tmp_path: Path, arguments: list[str], message: str
) -> None:
    crfl("new", "aggregator", "first")
    (tmp_path / "crfl-first" / "src" / "crfl_first" / "taken.py").write_text("precious")
    projects = {
        "empty": "",
        "bare": "[project]\nname = 'bare'",
        "inline": "[project]\nname = 'inline'\nentry-points = { 'crfl.trackers' = { one = 'inline:One' } }",
    }
    for name, text in projects.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text(text)
    (tmp_path / "inline" / "inline").mkdir()
    (tmp_path / "inline" / "inline" / "__init__.py").touch()
    before = written(tmp_path)
    result = crfl("new", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert written(tmp_path) == before


def test_an_addition_that_cannot_be_finished_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(PluginNames("tracker", "first"), tmp_path / "mine", licence="mit", author=None, registry=Registry())
    before = written(tmp_path)

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(ScaffoldError, match="cannot be written: No space left on device"):
        add_to_package(PluginNames("tracker", "second"), tmp_path / "mine", registry=Registry())
    assert written(tmp_path) == before


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One package of every kind, as they are written."""
    folder = tmp_path_factory.mktemp("packages")
    written = [folder / f"crfl-fresh-{kind}" for kind in KINDS_OF_PACKAGES]
    for kind, target in zip(KINDS_OF_PACKAGES, written, strict=True):
        write_package(PluginNames(kind, f"fresh-{kind}"), target, licence="mit", author="Ada", registry=Registry())
    return written


@pytest.mark.parametrize("arguments", [["check"], ["format", "--diff"]])
def test_the_packages_are_clean_as_they_are_written(packages: list[Path], arguments: list[str]) -> None:
    for package in packages:
        command = [sys.executable, "-m", "ruff", *arguments, "--no-cache"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=package)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_tests_of_the_packages_pass_as_they_are_written(packages: list[Path], tmp_path: Path) -> None:
    """And those of the finished packages in examples/third_party."""
    finished = [path.parent for path in (ROOT / "examples" / "third_party").glob("*/pyproject.toml")]
    assert len(finished) == 5
    packages = [*packages, *sorted(finished)]
    for package in packages:
        written_metadata(package, tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": with_site(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [*command, *(str(package / "tests") for package in packages)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stdout


def test_the_example_of_a_new_stage_is_certified(crfl: Crfl, tmp_path: Path) -> None:
    crfl("new", "stage", "short", "--out", "mine")
    module: dict[str, Any] = {"__name__": "short"}
    exec((tmp_path / "mine/src/crfl_short/__init__.py").read_text(encoding="utf-8"), module)
    result = crfl_core.run(tmp_path / "mine/example.toml", out=tmp_path / "run", plugins={"short": module["Short"]})
    assert result.metrics.refused == {}
    assert result.metrics.curves[0].certified_accuracy[1] > 0.5
