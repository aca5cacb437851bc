"""A short campaign: every kind of fault once, and that a careless store would be caught.

`make torture` is the long one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.conftest import ROOT
from tests.torture.campaign import Result, table
from tests.torture.children import Watch
from tests.torture.comparing import differences, leftovers
from tests.torture.scenes import phase


def torture(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The campaign as people start it, in a folder of its own."""
    command = [sys.executable, "-m", "tests.torture", "--processes", "1", *options]
    where = os.environ | {"TMPDIR": str(folder)}
    return subprocess.run(command, cwd=ROOT, env=where, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
def test_no_fault_loses_or_changes_anything(tmp_path: Path) -> None:
    ended = torture(tmp_path, "--faults", "16")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.search(r"(\d+) faults in \d+ cases, \d+ s: 0 lost or different", ended.stdout)
    assert found, ended.stdout
    assert int(found[1]) >= 16
    for kind in ("SIGKILL at a file operation", "power cut", "two writers", "clock jumps", "in a terminal"):
        assert kind in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_careless_store_is_caught(tmp_path: Path) -> None:
    """These are power cuts: half of a file that is overwritten in place is lost."""
    ended = torture(tmp_path, "--careless", "--case", "33", "46")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert ": damaged: " in ended.stdout


def test_whatever_differs_is_found(finished_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    assert differences(run, finished_run) == []
    (run / "metrics.json").write_text("{}")
    (run / "audit.json").unlink()
    (run / ".status.json.tmp").write_text("half")
    (run / "checkpoint").mkdir()
    tmp_path.joinpath(".run.new-1").mkdir()
    assert differences(run, finished_run) == [
        "run/audit.json is missing",
        "run/.status.json.tmp is left over",
        "run/checkpoint is left over",
        "run/metrics.json differs",
    ]
    assert leftovers(tmp_path) == [".run.new-1 lies beside the run"]
    assert differences(tmp_path / "nothing", finished_run) == ["nothing is not there"]


@pytest.mark.parametrize("synchronised", [True, False])
def test_a_power_cut_takes_back_names_that_were_not_synchronised(tmp_path: Path, synchronised: bool) -> None:
    """In a child, because what listens to a process cannot be taken back."""
    told, telling = os.pipe()
    for name in ("new", "old"):
        (tmp_path / name).write_text(name)
    if os.fork() == 0:
        watch = Watch(tmp_path, telling, 0, lambda _: None)
        watch.install()
        (tmp_path / "new").rename(tmp_path / "old")
        if synchronised:
            folder = os.open(tmp_path, os.O_RDONLY)
            os.fsync(folder)
        watch.tear(FirstOfAll())
        os._exit(0)
    os.wait()
    os.close(telling)
    os.close(told)
    found = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert found == ({"old": "new"} if synchronised else {"new": "new", "old": "old"})


class FirstOfAll(Random):
    """Chance that always draws the smallest number: everything that can be lost is lost."""

    def randint(self, a: int, b: int) -> int:
        return a


def test_a_power_cut_takes_what_was_not_synchronised(tmp_path: Path) -> None:
    """In a child, because audit hooks of a process cannot be removed."""
    told, telling = os.pipe()
    if os.fork() == 0:
        watch = Watch(tmp_path, telling, 0, lambda _: None)
        watch.install()
        for name, synchronised in (("kept", True), ("lost", False)):
            with (tmp_path / name).open("wb") as file:
                file.write(1_000 * b"x")
                file.flush()
                if synchronised:
                    os.fsync(file.fileno())
        (tmp_path / "lost").rename(tmp_path / "moved")
        os.fsync(os.open(tmp_path, os.O_RDONLY))  # the name, not the content
        watch.tear(Random(3))
        os._exit(0)
    os.wait()
    os.close(telling)
    said = os.read(told, 10_000).decode().splitlines()
    os.close(told)
    assert said == ["open kept", "fsync kept", "open lost", "rename lost"]
    assert (tmp_path / "kept").read_bytes() == 1_000 * b"x"
    assert (tmp_path / "moved").read_bytes() != 1_000 * b"x"


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("mkdir .run.new-abc", "creating"),
        ("rename run", "training"),
        ("rename run.previous/.lock", "replacing"),
        ("fsync run/checkpoint/.state.safetensors.tmp", "training"),
        ("open run/resample/.round-0002.safetensors.tmp", "training"),
        ("open run/resample/.models-12.safetensors.tmp", "continuations"),
        ("open run/.what-if-x/more/votes/.12.npz.tmp", "votes"),
        ("rename run/.what-if-x/more", "saving an answer"),
        ("open run/.manifest.json.tmp", "certificates"),
    ],
)
def test_an_operation_tells_the_phase(operation: str, expected: str) -> None:
    assert phase(operation) == expected


def test_the_table_counts_faults_by_kind_and_phase() -> None:
    results = [
        Result(0, "run", (("SIGKILL", "votes"), ("SIGKILL", "training")), (), 1.0),
        Result(1, "run", (("disk full", "votes"),), (), 1.0),
    ]
    assert table(results).splitlines() == [
        "fault     training votes all",
        "SIGKILL          1     1   2",
        "disk full              1   1",
        "all              1     2   3",
    ]
