"""What tests of the command line share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import crfl_core
from crfl_core import extend
from tests.cli.bad_input import BAD_POINTS, BAD_TOOLS, Bad, Refused
from tests.cli.terminals import Terminal
from tests.oracle import sealed

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Starts commands on terminals of their own, and ends what is left of them."""
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture(scope="session")
def unfinished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run that was interrupted after its second round."""

    class Interrupts(extend.Tracker):
        @extend.hookimpl
        def crfl_round_started(self, current: extend.Round) -> None:
            if current.number == 3:
                raise KeyboardInterrupt

    path = tmp_path_factory.mktemp("unfinished") / "run"
    overrides = ["rounds=3", "attack=none", "storage.checkpoint_seconds=0", "engine.threads=1"]
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(overrides=overrides, out=path, trackers=[Interrupts()])
    return path


def contents(path: Path) -> set[Path]:
    """List every file and directory below a path."""
    return {entry for entry in path.rglob("*") if "__pycache__" not in entry.parts}


def lay_out(bad: Bad, folder: Path, runs: dict[str, Path]) -> None:
    """Copy the runs that a command names into its folder, and write its files."""
    for name, run in runs.items():
        if name in bad.command:
            shutil.copytree(run, folder / name)
    for name, content in bad.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
    if any(name.startswith("finished/") and name != "finished/status.json" for name in bad.files):
        sealed(folder / "finished")  # or else readers would stop at its digest


@pytest.fixture
def refused(crfl: Crfl, install: Install, tmp_path: Path, finished_run: Path, unfinished_run: Path) -> Refused:
    """Types a command that cannot work: one clear sentence, exit status 2, no traceback, nothing half-written."""

    def check(bad: Bad) -> None:
        install("bad-tools", "1.0", BAD_POINTS, BAD_TOOLS)
        install("broken-tools", "0.3", {"crfl.trackers": {"broken": "Broken"}}, "import no_such_module")
        lay_out(bad, tmp_path, {"finished": finished_run, "unfinished": unfinished_run})
        before = contents(tmp_path)

        result = crfl(*bad.command)

        assert result.returncode == 2
        told = [line for line in result.stderr.splitlines() if not line.startswith("warning: ")]
        assert told[0].startswith(f"error: {bad.begins}")
        for words in bad.says:
            assert words in result.stderr
        assert "Traceback" not in result.stderr
        assert result.stdout == ""
        assert contents(tmp_path) == before

    return check
