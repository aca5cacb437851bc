"""Fixtures that several test files share."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from filelock import FileLock
from hypothesis import settings

import crfl_core
from crfl_core import cli
from tests.ray_nodes import cluster, hard_deadline, mark, two_nodes

__all__ = ["cluster", "hard_deadline", "mark", "two_nodes"]

settings.register_profile("repeatable", derandomize=True)
if os.environ.get("CI"):  # a change is judged by the same examples every time; people's runs keep searching
    settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a shell: Ctrl-C is tested even so
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # tests run side by side, and threads that wait for each other cost more than they bring

ROOT = Path(__file__).parent.parent

SMALL = ("rounds=3", "attack.rounds=[2]", "votes.models=64", "engine.threads=1", "certificates=['paper']")
"""Overrides that shrink the default run to a fraction of a second."""


def pytest_configure(config: pytest.Config) -> None:
    """Modules that need Flower have no examples to try where it is not installed; in CI they fail."""
    if find_spec("flwr") is None and not os.environ.get("CI"):
        config.option.doctest_ignore_import_errors = True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests with Ray share one cluster, so one process makes all of them; every other test goes to a free process."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]  # xdist says nothing about types
        def _split_scope(self, nodeid: str) -> str:
            return "ray" if "/test_ray" in nodeid else nodeid

    return Together(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the cache and the key of the person who runs the tests out of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CRFL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def small() -> list[str]:
    """Arguments of `crfl run` for a run of a fraction of a second."""
    return [argument for override in SMALL for argument in ("--set", override)]


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a small finished run. Shared: copy it before you change anything."""
    return crfl_core.run(overrides=SMALL, out=tmp_path_factory.mktemp("finished") / "run").path


@pytest.fixture
def crfl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., CompletedProcess[str]]:
    """Runs the command line in this process, with `tmp_path` as the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command line puts its own in place

    def call(*arguments: str | Path) -> CompletedProcess[str]:
        texts = [str(argument) for argument in arguments]
        capsys.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # as for people; pytest makes errors of them
            with pytest.raises(SystemExit) as stop:
                cli.main(texts)
        output = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return CompletedProcess(texts, stop.value.code, output.out, output.err)

    return call


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Puts a distribution with entry points and one module on the path: what pip leaves behind.

    `install("robust-tools", "1.2", {"crfl.trackers": {"mine": "Mine"}}, source)` writes the module `robust_tools`.
    """
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    # Bytecode is told apart by seconds and sizes: a module that is written twice in a second would stay as it was.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    modules: list[str] = []

    def write(distribution: str, version: str, points: Mapping[str, Mapping[str, str]], source: str) -> None:
        module = distribution.replace("-", "_")
        modules.append(module)
        (site / f"{module}.py").write_text(source)
        info = site / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = [
            line
            for group, names in points.items()
            for line in (f"[{group}]", *(f"{name} = {module}:{attribute}" for name, attribute in names.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        importlib.invalidate_caches()

    yield write
    for module in modules:
        sys.modules.pop(module, None)


def written_metadata(package: Path, site: Path) -> str:
    """Put a package on a path as an editable installation does: metadata, and its module where it is. The module."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module: str = project["name"].replace("-", "_")
    info = site / f"{module}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (site / module).symlink_to(package / "src" / module)
    return module


@pytest.fixture
def editable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], str]]:
    """Installs a package with a `src` folder so that edits count at once, and returns the name of its module."""
    site = tmp_path / "editable"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    # Bytecode is told apart by seconds and sizes: a module that is written twice in a second would stay as it was.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    modules: list[str] = []

    def place(package: Path) -> str:
        modules.append(written_metadata(package, site))
        importlib.invalidate_caches()
        return modules[-1]

    yield place
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this repository."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(ROOT)]
    subprocess.run(command, check=True)
    return next(target.glob("*.whl"))


@pytest.fixture
def clean_venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the `bin` directory of a fresh environment with the wheel and its pinned dependencies alone.

    There is one for all processes of a test session, and a test has it for itself.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    home, complete = shared / "clean", shared / "clean.complete"
    with FileLock(shared / "clean.lock"):
        if not complete.exists():
            build_clean_venv(home, wheel)
            complete.touch()
        yield home / "bin"


def build_clean_venv(home: Path, wheel: Path) -> None:
    """Install the wheel as the README says: torch first, everything pinned, nothing taken from another environment."""
    outside = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    constraints = ROOT / "constraints.txt"
    pins = constraints.read_text(encoding="utf-8").splitlines()
    torch_first = next(pin for pin in pins if pin.startswith("torch=="))
    for requirement in (torch_first, str(wheel)):
        subprocess.run(
            [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement],
            check=True,
            env=outside | {"PIP_CONSTRAINT": str(constraints)},
        )
