"""Separate packages beside an installed crfl: a good one through its whole life, and all kinds of broken ones."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import crfl_core

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("third-party")]  # one process builds the packages

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "third_party"
PACKAGE = EXAMPLES / "crfl-cge"
QUICK = (
    "rounds=4",
    "attack.rounds=[3]",
    "partition.clients=20",
    "certificates.0.continuations=20",
    "storage.figures=[]",
)

DRIVER = """
import contextlib, io, json, sys, warnings
from crfl_core import cli

results = []
for arguments in json.loads(sys.argv[1]):
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            cli.main(arguments)
        except SystemExit as stop:
            results.append([stop.code, output.getvalue(), errors.getvalue()])
print(json.dumps(results))
"""
"""Several commands in one process: each would spend most of its time on importing PyTorch."""


class Environment:
    """A clean environment that holds the wheel of crfl."""

    def __init__(self, bin_folder: Path, folder: Path) -> None:
        self._bin = bin_folder
        self._folder = folder
        self._added: list[str] = []

    def call(self, *command: str) -> CompletedProcess[str]:
        """Run a program of the environment as if nothing else were installed."""
        # A file of constraints may be named relative to another directory.
        without = ("PYTHON", "PIP_CONSTRAINT")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(without)}
        environment["OMP_NUM_THREADS"] = "1"
        program, *arguments = command
        return subprocess.run(
            [str(self._bin / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self._folder,
            env=environment,
        )

    def pip(self, *arguments: str) -> None:
        """Run pip, which has to succeed."""
        done = self.call("python", "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)
        assert done.returncode == 0, done.stderr

    def install(self, *wheels: Path) -> None:
        """Put wheels in, and nothing that they depend on."""
        self.pip("install", "--no-deps", "--no-index", *map(str, wheels))
        self._added += [wheel.name.partition("-")[0] for wheel in wheels]

    def download(self, *requirements: str) -> None:
        """Put in what wheels depend on and crfl does not, in the tested versions, as the environment itself was."""
        before = self._distributions()
        self.pip("install", "--constraint", str(ROOT / "constraints.txt"), *requirements)
        self._added += sorted(self._distributions() - before)

    def _distributions(self) -> set[str]:
        listing = self.call("python", "-m", "pip", "--disable-pip-version-check", "list", "--format=json")
        return {line["name"] for line in json.loads(listing.stdout)}

    def clean(self) -> None:
        """Take out what was put in."""
        if self._added:
            self.pip("uninstall", "--yes", *self._added)
            self._added.clear()

    def crfl(self, *commands: Sequence[str]) -> list[CompletedProcess[str]]:
        """Run commands of crfl one after the other."""
        done = self.call("python", "-c", DRIVER, json.dumps([list(map(str, command)) for command in commands]))
        assert done.returncode == 0, done.stderr
        results: list[tuple[int, str, str]] = json.loads(done.stdout)
        return [CompletedProcess((), *result) for result in results]


@pytest.fixture
def environment(clean_venv: Path, tmp_path: Path) -> Iterator[Environment]:
    """The session's clean environment, and clean again afterwards."""
    environment = Environment(clean_venv, tmp_path)
    yield environment
    environment.clean()


def built(project: Path, folder: Path) -> Path:
    """The wheel of a project, by the build backend of the tests' own environment."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(project)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob(f"{project.name.replace('-', '_')}-*.whl"))


def small_wheel(folder: Path, distribution: str, version: str, group: str, name: str, source: str) -> Path:
    """A wheel with one module, in which the class is always called `Plugin`."""
    module = distribution.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    content = {
        f"{module}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[{group}]\n{name} = {module}:Plugin\n",
    }
    digests = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        for path, text in content.items()
    ]
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in (content | {f"{info}/RECORD": "\n".join([*digests, f"{info}/RECORD,,", ""])}).items():
            archive.writestr(path, text)
    return wheel


def listed(result: CompletedProcess[str], **wanted: str) -> list[tuple[str, str, str]]:
    """Distribution, version and state of some plugins, from the output of `crfl plugins --json`."""
    lines = [line for line in json.loads(result.stdout) if wanted.items() <= line.items()]
    return [(line["distribution"], line["version"], line["status"]) for line in lines]


def test_packages_are_installed_listed_trained_certified_and_removed(environment: Environment, tmp_path: Path) -> None:
    """A finished package, and one as `crfl new` writes it, under a name that is taken."""
    (written,) = environment.crfl(["new", "aggregator", "trimmed-mean"])
    assert written.returncode == 0
    fresh = tmp_path / "crfl-trimmed-mean"
    environment.install(built(PACKAGE, tmp_path), built(fresh, tmp_path))

    example, quick = str(PACKAGE / "example.toml"), [word for setting in QUICK for word in ("--set", setting)]
    plugins, explained, ran, refused, checked = environment.crfl(
        ["plugins", "--json"],
        ["explain", example, "--set", "aggregation.cge.f=7"],
        ["run", example, "--quiet", "--out", "run", *quick],
        ["run", example, "--quiet", "--out", "never", "--set", "aggregation.cge.f=150"],
        ["plugins", "check", "crfl-trimmed-mean:trimmed-mean"],
    )
    assert listed(plugins, kind="aggregator", name="cge") == [("crfl-cge", "0.1.0", "ok")]
    assert sorted(listed(plugins, kind="aggregator", name="trimmed-mean")) == [
        ("crfl", crfl_core.__version__, "conflict"),
        ("crfl-trimmed-mean", "0.1.0", "conflict"),
    ]
    assert "aggregation.1.f = 7" in explained.stdout  # behind the cap that the client level asks for
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "2 f must be below the number of clients, found f = 150 for 200" in refused.stderr
    assert checked.returncode == 0, checked.stdout

    recorded = json.loads((tmp_path / "run" / "environment.json").read_text(encoding="utf-8"))["plugins"]
    (cge,) = (plugin for plugin in recorded if plugin["name"] == "cge")
    assert (cge["kind"], cge["distribution"], cge["version"]) == ("aggregator", "crfl-cge", "0.1.0")
    certified = (tmp_path / "run" / "certificates" / "postprocess.csv").read_text(encoding="utf-8").splitlines()
    assert len(certified) > 100
    assert all(",client," in line for line in certified[1:])

    environment.clean()
    (missing,) = environment.crfl(["run", example, "--out", "gone"])
    assert missing.returncode == 2
    assert "aggregation.0.type = 'cge': there is no aggregator 'cge'" in missing.stderr
    assert not (tmp_path / "gone").exists()


ADDED = {"zeno": "aggregator", "poisonedfl": "attack", "breast-cancer": "dataset", "quorum": "certificate"}
"""Plugins of the other packages in examples/third_party, each named like its package."""


def test_packages_that_know_nothing_of_each_other_work_together(environment: Environment, tmp_path: Path) -> None:
    """A rule with trusted data, an attack with a memory, a dataset and a certificate: listed, checked, run, resumed."""
    environment.install(*(built(EXAMPLES / f"crfl-{name}", tmp_path) for name in ADDED))
    environment.download("scikit-learn")  # which holds the dataset of crfl-breast-cancer

    together, quiet = str(EXAMPLES / "together.toml"), ["--quiet", "--set", "storage.figures=[]"]
    plugins, ran, shown, *examined = environment.crfl(
        ["plugins", "--json"],
        ["run", together, "--out", "run", *quiet],
        ["show", "run"],
        *(["plugins", "check", f"crfl-{name}:{name}"] for name in ADDED),
        *(["run", str(EXAMPLES / f"crfl-{name}" / "example.toml"), "--out", name, *quiet] for name in ADDED),
    )
    for name, kind in ADDED.items():
        assert listed(plugins, kind=kind, name=name) == [(f"crfl-{name}", "0.1.0", "ok")]
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "quorum" in shown.stdout
    for result in examined:
        assert result.returncode == 0, result.stdout + result.stderr

    recorded = json.loads((tmp_path / "run" / "environment.json").read_text(encoding="utf-8"))["plugins"]
    origins = {(one["kind"], one["name"], one["distribution"], one["version"]) for one in recorded}
    assert origins >= {(kind, name, f"crfl-{name}", "0.1.0") for name, kind in ADDED.items()}
    found = crfl_core.load(tmp_path / "run")  # by a crfl that has none of them
    assert found.metrics.accuracy > 0.85
    assert found.ledger.facts.reserve["root"].used_by == ("zeno",)
    (curve,) = found.metrics.curves
    assert (curve.certificate, curve.directions) == ("quorum", ("backward", "forward"))
    assert curve.certified_accuracy[1] > 0.7


TRACKER = "from crfl_core.extend import Tracker, hookimpl\nclass Plugin(Tracker):\n"
BROKEN = {
    "raises-on-import": ("crfl.trackers", "raise RuntimeError('out of order')"),
    "misspelt-hook": ("crfl.trackers", TRACKER + "    @hookimpl\n    def crfl_round_finnished(self): pass\n"),
    "newer-api": ("crfl.trackers", "from typing import ClassVar\n" + TRACKER + "    api_version: ClassVar = 99\n"),
    "prints-on-import": ("crfl.trackers", "print('bought at a discount')\n" + TRACKER + "    '''Harmless.'''\n"),
    "raises-in-a-hook": (
        "crfl.trackers",
        TRACKER + "    @hookimpl\n    def crfl_round_finished(self): raise KeyError('lost')\n",
    ),
    "raises-in-a-rule": (
        "crfl.aggregators",
        "from crfl_aggregators.trimmed_mean import Median\nfrom crfl_core.extend import hookimpl\n"
        "class Plugin(Median):\n"
        "    @hookimpl\n    def crfl_accept_round(self): raise KeyError('lost')\n",
    ),
    "rival": ("crfl.trackers", TRACKER + "    '''Wants to be jsonl, too.'''\n"),
}


@pytest.fixture
def broken(environment: Environment, tmp_path: Path) -> Environment:
    """The environment with every broken package in it; each is of version 0.<length of its name>."""
    environment.install(
        *(
            small_wheel(tmp_path, f"crfl-{name}", version(name), group, "jsonl" if name == "rival" else name, source)
            for name, (group, source) in BROKEN.items()
        )
    )
    return environment


def version(name: str) -> str:
    return f"0.{len(name)}"


def test_broken_packages_disturb_no_run_and_say_what_is_wrong(
    broken: Environment, small: list[str], tmp_path: Path
) -> None:
    def tracked(name: str) -> list[str]:
        return ["run", "--quiet", "--out", name, *small, "--set", f"trackers=['{name}']"]

    plugins, unaware, failing, conflict, chosen, broken_rule, *refused = broken.crfl(
        ["plugins", "--json"],
        ["run", "--quiet", "--out", "unaware", *small],
        tracked("raises-in-a-hook"),
        tracked("jsonl"),
        tracked("crfl:jsonl"),
        ["run", "--quiet", "--out", "rule", *small, "--set", "aggregation=['raises-in-a-rule']"],
        *map(tracked, ("raises-on-import", "misspelt-hook", "newer-api")),
    )
    assert plugins.stderr == "bought at a discount\n"
    lines = {line["distribution"]: line for line in json.loads(plugins.stdout)}
    assert {name: (line["version"], line["status"]) for name, line in lines.items() if name != "crfl"} == {
        f"crfl-{name}": (
            version(name),
            {"raises-on-import": "failed", "misspelt-hook": "failed", "newer-api": "failed", "rival": "conflict"}.get(
                name, "ok"
            ),
        )
        for name in BROKEN
    }
    assert "RuntimeError: out of order" in lines["crfl-raises-on-import"]["reason"]
    assert "needs plugin API 99, this crfl offers 1" in lines["crfl-newer-api"]["reason"]
    assert lines["crfl-raises-in-a-hook"]["hooks"] == ["crfl_round_finished"]

    assert (unaware.returncode, unaware.stderr) == (0, "")
    assert failing.returncode == 0
    assert "tracker 'raises-in-a-hook' of crfl-raises-in-a-hook 0.16 failed in crfl_round_finished" in failing.stderr
    assert "the run continues without it" in failing.stderr
    assert conflict.returncode == 2
    assert "tracker 'jsonl' is declared by" in conflict.stderr
    assert "crfl-rival 0.5" in conflict.stderr
    assert chosen.returncode == 0
    assert broken_rule.returncode == 2
    assert (
        "aggregator 'raises-in-a-rule' of crfl-raises-in-a-rule 0.16 failed in crfl_accept_round" in broken_rule.stderr
    )
    for name, result in zip(("raises-on-import", "misspelt-hook", "newer-api"), refused, strict=True):
        assert result.returncode == 2
        assert f"tracker {name!r} of crfl-{name} {version(name)}" in result.stderr
        assert not (tmp_path / name).exists()
    assert "there is no hook 'crfl_round_finnished'" in refused[1].stderr
    assert "did you mean 'crfl_round_finished'" in refused[1].stderr
