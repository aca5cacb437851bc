"""`--force` replaces a run and deletes what that run wrote: nothing that a person put there, and no other folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import crfl_core
from crfl_core.errors import StoreError
from crfl_core.extend import CrflWarning, RoundRecord, Tracker, hookimpl
from tests.oracle import contents, tiny

Crfl = Callable[..., CompletedProcess[str]]
CONFIG = tiny(rounds=2, trackers=[{"type": "jsonl", "path": "log.jsonl"}])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run with the file of a tracker and a saved answer."""
    run = crfl_core.run(CONFIG, out=tmp_path_factory.mktemp("force") / "run")
    crfl_core.certify(run, ["threat.clients=2"], save="two")
    return run.path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_folder_with_a_thesis_and_a_status_of_its_own_is_left_alone(tmp_path: Path, crfl: Crfl) -> None:
    """Other programs call their files status.json, too."""
    folder = tmp_path / "thesis"
    folder.mkdir()
    for status in ("{}", "done", '{"format": 1, "state": "finished"}'):
        (folder / "status.json").write_text(status)
        (folder / "thesis.tex").write_text("four years")
        before = contents(folder)
        result = crfl("run", "--out", "thesis", "--force")
        assert (result.returncode, result.stdout) == (2, "")
        assert "thesis: exists but is not a run directory: choose another --out" in result.stderr
        assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


def test_a_thesis_in_a_run_directory_is_kept_and_named(run: Path) -> None:
    (run / "thesis.tex").write_text("four years")
    (run / "figures" / "mine").mkdir(parents=True)
    (run / "figures" / "mine" / "plot.svg").write_text("drawn by hand")
    previous = run.with_name("run.previous")
    with pytest.warns(CrflWarning, match=r"run\.previous: keeps figures/mine/plot\.svg, thesis\.tex, which the"):
        crfl_core.run(CONFIG, out=run, force=True)
    assert contents(previous) == {"thesis.tex": b"four years", "figures/mine/plot.svg": b"drawn by hand"}
    assert crfl_core.load(run).metrics.accuracy > 0


def test_files_of_trackers_and_saved_answers_go_with_the_run(run: Path) -> None:
    assert (run / "log.jsonl").exists()
    assert (run / "what-if/two/metrics.json").exists()
    crfl_core.run(CONFIG, out=run, force=True)
    assert [path.name for path in run.parent.iterdir()] == ["run"]


class Impatient(Tracker):
    """Stops a run in its last round."""

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        if record.round == 2:
            raise KeyboardInterrupt


def test_an_unfinished_replacement_goes_with_its_trackers_files(run: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            crfl_core.run(CONFIG, out=run, force=True, trackers=[Impatient()])
    assert sorted(path.name for path in run.parent.iterdir()) == ["run", "run.previous"]


def test_a_link_to_a_run_is_not_followed(run: Path, crfl: Crfl) -> None:
    run.with_name("link").symlink_to(run)
    before = contents(run)
    result = crfl("run", "--out", "link", "--force")
    assert result.returncode == 2
    assert "link: is a link to " in result.stderr
    assert contents(run) == before


def test_a_link_inside_of_a_run_is_not_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "paper.csv").write_text("data")
    (run / "certificates" / "mine").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(CrflWarning, match="keeps certificates/mine"):
        crfl_core.run(CONFIG, out=run, force=True)
    assert (tmp_path / "elsewhere" / "paper.csv").read_text() == "data"


@pytest.mark.parametrize("out", [".", "..", "run/..", "../run"])
def test_the_current_directory_is_never_replaced(
    out: str, run: Path, crfl: Crfl, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(run)
    monkeypatch.chdir(run)
    (run / "run").mkdir()
    for options in ((), ("--force",)):
        result = crfl("run", "--out", out, *options)
        assert (result.returncode, result.stdout) == (2, "")
        assert f"{Path(out)}: is the current directory, or holds it: give --out the name of a new one" in result.stderr
    assert contents(run) == before


def test_a_hostile_run_cannot_name_other_files_for_deletion(run: Path) -> None:
    """Patterns and paths that lead out of the directory are names like any other, which no file has."""
    config = (run / "config.toml").read_text().replace("log.jsonl", "*.tex")
    (run / "config.toml").write_text(config)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"others": ["*", "../notes.txt", "/etc/hosts"]}))
    (run / "thesis.tex").write_text("four years")
    (run.parent / "notes.txt").write_text("mine")
    with pytest.warns(CrflWarning, match=r"thesis\.tex"):
        crfl_core.run(CONFIG, out=run, force=True)
    assert (run.with_name("run.previous") / "thesis.tex").exists()
    assert (run.parent / "notes.txt").exists()


def test_without_force_nothing_but_a_run_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "crfl.json").write_text(json.dumps({"kind": "something else"}))
    with pytest.raises(StoreError, match="exists but is not a run directory"):
        crfl_core.run(CONFIG, out=tmp_path / "folder")
