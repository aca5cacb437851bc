"""Run directories: there at once or not at all, never overwritten by accident, plain files without pickles."""

from __future__ import annotations

import json
import shutil
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import crfl_core
from crfl_core import RunResult, dump_config, extend
from crfl_core.errors import StoreError
from crfl_core.extend import Plugin, Tracker, hookimpl
from crfl_core.runs.run_directory import RunDirectory
from tests.oracle import Momentum, contents, stopping, tiny

PLUGINS: dict[str, type[Plugin]] = {"momentum": Momentum}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """One finished run; tests that change it take a copy."""
    return crfl_core.run(tiny(storage={}), out=tmp_path_factory.mktemp("store") / "run")


@pytest.fixture
def run(finished: RunResult, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return Path(shutil.copytree(finished.path, tmp_path / "run"))


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """A run that was interrupted in its third round, with a checkpoint of the second."""
    return interrupt(tmp_path / "run")


def interrupt(path: Path, *, force: bool = False) -> Path:
    """Start a run and stop it like a person would."""
    config = tiny(aggregation=[{"type": "momentum"}], storage={"checkpoint_seconds": 0}, name="interrupted")
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config, out=path, plugins={"momentum": stopping(3, KeyboardInterrupt())}, force=force)
    return path


def left_over(folder: Path) -> list[str]:
    """Temporary files and directories that a run should have removed."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.name != ".lock" and (path.name.startswith(".") or path.name in ("checkpoint", "run.previous"))
    )


def test_a_run_directory_holds_the_documented_files_and_no_others(finished: RunResult) -> None:
    files = set(contents(finished.path))
    (votes,) = (name for name in files if name.startswith("votes/"))
    assert files == {
        "config.toml",
        "crfl.json",
        "status.json",
        "manifest.json",
        "ledger.json",
        "rounds.jsonl",
        "clients.npz",
        "model.safetensors",
        "certificates/paper.csv",
        "audit.json",
        "metrics.json",
        "figures/partition.svg",
        "figures/partition.png",
        votes,
    }
    assert left_over(finished.path.parent) == []


def test_nothing_is_pickled(finished: RunResult) -> None:
    """Every array can be read with pickles forbidden, and no member of an archive is an object array."""
    for file in finished.path.rglob("*.npz"):
        assert all(name.endswith(".npy") for name in zipfile.ZipFile(file).namelist())
        with np.load(file, allow_pickle=False) as arrays:
            assert all(arrays[name].dtype.kind in "bifU" for name in arrays)
    assert set(load_file(finished.path / "model.safetensors")) == {"weight", "bias"}


def test_the_stored_config_is_complete_and_loads_to_the_same_object(finished: RunResult) -> None:
    stored = (finished.path / "config.toml").read_text()
    assert dump_config(crfl_core.load_config(finished.path / "config.toml").config) == stored
    assert set(tomllib.loads(stored)) >= {"seed", "training", "server", "votes", "storage", "evaluation"}


def test_the_environment_names_versions_and_the_distribution_of_every_plugin(finished: RunResult) -> None:
    environment = json.loads((finished.path / "environment.json").read_text())
    assert {"crfl", "python", "torch", "numpy", "scipy", "threads"} <= environment.keys()
    plugins = {(entry["kind"], entry["name"]): entry["distribution"] for entry in environment["plugins"]}
    assert plugins["attack", "model-replacement"] == "crfl"
    assert plugins["certificate", "paper"] == "crfl"


def test_a_finished_run_is_not_overwritten(run: Path) -> None:
    before = contents(run)
    with pytest.raises(StoreError, match="holds a finished run"):
        crfl_core.run(tiny(), out=run)
    assert contents(run) == before


def test_an_unfinished_run_is_not_continued_with_another_config(unfinished: Path) -> None:
    before = contents(unfinished)
    with pytest.raises(StoreError, match="holds an unfinished run with another config"):
        crfl_core.run(tiny(seed=5), out=unfinished)
    assert contents(unfinished) == before


def test_a_directory_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.jpg").write_bytes(b"sun")
    for force in (False, True):
        with pytest.raises(StoreError, match="exists but is not a run directory: choose another --out"):
            crfl_core.run(tiny(), out=tmp_path / "photos", force=force)
    assert contents(tmp_path / "photos") == {"holiday.jpg": b"sun"}


def test_an_empty_directory_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "prepared").mkdir()
    assert crfl_core.run(tiny(), out=tmp_path / "prepared").metrics.accuracy > 0


def test_force_replaces_a_finished_run(run: Path) -> None:
    result = crfl_core.run(tiny(seed=2), out=run, force=True)
    assert result.config.seed == 2
    assert left_over(run.parent) == []


def test_force_keeps_the_old_run_until_the_new_one_is_finished(run: Path) -> None:
    before = contents(run)
    interrupt(run, force=True)
    previous = run.with_name("run.previous")
    assert contents(previous) == before | {".replaced": b""}
    assert crfl_core.load(previous).metrics.accuracy > 0
    crfl_core.resume(run, plugins=PLUGINS)
    assert not previous.exists()


def test_force_twice_keeps_the_run_that_was_finished(run: Path) -> None:
    """The second attempt replaces the first, which never got anywhere, not the finished run beside it."""
    before = contents(run)
    interrupt(run, force=True)
    interrupt(run, force=True)
    assert contents(run.with_name("run.previous")) == before | {".replaced": b""}


def test_force_removes_nothing_that_it_did_not_set_aside(run: Path) -> None:
    """A run that a user called `run.previous` is not ours to delete."""
    other = run.with_name("run.previous")
    other.mkdir()
    (other / "theirs").touch()
    with pytest.raises(StoreError, match="is in the way"):
        crfl_core.run(tiny(seed=2), out=run, force=True)
    assert (other / "theirs").exists()
    assert crfl_core.load(run).metrics.accuracy > 0


def test_force_replaces_a_run_whose_status_is_damaged(run: Path) -> None:
    (run / "status.json").write_text("{")
    assert crfl_core.run(tiny(), out=run, force=True).metrics.accuracy > 0
    assert left_over(run.parent) == []


def test_a_run_that_cannot_be_created_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process was faster between the look and the rename."""
    path = tmp_path / "run"
    monkeypatch.setattr("crfl_core.runs.run.claim_path", lambda *_, **__: None)
    path.mkdir()
    (path / "theirs").touch()
    with pytest.raises(StoreError, match="cannot create the run directory: Directory not empty"):
        crfl_core.run(tiny(), out=path)
    assert [file.name for file in tmp_path.rglob("*")] == ["run", "theirs"]


def test_nothing_is_written_for_a_config_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(extend.ConfigError):
        crfl_core.run(tiny(attack=tiny()["attack"] | {"clients": [99]}), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer_is_refused(unfinished: Path) -> None:
    before = contents(unfinished)
    with RunDirectory(unfinished).lock():
        with pytest.raises(StoreError, match="another process is writing this run"):
            crfl_core.resume(unfinished, plugins=PLUGINS)
        with pytest.raises(StoreError, match="another process is writing this run"):
            crfl_core.run(tiny(), out=unfinished, force=True)
        assert contents(unfinished) == before
    assert crfl_core.resume(unfinished, plugins=PLUGINS).metrics.accuracy > 0


def test_an_interrupted_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunDirectory(tmp_path)
    files.write("model.bin", b"old")

    def die(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", die)
    with pytest.raises(KeyboardInterrupt):
        files.write("model.bin", b"new and longer")
    assert (tmp_path / "model.bin").read_bytes() == b"old"
    monkeypatch.undo()
    files.write("model.bin", b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("model.bin", b"new")]


def test_an_unfinished_run_cannot_be_loaded_but_resumed(unfinished: Path) -> None:
    with pytest.raises(StoreError, match="the run is not finished: continue with `crfl run"):
        crfl_core.load(unfinished)
    assert crfl_core.resume(unfinished, plugins=PLUGINS).path == unfinished


def test_resuming_a_finished_run_returns_it_untouched(run: Path) -> None:
    before = contents(run)
    assert crfl_core.resume(run).metrics.accuracy > 0
    assert contents(run) == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("checkpoint/state.safetensors", b"\x00" * 20, "state.safetensors: damaged"),
        ("checkpoint/clients-00000001.npz", b"PK", "clients-00000001.npz: damaged"),
        ("rounds.jsonl", b'{"round": 1}\n{"round": 2}\n', "rounds.jsonl: damaged"),
        ("rounds.jsonl", b"", "the ledger ends before the checkpoint of round 2"),
        ("ledger.json", b"{}", "ledger.json: damaged"),
        ("status.json", b"[1", "status.json: damaged"),
        ("config.toml", b"= 3", "config.toml: damaged"),
    ],
)
def test_a_damaged_unfinished_run_is_refused_with_the_file(
    unfinished: Path, name: str, content: bytes, message: str
) -> None:
    (unfinished / name).write_bytes(content)
    with pytest.raises(crfl_core.CrflError, match=message):
        crfl_core.resume(unfinished, plugins=PLUGINS)


def test_a_format_of_another_version_is_refused(run: Path) -> None:
    (run / "status.json").write_text(json.dumps({"format": 99, "state": "finished"}))
    with pytest.raises(StoreError, match="written in format 99, this version of crfl reads format 1"):
        crfl_core.load(run)


def test_a_run_is_not_continued_on_other_data(unfinished: Path) -> None:
    """As if the data files had changed in between: what the ledger says about them no longer holds."""
    facts = json.loads((unfinished / "ledger.json").read_text())
    facts["test_sets"]["clean"]["digest"] = "0" * 64
    directory = RunDirectory(unfinished)
    directory.write("ledger.json", json.dumps(facts).encode())
    tensors, notes = directory.read_tensors_and_notes("checkpoint/state.safetensors")
    notes["files"]["ledger.json"] = directory.digests["ledger.json"]
    directory.write_tensors("checkpoint/state.safetensors", tensors, notes)
    directory.record_files()
    with pytest.raises(StoreError, match="test_sets"):
        crfl_core.resume(unfinished, plugins=PLUGINS)


class Spy(Tracker):
    """Looks at the directory while the run continues."""

    @hookimpl
    def crfl_round_finished(self, run: extend.RunContext) -> None:
        seen.append(RunDirectory(run.path).state)


seen: list[str] = []


def test_the_status_says_how_far_a_run_has_come(tmp_path: Path) -> None:
    seen.clear()
    result = crfl_core.run(tiny(), out=tmp_path / "run", trackers=[Spy()])
    assert seen == ["training"] * 4
    assert RunDirectory(result.path).state == "finished"
