"""Other questions to a finished run: what they need, what they answer, and that they never change the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

import crfl_core
from crfl_core import CrflError, RunResult, WhatIf
from crfl_core.errors import StoreError
from crfl_core.extend import CertificateResult, ConfigError
from crfl_core.records.ledger import LEDGER_FORMAT
from crfl_core.training import federation as setup
from tests.certificates.federations import small
from tests.oracle import contents, sealed

Crfl = Callable[..., CompletedProcess[str]]


def config(**changes: Any) -> dict[str, Any]:
    """A run with all certificates; it names only installed plugins, so that the command line can load it."""
    return small(
        **{
            "dataset": {"type": "digits", "train_samples": 200, "test_samples": 40},
            "server": {"clip_norm": 4.0, "noise_std": 0.05},
            "attack": {
                "type": "model-replacement",
                "clients": [0],
                "rounds": [2],
                "poisoned_per_batch": 2,
                "scale": 2.0,
            },
            "votes": {"models": 64, "selection_models": 16},
            "certificates": [
                {"type": "paper"},
                {"type": "pathwise-linear"},
                {"type": "pathwise-smoothed"},
                {"type": "tail", "continuations": 24, "selection": 8},
                {"type": "postprocess", "continuations": 24, "selection": 8},
            ],
        }
        | changes
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """One run for the whole file; a what-if question must not change it, which the last test checks again."""
    return crfl_core.run(config(), out=tmp_path_factory.mktemp("what-if") / "run")


@pytest.fixture
def copy(run: RunResult, tmp_path: Path) -> RunResult:
    """A copy that a test may change."""
    return crfl_core.load(shutil.copytree(run.path, tmp_path / "copy"))


def same(one: CertificateResult, other: CertificateResult) -> bool:
    """Whether two certificates say the same about every sample."""
    return all(
        np.array_equal(column, getattr(other.guarantee, name), equal_nan=True)
        for name, column in vars(one.guarantee).items()
        if column is not None
    )


def test_asking_nothing_new_repeats_the_run(run: RunResult) -> None:
    answer = crfl_core.certify(run)
    assert isinstance(answer, WhatIf)
    assert answer.needs == "formulas"
    assert answer.threat == run.threat
    assert answer.curves == run.metrics.curves
    assert all(same(one, other) for one, other in zip(answer.certified, run.certified, strict=True))


def test_another_threat_needs_formulas_alone_and_no_data(run: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object) -> None:
        raise AssertionError("the data were loaded")

    monkeypatch.setattr(setup, "build", unavailable)
    monkeypatch.setattr("crfl_core.runs.certify.build", unavailable)
    before = contents(run.path)
    answer = crfl_core.certify(run, ["threat.clients=3", "threat.scale=50"])
    assert answer.needs == "formulas"
    assert (answer.threat.clients, answer.threat.scale, answer.threat.rounds) == (3, 50.0, (2,))
    for found, stored in zip(answer.certified, run.certified, strict=True):
        weaker = np.nan_to_num(stored.guarantee.radius, nan=-1.0)
        assert (np.nan_to_num(found.guarantee.radius, nan=-1.0) <= weaker).all()
        np.testing.assert_array_equal(found.guarantee.prediction, stored.guarantee.prediction)
    assert contents(run.path) == before


def test_the_assumed_number_of_clients_is_always_answered(tmp_path: Path) -> None:
    groups = {"type": "iid", "clients": 9}
    asked = small(partition=groups, groups={"count": 9}, certificates=["group-vote"], evaluation={"radii": [1]})
    changes = {"attack": "none", "threat": {"clients": 2, "rounds": [1]}, "dataset": {"type": "digits"}}
    result = crfl_core.run(asked | changes, out=tmp_path / "run")
    assert next(curve for curve in result.metrics.curves if curve.test_set == "clean").radii == (1.0, 2.0)
    answer = crfl_core.certify(result, ["threat.clients=3"])
    (curve, *_) = answer.curves
    assert curve.radii == (1.0, 3.0)


def test_a_changed_config_is_refused_whatever_is_asked(copy: RunResult, crfl: Crfl) -> None:
    file = copy.path / "config.toml"
    file.write_text(file.read_text().replace("rounds = ", "rounds = 1", 1))
    for command in (["show"], ["certify"], ["compare"], ["run"], ["open", "--no-browser"]):
        done = crfl(*command[:1], str(copy.path), *command[1:])
        assert done.returncode == 2
        assert "config.toml" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_same_answer_comes_from_a_run_that_assumed_this_threat_from_the_start(
    run: RunResult, tmp_path: Path
) -> None:
    threat = {"clients": 2, "scale": 5.0, "clean_world": "scaled"}
    other = crfl_core.run(config(threat=threat), out=tmp_path / "other")
    asked = crfl_core.certify(run, [f"threat.{key}={value!r}" for key, value in threat.items()])
    assert asked.threat == other.threat
    assert all(same(one, two) for one, two in zip(asked.certified, other.certified, strict=True))


def test_a_smaller_threat_than_the_attack_is_marked_as_one_that_does_not_cover_the_run(run: RunResult) -> None:
    answer = crfl_core.certify(run, ["threat.scale=1", "threat.poison_ratio=0.001"])
    for one in answer.certified:
        reasons = [text for text in one.conditional if text.startswith("what-if, does not cover this run")]
        assert any("scale 2 is above the assumed 1" in text for text in reasons)
        assert any("poison_ratio 0.34375 is above the assumed 0.001" in text for text in reasons)


@pytest.mark.parametrize("override", ["votes.models=32", "votes.noise_std=0.2", "votes.selection_models=5"])
def test_other_votes_are_voted_anew_without_touching_the_run(run: RunResult, override: str) -> None:
    only = "certificates=[{type='paper'}, {type='pathwise-smoothed', method='monte-carlo'}]"
    before = contents(run.path)
    answer = crfl_core.certify(run, [only, override])
    assert answer.needs == "votes"
    assert {one.certificate for one in answer.certified} == {"paper", "pathwise-smoothed"}
    assert contents(run.path) == before


def test_another_error_level_needs_no_new_votes(run: RunResult) -> None:
    answer = crfl_core.certify(run, ["votes.alpha=0.2"])
    assert answer.needs == "formulas"
    paper, before = answer.certified[0].guarantee, run.certified[0].guarantee
    assert (paper.p_a > before.p_a).all()


def test_more_continuations_are_trained_from_the_stored_round(run: RunResult) -> None:
    before = contents(run.path)
    answer = crfl_core.certify(run, ["certificates=[{type='tail', continuations=40, selection=8}]"])
    assert answer.needs == "continuations"
    stored = next(one for one in run.certified if (one.certificate, one.level) == ("tail", "client"))
    found = next(one for one in answer.certified if one.level == "client")
    # The first continuations draw from the same streams, so the votes of the selection are the same.
    agree = (found.guarantee.prediction == stored.guarantee.prediction) | stored.guarantee.abstained
    assert agree.mean() > 0.8
    assert contents(run.path) == before


def test_a_round_whose_model_was_not_kept_refuses_what_would_start_there(run: RunResult) -> None:
    answer = crfl_core.certify(run, ["threat.rounds=[3]"])
    assert answer.needs == "formulas"
    refused = {audit.certificate: audit.refusal for audit in answer.audits if audit.refusal}
    assert set(refused) == {"tail", "postprocess"}
    assert all("kept are rounds 2, needs round 3" in reason for reason in refused.values())
    assert {one.certificate for one in answer.certified} == {"paper", "pathwise-linear", "pathwise-smoothed"}


def test_saving_writes_the_answer_beside_the_run_and_nothing_else(run: RunResult) -> None:
    before = contents(run.path)
    answer = crfl_core.certify(run, ["threat.clients=2", "votes.models=16"], save="two-attackers")
    after = contents(run.path)
    assert {name: content for name, content in after.items() if not name.startswith("what-if/")} == before
    saved = run.path / "what-if" / "two-attackers"
    assert {file.name for file in (saved / "certificates").iterdir()} == {
        f"{audit.certificate}.csv" for audit in answer.audits
    }
    assert json.loads((saved / "metrics.json").read_text())["curves"][0]["certificate"] == "paper"
    assert len(json.loads((saved / "audit.json").read_text())["certificates"]) == 5
    assert "clients = 2" in (saved / "config.toml").read_text()
    assert crfl_core.load(run.path).metrics == run.metrics
    with pytest.raises(StoreError, match=r"two-attackers: exists: choose another name to save under"):
        crfl_core.certify(run, save="two-attackers")
    shutil.rmtree(run.path / "what-if")


def test_an_answer_that_fails_leaves_nothing_behind(copy: RunResult) -> None:
    (copy.path / "resample" / "round-0002.safetensors").unlink()
    before = contents(copy.path)
    certificates = "certificates=[{type='paper', votes={models=16}}, {type='tail', continuations=9, selection=3}]"
    with pytest.raises(StoreError, match=r"the model of round 2 was not kept.*kept are none"):
        crfl_core.certify(copy, [certificates], save="broken")
    assert contents(copy.path) == before
    assert not (copy.path / "what-if").exists()


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "."])
def test_a_name_to_save_under_is_a_plain_name(run: RunResult, name: str) -> None:
    with pytest.raises(ConfigError, match=r"--save .*: use letters, digits"):
        crfl_core.certify(run, save=name)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds=5", r"--set rounds=5: changes training: start another run"),
        ("server.noise_std=0.1", r"changes training"),
        ("threats.clients=1", r"changes training"),
        ("threat.attackers=3", r"threat\.attackers"),
        ("threat.clients=5", r"threat\.clients: found 5, but there are 4 clients"),
        ("threat.clients=[7]", r"threat\.clients: found \[7\], but there are 4 clients"),
        ("threat.clients=-1", r"threat\.clients: found -1, but there are 4 clients"),
        ("threat.rounds=[9]", r"threat\.rounds: found \[9\], but rounds are 1\.\.4"),
        ("threat.rounds=[0]", r"threat\.rounds"),
        ("threat.rounds=[]", r"threat\.rounds: found \[\], but rounds are 1\.\.4"),
        ("threat.poison_ratio=1.5", r"threat\.poison_ratio"),
        ("threat.poison_ratio=-0.1", r"threat\.poison_ratio"),
        ("threat.scale=0.5", r"threat\.scale"),
        ("threat.poison='magic'", r"threat\.poison"),
        ("threat.clean_world='dirty'", r"threat\.clean_world"),
        ("threat.input_bound=0", r"threat\.input_bound"),
        ("votes.alpha=0", r"votes\.alpha"),
        ("certificates.tail.continuations=0", r"certificates\.3\.continuations"),
        ("certificates=[{type='paper', levels=['client']}]", r"'paper' has no 'client' level"),
        ("certificates.unknown.levels=['client']", r"certificates"),
    ],
)
def test_questions_that_make_no_sense_are_clear_errors(run: RunResult, crfl: Crfl, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        crfl_core.certify(run, [override])
    outcome = crfl("certify", run.path, "--set", override)
    assert outcome.returncode == 2
    assert "Traceback" not in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) <= 3


def test_the_command_line_shows_the_threat_and_what_it_computed(run: RunResult, crfl: Crfl) -> None:
    outcome = crfl("certify", run.path, "--set", "threat.clients=3", "--set", "threat.scale=50")
    assert outcome.returncode == 0
    shown = " ".join(outcome.stdout.split())
    assert "assumed: attacks in round 2, clients = 3" in shown
    assert "scale = 50.0" in shown
    assert "recomputed: certificates only" in shown
    for audit in run.audits:
        assert audit.certificate in shown
    assert "compared with all clients honest" in shown
    assert not (run.path / "what-if").exists()


def test_a_run_that_is_not_there_or_not_finished_is_an_error(tmp_path: Path, copy: RunResult, crfl: Crfl) -> None:
    outcome = crfl("certify", tmp_path / "nothing")
    assert outcome.returncode == 2
    assert "not a run directory" in outcome.stderr
    status = copy.path / "status.json"
    status.write_text(status.read_text().replace("finished", "training"))
    assert crfl("certify", copy.path).returncode == 2


def test_a_ledger_of_another_version_is_an_error(copy: RunResult, crfl: Crfl) -> None:
    ledger = copy.path / "ledger.json"
    ledger.write_text(ledger.read_text().replace(f'"format": {LEDGER_FORMAT}', '"format": 99'))
    sealed(copy.path)
    outcome = crfl("certify", copy.path)
    assert outcome.returncode == 2
    assert f"the ledger has format 99, this version of crfl reads format {LEDGER_FORMAT}" in " ".join(
        outcome.stderr.split()
    )


def test_a_ledger_with_missing_rounds_or_clients_is_an_error(copy: RunResult) -> None:
    """Clients without a record would cost nothing, and be certified against."""
    rounds = (copy.path / "rounds.jsonl").read_text().splitlines(keepends=True)
    (copy.path / "rounds.jsonl").write_text("".join(rounds[:-1]))
    with pytest.raises(StoreError, match="must hold rounds 1 to 4, found 3"):
        crfl_core.certify(crfl_core.load(sealed(copy.path)))
    (copy.path / "rounds.jsonl").write_text("".join(rounds))
    with np.load(copy.path / "clients.npz") as file:
        columns = {name: column[file["round"] != 4] for name, column in file.items()}
    np.savez(copy.path / "clients.npz", **columns)
    with pytest.raises(StoreError, match=r"must hold all 4 participants of round 4, found 0: restore clients\.npz"):
        crfl_core.certify(crfl_core.load(sealed(copy.path)))


def test_votes_of_another_test_set_or_model_are_an_error(copy: RunResult, tmp_path: Path) -> None:
    request = copy.config.certificates[1].request(copy.ledger, copy.threat, copy.config.votes)
    file = copy.path / "votes" / f"{request.digest}.npz"
    with np.load(file) as stored:
        arrays = dict(stored)
    np.savez(file, **(arrays | {"clean/digest": np.array("0" * 64)}))
    with pytest.raises(StoreError, match="does not belong to the clean test set of this run"):
        crfl_core.certify(crfl_core.load(sealed(copy.path)))
    other = crfl_core.run(config(seed=5), out=tmp_path / "other")
    shutil.copy(other.path / "votes" / file.name, file)
    with pytest.raises(StoreError, match="these are votes of another model"):
        crfl_core.certify(crfl_core.load(sealed(copy.path)))


def test_new_votes_need_the_data_of_the_run(copy: RunResult) -> None:
    ledger = copy.path / "ledger.json"
    text = ledger.read_text()
    facts = json.loads(text)
    facts["test_sets"]["clean"]["digest"] = "0" * 64
    ledger.write_text(json.dumps(facts))
    with pytest.raises(CrflError, match="clean test set is not the one that this run was tested on"):
        crfl_core.certify(crfl_core.load(sealed(copy.path)), ["votes.models=16", "certificates=[{type='paper'}]"])
    facts = json.loads(text)
    facts["input_norms"][0] += 0.5
    ledger.write_text(json.dumps(facts))
    with pytest.raises(CrflError, match="the training data are not those of this run, input_norms differ"):
        crfl_core.certify(crfl_core.load(sealed(copy.path)), ["votes.models=16", "certificates=[{type='paper'}]"])


def test_after_all_these_questions_the_run_is_as_it_was(run: RunResult, tmp_path: Path) -> None:
    again = crfl_core.run(config(), out=tmp_path / "again")
    assert contents(again.path) == contents(run.path)
