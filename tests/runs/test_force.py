"""`--force` replaces a run and deletes what that run wrote: nothing that a person put there, and no other folder."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import crfl_core
from crfl_core.errors import StoreError
from crfl_core.extend import CrflWarning, RoundRecord, RunContext, Tracker, hookimpl
from tests.oracle import contents, sealed, tiny
from tests.runs.test_leftovers import Killed, killed_behind

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
    kept = run.with_name("run.kept-1")
    with pytest.warns(CrflWarning, match=r"run\.kept-1: keeps figures/mine/plot\.svg, thesis\.tex, which the"):
        crfl_core.run(CONFIG, out=run, force=True)
    assert contents(kept) == {"thesis.tex": b"four years", "figures/mine/plot.svg": b"drawn by hand"}
    assert crfl_core.load(run).metrics.accuracy > 0


def test_files_of_trackers_and_saved_answers_go_with_the_run(run: Path) -> None:
    assert (run / "log.jsonl").exists()
    assert (run / "what-if/two/metrics.json").exists()
    crfl_core.run(CONFIG, out=run, force=True)
    assert [path.name for path in run.parent.iterdir()] == ["run"]


USERS_FILES = ("notes.md", "my/thesis.tex", "certificates/my.csv", "votes/backup.npz", "checkpoint/mine.npz", "a.csv")


class WritesNotes(Tracker):
    """A user who puts files into a run while it trains."""

    @hookimpl
    def crfl_round_finished(self, run: RunContext) -> None:
        for name in USERS_FILES:
            (run.path / name).parent.mkdir(exist_ok=True)
            (run.path / name).write_text("four years")


def test_files_that_a_user_puts_into_a_run_while_it_trains_are_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    crfl_core.run(CONFIG, out=run, trackers=[WritesNotes()])
    with pytest.warns(CrflWarning, match=r"run\.kept-1: keeps a\.csv, certificates/my\.csv, checkpoint"):
        crfl_core.run(CONFIG, out=run, force=True)
    assert contents(tmp_path / "run.kept-1") == dict.fromkeys(sorted(USERS_FILES), b"four years")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.kept-1"]


def test_an_interrupted_run_that_is_replaced_keeps_the_files_of_a_user(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(CONFIG, out=run, trackers=[WritesNotes(), Impatient()])
    with pytest.warns(CrflWarning, match=r"run\.kept-1: keeps a\.csv, certificates"):
        crfl_core.run(CONFIG, out=run, force=True)
    assert contents(tmp_path / "run.kept-1") == dict.fromkeys(sorted(USERS_FILES), b"four years")


def test_recorded_files_go_with_the_run_whatever_they_are_called(run: Path) -> None:
    """As long as they are what the run wrote: one that a user changed is a file of the user."""
    manifest = json.loads((run / "manifest.json").read_text())
    for name in ("tables/new.csv", "tables/changed.csv"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("of the run")
        manifest["files"][name] = sha256(b"of the run").hexdigest()
    (run / "manifest.json").write_text(json.dumps(manifest))
    sealed(run, keep_manifest=True)
    (run / "tables/changed.csv").write_text("of the user")
    with pytest.warns(CrflWarning, match=r"run\.kept-1: keeps tables/changed\.csv, which"):
        crfl_core.run(CONFIG, out=run, force=True)
    assert contents(run.with_name("run.kept-1")) == {"tables/changed.csv": b"of the user"}


class WritesLate(Tracker):
    """Writes a file of its own when everything is finished, and names it nowhere."""

    @hookimpl
    def crfl_run_finished(self, run: RunContext) -> None:
        (run.path / "late.txt").write_text("finished")


def test_files_that_a_tracker_writes_at_the_very_end_do_not_block_force(tmp_path: Path) -> None:
    config = CONFIG | {"trackers": ["late"]}
    for _ in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CrflWarning)
            crfl_core.run(config, out=tmp_path / "run", force=True, plugins={"late": WritesLate})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", *(f"run.kept-{number}" for number in (1, 2, 3))]
    assert contents(tmp_path / "run.kept-3") == {"late.txt": b"finished"}


class WritesFolder(Tracker):
    """Writes into a folder that one of its options names."""

    folder: str = "events/today"

    @hookimpl
    def crfl_run_finished(self, run: RunContext) -> None:
        (run.path / self.folder).mkdir(parents=True)
        (run.path / self.folder / "17-34.txt").write_text("finished")


def test_folders_that_options_of_trackers_name_go_with_the_run(tmp_path: Path) -> None:
    config = CONFIG | {"trackers": ["folder"]}
    for _ in range(2):
        crfl_core.run(config, out=tmp_path / "run", force=True, plugins={"folder": WritesFolder})
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("number", range(1, 9))
def test_a_kill_while_files_of_a_user_are_kept_loses_none(
    number: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "thesis.tex").write_text("four years")
    with monkeypatch.context() as patch:
        patch.setattr("crfl_core.runs.run.clean_up", lambda folder: None)
        crfl_core.run(CONFIG, out=run, force=True)
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", CrflWarning)
        killed_behind(patch, "unlink", number + 6)
        with contextlib.suppress(Killed):
            crfl_core.resume(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CrflWarning)
        crfl_core.resume(run)
    assert contents(run.with_name("run.kept-1")) == {"thesis.tex": b"four years"}
    assert sorted(path.name for path in run.parent.iterdir()) == ["run", "run.kept-1"]


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
    assert (run.with_name("run.kept-1") / "thesis.tex").exists()
    assert (run.parent / "notes.txt").exists()


def test_without_force_nothing_but_a_run_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "crfl.json").write_text(json.dumps({"kind": "something else"}))
    with pytest.raises(StoreError, match="exists but is not a run directory"):
        crfl_core.run(CONFIG, out=tmp_path / "folder")
