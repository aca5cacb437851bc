"""`crfl verify` and `crfl receipt`: a run that proves itself, or says what is wrong with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

import crfl_core
from crfl_core.runs.run_directory import RunDirectory
from crfl_core.runs.verification import same_thread_count
from tests.oracle import contents, sealed, tiny
from tests.runs import runs

Crfl = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run with votes, continuations and an answer to a what-if question."""
    return runs.finished(tmp_path_factory.mktemp("verify") / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """An interrupted run."""
    return runs.interrupted(tmp_path / "unfinished")


class TestVerify:
    def test_a_run_is_what_it_was(self, run: Path, crfl: Crfl) -> None:
        before = contents(run)
        result = crfl("verify", run)
        listed = sum(len(RunDirectory(path).digests) for path in (run, run / "what-if/two"))
        assert (result.returncode, result.stdout) == (0, f"{listed} files match their recorded digests\n")
        assert contents(run) == before

    def test_whatever_is_altered_is_found(self, run: Path, crfl: Crfl) -> None:
        """Every file by itself, by one bit in its middle; also those of saved answers."""
        names = [name for name in (*contents(run), "environment.json") if not name.endswith("status.json")]
        assert len(names) > 20
        for name in names:
            content = (run / name).read_bytes()
            middle = len(content) // 2
            (run / name).write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
            result = crfl("verify", run)
            assert (result.returncode, result.stdout) == (2, ""), name
            assert f"error: {run / name}: " in result.stderr
            (run / name).write_bytes(content)
        assert crfl("verify", run).returncode == 0

    def test_a_missing_file_is_named(self, run: Path, crfl: Crfl) -> None:
        (run / "clients.npz").unlink()
        assert f"error: {run / 'clients.npz'}: missing" in crfl("verify", run).stderr

    def test_every_problem_is_named(self, run: Path, crfl: Crfl) -> None:
        (run / "clients.npz").unlink()
        (run / "audit.json").write_text("{}")
        assert len(crfl("verify", run).stderr.splitlines()) == 2

    def test_files_of_others_are_named_and_do_no_harm(self, run: Path, crfl: Crfl) -> None:
        (run / "notes.txt").write_text("mine")
        result = crfl("verify", run)
        assert result.returncode == 0
        assert "not of the run, and not compared: notes.txt" in result.stdout

    def test_an_answer_of_another_run_is_found(self, run: Path, crfl: Crfl) -> None:
        answer = run / "what-if/two"
        manifest = json.loads((answer / "manifest.json").read_text())
        (answer / "manifest.json").write_text(json.dumps(manifest | {"run": "0" * 64}))
        sealed(answer, keep_manifest=True)
        assert f"error: {answer}: is about another run" in crfl("verify", run).stderr

    def test_an_unfinished_run_is_compared_and_left_as_it_is(self, unfinished: Path, crfl: Crfl) -> None:
        before = contents(unfinished)
        result = crfl("verify", unfinished)
        assert result.returncode == 0
        assert "the run is not finished: training" in result.stdout
        with (unfinished / "rounds.jsonl").open("ab") as file:
            file.write(b"a line that was never finished")
        assert crfl("verify", unfinished).returncode == 0
        shard = unfinished / "checkpoint/clients-00000001.npz"
        shard.write_bytes(shard.read_bytes()[:-1])
        result = crfl("verify", unfinished)
        assert result.returncode == 2
        assert f"error: {shard}: damaged" in result.stderr
        assert before.keys() == contents(unfinished).keys()

    def test_recomputing_gives_the_same_bits(self, run: Path, crfl: Crfl) -> None:
        result = crfl("verify", run, "--recompute")
        assert result.returncode == 0
        assert "files come out the same when the run is repeated" in result.stdout

    @pytest.mark.parametrize("recorded", [{"threads": 3}, {}])
    def test_it_is_repeated_with_as_many_threads_as_the_run_had(
        self, recorded: dict[str, int], run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Cells of a sweep have one, whatever the machine of who looks at them would take."""
        before = torch.get_num_threads()
        monkeypatch.setattr(RunDirectory, "read_json", lambda *_: recorded)
        with same_thread_count(RunDirectory(run)):
            assert torch.get_num_threads() == recorded.get("threads", before)
        assert torch.get_num_threads() == before

    def test_recomputing_finds_what_no_digest_can(self, run: Path, crfl: Crfl) -> None:
        """A forged model with a manifest that fits."""
        directory = RunDirectory(run)
        tensors, notes = directory.read_tensors_and_notes("model.safetensors")
        directory.write_tensors("model.safetensors", {**tensors, "bias": tensors["bias"] + 1.0}, notes)
        sealed(run)
        shutil.rmtree(run / "what-if")
        assert crfl("verify", run).returncode == 0
        result = crfl("verify", run, "--recompute")
        assert result.returncode == 2
        assert f"error: {run / 'model.safetensors'}: differs when the run is repeated" in result.stderr

    def test_a_secret_seed_is_not_guessed(self, tmp_path: Path, crfl: Crfl) -> None:
        run = crfl_core.run(tiny(rounds=2, seeds={"votes": "secret"}), out=tmp_path / "secret")
        result = crfl("verify", run.path, "--recompute")
        assert result.returncode == 0
        assert "votes were drawn with a secret seed" in result.stdout


class TestReceipt:
    def test_it_holds_the_digests_and_is_small(self, run: Path, crfl: Crfl) -> None:
        result = crfl("receipt", run)
        assert (result.returncode, result.stdout) == (0, f"{run}.receipt.json\n")
        receipt = json.loads(Path(f"{run}.receipt.json").read_text())
        assert receipt["files"] == RunDirectory(run).digests
        assert receipt["data"]["clean"]["samples"] == 60
        assert receipt["versions"]["crfl"] == crfl_core.__version__
        assert Path(f"{run}.receipt.json").stat().st_size < 10_000
        result = crfl("verify", run, "--receipt", f"{run}.receipt.json")
        assert result.returncode == 0
        assert "this is the run of the receipt" in result.stdout

    def test_a_forged_directory_is_told_from_a_damaged_one(self, run: Path, crfl: Crfl) -> None:
        crfl("receipt", run, "--out", "receipt.json")
        metrics = json.loads((run / "metrics.json").read_text())
        (run / "metrics.json").write_text(json.dumps(metrics | {"accuracy": 0.99}))
        damaged = crfl("verify", run, "--receipt", "receipt.json")
        assert damaged.returncode == 2
        assert "metrics.json: damaged: " in damaged.stderr
        shutil.rmtree(run / "what-if")
        sealed(run)
        forged = crfl("verify", run, "--receipt", "receipt.json")
        assert forged.returncode == 2
        assert f"{run}: is complete in itself but not the run of receipt.json: metrics.json differ" in forged.stderr

    def test_a_damaged_run_gets_none(self, run: Path, crfl: Crfl) -> None:
        (run / "clients.npz").unlink()
        assert crfl("receipt", run).returncode == 2
        assert not Path(f"{run}.receipt.json").exists()

    def test_an_unfinished_run_gets_none(self, unfinished: Path, crfl: Crfl) -> None:
        assert "has no manifest: finish it with `crfl run" in crfl("receipt", unfinished).stderr

    @pytest.mark.parametrize("content", [b"{", b"[]", b'{"receipt": 9}', b"[" * 200_000])
    def test_what_is_not_a_receipt_is_said(self, content: bytes, run: Path, crfl: Crfl, tmp_path: Path) -> None:
        (tmp_path / "other.json").write_bytes(content)
        result = crfl("verify", run, "--receipt", "other.json")
        assert result.returncode == 2
        assert "other.json: is not a receipt" in result.stderr
