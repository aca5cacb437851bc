"""Vote noise that cannot be known while the model is trained: drawn afterwards, recorded, and used ever since."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crfl_core
from crfl_core import RunResult
from crfl_core.errors import StoreError
from crfl_core.extend import ConfigError, CountVotes
from crfl_core.records.random_streams import Streams
from crfl_core.runs.run_directory import VOTE_SEED, RunDirectory
from crfl_core.training.federation import streams_of
from tests.oracle import tiny, write_status

CERTIFICATES = [{"type": "paper"}, {"type": "tail", "continuations": 12, "selection": 6}]


def config(**changes: Any) -> dict[str, Any]:
    return tiny(
        **{
            "server": {"clip_norm": 4.0, "noise_std": 0.3},
            "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
            "certificates": CERTIFICATES,
            "seeds": {"votes": "secret"},
        }
        | changes
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return crfl_core.run(config(), out=tmp_path_factory.mktemp("secret") / "run")


@pytest.fixture
def copy(run: RunResult, tmp_path: Path) -> RunResult:
    return crfl_core.load(shutil.copytree(run.path, tmp_path / "copy"))


def counts(result: RunResult) -> list[list[int]]:
    """All votes of both certificates on the clean test set."""
    found = [result.votes(question.request)["clean"].expect(CountVotes) for question in result.certifier.questions]
    return [part.ravel().tolist() for votes in found for part in (votes.counts, votes.selection)]


def status(result: RunResult) -> set[tuple[str, str]]:
    checks = [check for audit in result.audits for check in audit.checks if check.name == "vote noise is secret"]
    assert len(checks) == 2
    return {(check.status, check.remedy) for check in checks}


def test_the_seed_is_drawn_after_training_and_recorded_with_the_votes(run: RunResult) -> None:
    seed = int(json.loads((run.path / VOTE_SEED).read_text())["seed"], 16)
    assert 2**64 < seed < 2**128
    assert run.ledger.facts.secret_votes
    assert status(run) == {("held", "")}


def test_two_runs_train_the_same_model_and_are_voted_on_by_other_noise(run: RunResult, tmp_path: Path) -> None:
    """That of noisy copies, and that of continuations."""
    again = crfl_core.run(config(), out=tmp_path / "again")
    assert (again.parameters == run.parameters).all()
    assert (again.path / VOTE_SEED).read_text() != (run.path / VOTE_SEED).read_text()
    copies, _, continued, selected = (one != other for one, other in zip(counts(again), counts(run), strict=True))
    assert copies
    assert continued
    assert selected


def test_a_seed_in_the_config_is_known_to_its_readers(tmp_path: Path) -> None:
    for seeds in ({}, {"votes": 7}):
        result = crfl_core.run(config(seeds=seeds), out=tmp_path / f"run{len(seeds)}")
        assert status(result) == {("declared", "set seeds.votes = 'secret'")}
        assert not (result.path / VOTE_SEED).exists()


def test_no_plugin_can_draw_vote_noise_while_the_model_is_trained() -> None:
    streams = streams_of(crfl_core.load_config(config()).config)
    for purpose in ("votes", "votes/selection", "votes/continuation"):
        with pytest.raises(ValueError, match="the seed of 'votes' is secret: it is drawn after training"):
            streams.generator(purpose)
    assert streams.generator("noise").integers(9) == Streams(1).generator("noise").integers(9)


def test_votes_lost_and_resumed_are_the_same_votes(copy: RunResult) -> None:
    """A kill between training and certification: the seed that was drawn counts."""
    before = counts(copy)
    for file in (copy.path / "votes").glob("*.npz"):
        file.unlink()
    files = RunDirectory(copy.path).digests
    write_status(copy.path, {"format": 1, "state": "trained", "files": files})
    assert counts(crfl_core.resume(copy.path)) == before


def test_what_if_questions_and_predictions_vote_with_the_recorded_seed(copy: RunResult) -> None:
    """More copies of the model are those that voted before and then some; the seed's file is not touched."""
    recorded = (copy.path / VOTE_SEED).read_bytes()
    inputs = crfl_core.load_config(config()).config.dataset.load().test_x[:20]
    once, again = (crfl_core.predict(copy, inputs, scaled=True).certified[0].guarantee.p_a for _ in range(2))
    np.testing.assert_array_equal(once, again)
    stored = next(one for one in copy.certified if one.test_set == "clean")
    np.testing.assert_array_equal(once, stored.guarantee.p_a[:20])
    answer = crfl_core.certify(copy, ["votes.models=64", "votes.alpha=0.001"])
    np.testing.assert_array_equal(answer.certified[0].guarantee.p_a, stored.guarantee.p_a)
    crfl_core.certify(copy, ["votes.models=32"], save="fewer")
    assert (copy.path / VOTE_SEED).read_bytes() == recorded
    assert not (copy.path / "what-if" / "fewer" / VOTE_SEED).exists()


@pytest.mark.parametrize("content", ["{}", '{"seed": "seven"}', '{"seed": null}', "[]"])
def test_a_damaged_seed_is_an_error_and_not_another_seed(copy: RunResult, content: str) -> None:
    (copy.path / VOTE_SEED).write_text(content)
    with pytest.raises(StoreError, match=r"votes/seed\.json: damaged"):
        crfl_core.certify(copy, ["votes.models=32"])
    (copy.path / VOTE_SEED).unlink()
    with pytest.raises(StoreError, match=r"votes/seed\.json: missing"):
        crfl_core.certify(crfl_core.load(copy.path), ["votes.models=32"])


def test_only_the_seed_of_votes_can_be_secret() -> None:
    with pytest.raises(ConfigError, match=r"seeds\.noise"):
        crfl_core.load_config(config(seeds={"noise": "secret"}))
    with pytest.raises(ConfigError, match=r"seeds\.votes"):
        crfl_core.load_config(config(seeds={"votes": "hidden"}))
