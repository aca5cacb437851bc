"""A run directory that was altered after it was written is refused by everything that reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

import crfl_core
from crfl_core.errors import StoreError
from crfl_core.runs.run_directory import RunDirectory
from crfl_core.runs.verification import check_run
from tests.oracle import contents, sealed, write_status
from tests.runs import runs

Crfl = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run with votes, continuations and an answer to a what-if question."""
    return runs.finished(tmp_path_factory.mktemp("integrity") / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    np.savez(tmp_path / "new.npz", x=np.zeros((1, 64)))
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted in its third round, with a checkpoint of the second."""
    return runs.interrupted(tmp_path_factory.mktemp("stopped") / "run")


@pytest.fixture
def unfinished(stopped: Path, tmp_path: Path) -> Path:
    """An interrupted run of one's own."""
    return Path(shutil.copytree(stopped, tmp_path / "unfinished"))


def flip(path: Path, position: int = -1, bit: int = 6) -> None:
    """Turn one bit of a file over; the last bytes of tensors are the exponent of a number."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def test_one_digit_of_the_ledger_is_noticed(run: Path, crfl: Crfl) -> None:
    """More noise than there was would be certified against more clients than it withstands."""
    ledger = run / "rounds.jsonl"
    assert '"noise_std":0.02' in ledger.read_text()
    ledger.write_text(ledger.read_text().replace('"noise_std":0.02', '"noise_std":9.02', 1))
    for command in (("certify", run), ("predict", run, "new.npz")):
        result = crfl(*command)
        assert (result.returncode, result.stdout) == (2, "")
        assert f"{ledger}: damaged: " in result.stderr


def test_one_bit_of_the_model_is_noticed(run: Path, crfl: Crfl) -> None:
    flip(run / "model.safetensors")
    result = crfl("predict", run, "new.npz")
    assert (result.returncode, result.stdout) == (2, "")
    assert "model.safetensors: damaged: " in result.stderr


def test_a_number_in_the_metrics_is_noticed(run: Path, crfl: Crfl) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps(metrics | {"accuracy": 0.99}))
    for options in ((), ("--json",)):
        result = crfl("show", run, *options)
        assert (result.returncode, result.stdout) == (2, "")
        assert "metrics.json: damaged: " in result.stderr


def test_one_bit_of_a_checkpoint_is_noticed(unfinished: Path, crfl: Crfl) -> None:
    """Otherwise the run resumes into another model."""
    flip(unfinished / "checkpoint/state.safetensors")
    result = crfl("run", unfinished)
    assert (result.returncode, result.stdout) == (2, "")
    assert "checkpoint/state.safetensors: damaged: " in result.stderr


@pytest.mark.parametrize(
    "name",
    [
        "config.toml",
        "status.json",
        "environment.json",
        "ledger.json",
        "rounds.jsonl",
        "checkpoint/clients-00000001.npz",
        "checkpoint/clients-00000002.npz",
        "resample/round-0002.safetensors",
    ],
)
def test_every_file_that_an_interrupted_run_wrote_is_compared(name: str, unfinished: Path) -> None:
    flip(unfinished / name, position=len((unfinished / name).read_bytes()) // 2, bit=0)
    with pytest.raises(StoreError, match=f"{name}: damaged: "):
        crfl_core.resume(unfinished)


def test_every_byte_of_an_interrupted_run_is_covered(unfinished: Path) -> None:
    """Whatever byte of whatever file changes: `crfl verify` names the file."""
    for file in sorted(file for file in unfinished.rglob("*") if file.is_file() and file.name != ".lock"):
        whole = file.read_bytes()
        for position in range(0, len(whole), max(1, len(whole) // 7)):
            flip(file, position, bit=position % 7)
            try:
                problems = check_run(RunDirectory(unfinished)).problems
            except StoreError as error:
                problems = (str(error),)
            assert problems, f"{file}, byte {position}"
            file.write_bytes(whole)


@pytest.fixture
def trained(finished: Path, tmp_path: Path) -> Path:
    """A run whose certificates are not written yet."""
    run = Path(shutil.copytree(finished, tmp_path / "trained"))
    shutil.rmtree(run / "what-if")
    files = json.loads((run / "manifest.json").read_text())["files"]
    (run / "manifest.json").unlink()
    write_status(run, {"format": 1, "state": "trained", "files": files})
    return run


def test_versions_that_were_altered_are_not_sealed(unfinished: Path, trained: Path) -> None:
    for run in (unfinished, trained):
        recorded = run / "environment.json"
        recorded.write_text(recorded.read_text().replace('"numpy": "', '"numpy": "9.'))
        with pytest.raises(StoreError, match=r"environment\.json: damaged: it is not what the run wrote"):
            crfl_core.resume(run)


def test_a_changed_name_in_the_record_is_not_sealed(trained: Path) -> None:
    status = trained / "status.json"
    status.write_text(status.read_text().replace("resample/round-0002", "resample/round-0003"))
    with pytest.raises(StoreError, match=r"status\.json: damaged: it is not what the run wrote"):
        crfl_core.resume(trained)


@pytest.mark.parametrize("name", ["resample/round-0002.safetensors", "environment.json"])
def test_a_trained_run_is_sealed_only_if_all_of_its_files_are_as_they_were(name: str, trained: Path) -> None:
    """Also files that certification does not read."""
    (trained / name).unlink()
    with pytest.raises(StoreError, match=f"{name}: missing"):
        crfl_core.resume(trained)


def test_every_file_of_a_finished_run_is_listed(run: Path) -> None:
    listed = json.loads((run / "manifest.json").read_text())["files"]
    files = {name for name in (*contents(run), "environment.json") if not name.startswith("what-if/")}
    assert listed.keys() == files - {"status.json", "manifest.json"}


@pytest.mark.parametrize(
    "name", ["config.toml", "environment.json", "ledger.json", "clients.npz", "audit.json", "manifest.json"]
)
def test_every_reader_compares(name: str, run: Path) -> None:
    """Not one of them falls back to something else: a default config, an empty table."""
    (run / name).write_bytes((run / name).read_bytes() + b"\n")
    with pytest.raises(StoreError, match=f"{name}: damaged: "):
        read_everything(run)


def read_everything(run: Path) -> None:
    """Whatever people ask of a finished run."""
    result = crfl_core.load(run)
    crfl_core.predict(result, np.zeros((1, 64)))
    assert result.audits
    assert result.certified


def test_votes_and_models_that_are_not_listed_are_not_of_this_run(run: Path) -> None:
    """A file in the place of one that the run never wrote."""
    (models,) = (run / "resample").glob("models-*")
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["files"][f"resample/{models.name}"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    sealed(run, keep_manifest=True)
    with pytest.raises(StoreError, match=r"is not listed in manifest\.json, so it is not of this run"):
        crfl_core.predict(crfl_core.load(run), np.zeros((1, 64)))


def test_an_answer_that_is_saved_beside_a_run_leaves_its_manifest_valid(run: Path) -> None:
    before = (run / "manifest.json").read_bytes()
    crfl_core.certify(crfl_core.load(run), ["threat.clients=3"], save="three")
    assert (run / "manifest.json").read_bytes() == before
    saved = RunDirectory(run / "what-if/three")
    assert {"config.toml", "metrics.json", "audit.json", "certificates/paper.csv"} <= saved.digests.keys()
    assert saved.manifest["run"] == RunDirectory(run).status["manifest"]


def test_a_kill_between_votes_and_their_record_costs_the_votes_only(finished: Path, tmp_path: Path) -> None:
    """What no record lists was never written: the votes are cast again, and are the same."""
    stopped = Path(shutil.copytree(finished, tmp_path / "run"))
    whole = contents(finished)
    shutil.rmtree(stopped / "what-if")
    files = json.loads((stopped / "manifest.json").read_text())["files"]
    trained = {name: value for name, value in files.items() if not name.startswith("votes/")}
    write_status(stopped, {"format": 1, "state": "trained", "files": trained})
    for votes in (stopped / "votes").iterdir():
        votes.write_bytes(b"half")
    resumed = contents(crfl_core.resume(stopped).path)
    assert resumed == {name: content for name, content in whole.items() if not name.startswith("what-if/")}
