"""What killed processes leave behind goes with the next command, and nothing that a living one works on."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import crfl_core
from crfl_core.errors import StoreError
from crfl_core.files import feature_cache as sealed
from crfl_core.files.atomic_files import (
    remove_abandoned_folders,
    replace_file,
    scratch_folder,
)
from crfl_core.runs.run_directory import RunDirectory
from tests.oracle import contents, tiny

Crfl = Callable[..., CompletedProcess[str]]
CONFIG = tiny(rounds=2, votes={"models": 16})


class Killed(BaseException):
    """Stands for the end of a process."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run, which no test changes."""
    return crfl_core.run(CONFIG, out=tmp_path_factory.mktemp("leftovers") / "run").path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def abandoned(path: Path) -> Path:
    """A folder as a kill leaves it: with a lock that no process holds, and something in it."""
    (path / "more" / "votes").mkdir(parents=True)
    (path / ".lock").touch()
    (path / "more" / "config.toml").write_text("half")
    return path


def killed_behind(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Let a process die right behind the n-th call of a function of `os`."""
    real, left = getattr(os, name), iter(range(number - 1, -1, -1))

    def call(*arguments: object, **options: object) -> None:
        real(*arguments, **options)
        if next(left, -1) == 0:
            raise Killed

    monkeypatch.setattr(os, name, call)


def test_a_scratch_folder_is_there_until_the_end_and_then_gone(tmp_path: Path) -> None:
    parent = tmp_path / "deeper"

    def interrupted() -> None:
        with scratch_folder(parent, ".new-") as folder:
            (folder / "file").write_text("text")
            remove_abandoned_folders(parent, ".new-")  # as another process would
            assert (folder / "file").exists()
            raise Killed

    with pytest.raises(Killed):
        interrupted()
    assert list(parent.iterdir()) == []


def test_only_folders_of_ours_that_no_process_holds_are_abandoned(tmp_path: Path) -> None:
    abandoned(tmp_path / ".new-1")
    (tmp_path / ".new-2").mkdir()  # a kill before there was a lock
    (tmp_path / ".new-theirs").mkdir()
    (tmp_path / ".new-theirs" / "thesis.tex").write_text("four years")
    (tmp_path / ".new-link").symlink_to(abandoned(tmp_path / "elsewhere"))
    (tmp_path / ".new-file").write_text("theirs")
    remove_abandoned_folders(tmp_path, ".new-")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new-file", ".new-link", ".new-theirs", "elsewhere"]
    assert (tmp_path / "elsewhere" / "more" / "config.toml").exists()


def test_a_folder_that_is_half_removed_is_removed_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("unlink", "rmdir"):
        abandoned(tmp_path / ".new-1")
        with monkeypatch.context() as patch:
            killed_behind(patch, name, 2 if name == "rmdir" else 1)
            with pytest.raises(Killed):
                remove_abandoned_folders(tmp_path, ".new-")
        assert (tmp_path / ".new-1").exists()
        remove_abandoned_folders(tmp_path, ".new-")
        assert list(tmp_path.iterdir()) == []


def test_the_next_answer_that_is_saved_removes_those_that_were_not(run: Path) -> None:
    for name in (".what-if-one", ".what-if-two"):
        abandoned(run / name)
    result = crfl_core.load(run)
    with scratch_folder(run, ".what-if-") as busy:
        crfl_core.certify(result, ["threat.clients=2"], save="more")
        assert busy.exists()
    assert [path.name for path in run.iterdir() if path.name.startswith(".what-if")] == []
    assert sorted(path.name for path in (run / "what-if" / "more").iterdir())[:2] == ["audit.json", "certificates"]


def test_an_answer_that_was_never_saved_is_no_stranger_and_goes_with_the_run(run: Path) -> None:
    abandoned(run / ".what-if-one")
    directory = RunDirectory(run)
    assert directory.list_foreign_files(directory.digests) == []
    crfl_core.run(CONFIG, out=run, force=True)
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_the_next_run_removes_what_was_never_created(run: Path) -> None:
    abandoned(run.with_name(".run.new-1"))
    abandoned(run.with_name(".other.new-1"))
    crfl_core.resume(run)
    assert sorted(path.name for path in run.parent.iterdir()) == [".other.new-1", "run"]
    crfl_core.run(CONFIG, out=run.with_name("other"))
    assert sorted(path.name for path in run.parent.iterdir()) == ["other", "run"]


def test_ctrl_c_while_a_run_is_created_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        killed_behind(patch, "fsync", 2)
        with pytest.raises(Killed):
            crfl_core.run(CONFIG, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_just_set_aside_is_known_as_such(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(run)
    with monkeypatch.context() as patch:
        killed_behind(patch, "rename", 1)
        with pytest.raises(Killed):
            crfl_core.run(CONFIG, out=run, force=True)
    assert contents(run.with_name("run.previous")) == before | {".replaced": b""}
    crfl_core.run(CONFIG, out=run, force=True)
    assert [path.name for path in run.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("number", [1, 6, 11, 12, 13, 14, 15, 16])
def test_a_run_that_is_half_deleted_is_deleted_by_the_next_process(
    number: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIG | {"trackers": [{"type": "jsonl", "path": "log.jsonl"}]}
    crfl_core.run(config, out=run, force=True)
    with monkeypatch.context() as patch:
        patch.setattr("crfl_core.runs.run.clean_up", lambda folder: None)
        crfl_core.run(config, out=run, force=True)
    previous = run.with_name("run.previous")
    assert contents(previous).keys() - {".replaced"} == contents(run).keys()
    with monkeypatch.context() as patch:
        killed_behind(patch, "unlink", number)
        with pytest.raises(Killed):
            crfl_core.resume(run)
    crfl_core.resume(run)
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_a_replacement_that_was_given_up_is_deleted_by_the_next_process(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killed_behind(patch, "rename", 2)  # the old run is set aside, the new one appears
        with pytest.raises(Killed):
            crfl_core.run(CONFIG, out=run, force=True)
    with monkeypatch.context() as patch:
        killed_behind(patch, "rename", 1)
        with pytest.raises(Killed):
            crfl_core.run(CONFIG, out=run, force=True)
    (discarded,) = (path for path in run.parent.iterdir() if path.name.startswith("run.discarded-"))
    assert (discarded / ".replaced").exists()
    crfl_core.run(CONFIG, out=run)
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_a_process_that_gets_the_lock_of_a_replaced_run_is_refused(run: Path) -> None:
    before = RunDirectory(run)
    assert before.has_marker
    crfl_core.run(CONFIG, out=run, force=True)
    with pytest.raises(StoreError, match="another process has replaced this run"), before.lock():
        pass
    with RunDirectory(run).lock():
        pass


def test_what_was_read_before_the_lock_is_read_again(run: Path) -> None:
    directory = RunDirectory(run)
    assert "metrics.json" in directory.digests
    other = RunDirectory(run)
    other.write("metrics.json", b"{}")
    other.finish()
    with directory.lock():
        assert directory.read("metrics.json") == b"{}"


def test_a_full_disk_is_not_filled_with_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    replace_file(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StoreError, match="free some space"):
        replace_file(tmp_path / "file", b"new")
    assert contents(tmp_path) == {"file": b"old"}


def test_files_that_killed_processes_wrote_to_the_cache_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".new-dead").write_bytes(b"half")

    def blocks() -> object:
        yield b"first"
        sealed.write_cache_file(
            tmp_path / "other", [b"content"]
        )  # which must leave the one that is being written alone
        yield b"second"

    sealed.write_cache_file(tmp_path / "file", blocks())  # type: ignore[arg-type]
    assert sealed.is_intact(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_every_command_says_that_it_was_interrupted(
    number: signal.Signals, status: int, run: Path, crfl: Crfl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crfl_core.runs.certify.certify", lambda *_, **__: signal.raise_signal(number))
    result = crfl("certify", run, "--save", "more")
    assert (result.returncode, result.stdout, result.stderr) == (status, "", "interrupted\n")
