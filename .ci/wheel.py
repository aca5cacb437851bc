"""Try the wheel as people get it: in clean environments, without our constraints, outside of the checkout.

    python .ci/wheel.py --python python3.12 --versions newest     # what pip chooses today
    python .ci/wheel.py --versions oldest                         # the lowest version of every declared range

Each environment gets PyTorch and the wheel alone. There `crfl` shows its help, lists its plugins, runs the demo and
predicts; `crfl new` writes a package, whose tests and conformance kit pass, and `mypy --strict` finds nothing in it.
Exits with 1 if anything fails. Needs the network; pip's own options (PIP_INDEX_URL, PIP_FIND_LINKS) apply.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEWEST = "newest"
OLDEST = "oldest"
TORCH = "torch==2.13.0"
"""The newest environment takes this PyTorch, which is tested; any other may bring gigabytes of CUDA packages."""
RANGE = re.compile(r"(?P<name>[\w-]+)>=(?P<lowest>[\w.]+)")
OUTSIDE = ("PYTHON", "PIP_CONSTRAINT")
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(OUTSIDE)} | {"CRFL_DEBUG": "1"}


def lowest_versions() -> Iterator[str]:
    """Yield `name==version` with the lowest version of every dependency that pyproject.toml declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in project["dependencies"]:
        found = RANGE.match(requirement)
        assert found is not None, f"{requirement}: has no lowest version"
        yield f"{found['name']}=={found['lowest']}"


def call(*command: str | Path, folder: Path) -> str:
    """Run a command in a folder and return what it prints; print it if the command fails."""
    print("  $", " ".join(map(str, command)), flush=True)
    typed = [*map(str, command)]
    done = subprocess.run(typed, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout + done.stderr, flush=True)
        raise SystemExit(1)
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, folder=folder)
    (wheel,) = folder.glob("crfl-*.whl")
    return wheel


def make_environment(folder: Path, python: str, versions: str, wheel: Path) -> Path:
    """Install PyTorch and the wheel into an environment of their own; return the folder of its programs."""
    call(python, "-m", "venv", folder / "venv", folder=folder)
    programs = folder / "venv" / "bin"
    pip = (programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if versions == OLDEST:
        call(*pip, wheel, *lowest_versions(), folder=folder)
    else:
        call(*pip, TORCH, folder=folder)
        call(*pip, wheel, folder=folder)
    return programs


def try_commands(programs: Path, folder: Path) -> None:
    """Use the commands of a first hour."""
    crfl = programs / "crfl"
    assert call(crfl, "--version", folder=folder).startswith("crfl ")
    assert "advise" in call(crfl, "--help", folder=folder)
    assert "feature-map" in call(crfl, "new", "--help", folder=folder)  # arguments have a help text
    assert " failed " not in call(crfl, "plugins", folder=folder)
    typo = subprocess.run([str(crfl), "runn"], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert typo.stderr.lower().count("did you mean") == 1, typo.stderr
    assert "vote of groups" in call(crfl, "demo", folder=folder)
    call(crfl, "show", "runs/demo/certified", "--full", folder=folder)
    call(crfl, "verify", "runs/demo/certified", folder=folder)
    call(crfl, "certify", "runs/demo/certified", "--set", "threat.clients=2", folder=folder)
    settings = ("--set", "rounds=2", "--set", "attack=none", "--workers", "1")
    call(crfl, "sweep", "--vary", "seed=0,1", *settings, folder=folder)
    call(crfl, "plot", "runs/demo/certified", folder=folder)


def try_own_package(programs: Path, folder: Path, *, typed: bool) -> None:
    """Write a package with a plugin, install it, run its tests, check its types, and run its example."""
    python = programs / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    call(programs / "crfl", "new", "aggregator", "short-mean", folder=folder)
    package = folder / "crfl-short-mean"
    call(*pip, "--editable", "./crfl-short-mean[test]", folder=folder)
    call(python, "-m", "pytest", "-q", folder=package)
    call(programs / "crfl", "plugins", "check", "short-mean", folder=folder)
    call(programs / "crfl", "run", "example.toml", "--quiet", folder=package)
    if typed:
        call(*pip, "mypy", folder=folder)
        call(python, "-m", "mypy", "--strict", "src", "tests", folder=package)


def main() -> None:
    """Try the wheel with every Python and every choice of versions that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="PYTHON", help="default: the one that runs this")
    parser.add_argument("--versions", action="append", choices=[NEWEST, OLDEST], help="default: newest")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="crfl-wheel-") as scratch:
        wheel = build_wheel(Path(scratch))
        for python in options.python or [sys.executable]:
            for versions in options.versions or [NEWEST]:
                print(f"{python}, {versions} versions", flush=True)
                folder = Path(scratch, f"{Path(python).name}-{versions}-{abs(hash(python))}")
                folder.mkdir()
                programs = make_environment(folder, python, versions, wheel)
                try_commands(programs, folder)
                try_own_package(programs, folder, typed=versions == NEWEST)
    print("the wheel works")


if __name__ == "__main__":
    main()
