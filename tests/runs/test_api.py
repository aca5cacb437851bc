"""What people call from Python: run, resume, load, predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_datasets.digits import Digits
from sklearn.datasets import load_digits

import crfl_core
from crfl_core import CrflWarning, Metrics, Prediction, RunConfig, RunResult, Threat
from crfl_core.errors import StoreError
from crfl_core.extend import (
    CertificateResult,
    ConfigError,
    CountVotes,
    DataError,
    Ledger,
    RoundRecord,
    RunContext,
    Tracker,
    VoteRequest,
    hookimpl,
)
from tests.oracle import contents, tiny

FEATURES = {"type": "unit-ball", "radius": 4.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """One attacked run for the whole file."""
    config = tiny(model={"type": "softmax", "features": FEATURES})
    return crfl_core.run(config, out=tmp_path_factory.mktemp("api") / "run")


def test_a_result_has_its_documented_parts(run: RunResult) -> None:
    assert isinstance(run.config, RunConfig)
    assert isinstance(run.metrics, Metrics)
    assert isinstance(run.ledger, Ledger)
    assert isinstance(run.threat, Threat)
    assert run.parameters.shape == (run.layout.size,) == (650,)
    assert run.layout.unflatten(run.parameters)["weight"].shape == (10, 64)
    assert float(run.parameters.norm()) <= 4.0 + 1e-5
    assert [audit.certificate for audit in run.audits] == ["paper"]
    assert {check.status for check in run.audits[0].checks} <= {"held", "declared", "failed"}
    assert [(one.certificate, one.level, one.test_set) for one in run.certified] == [
        ("paper", "feature", "clean"),
        ("paper", "feature", "backdoored"),
    ]
    stored = run.votes(VoteRequest("monte-carlo", models=64, noise_std=0.02))["clean"]
    assert stored.expect(CountVotes).counts.shape == (60, 10)


def test_a_loaded_result_equals_the_one_that_run_returned(run: RunResult) -> None:
    loaded = crfl_core.load(run.path)
    assert loaded.metrics == run.metrics
    assert loaded.threat == run.threat
    assert torch.equal(loaded.parameters, run.parameters)
    for one, other in zip(loaded.certified, run.certified, strict=True):
        for name, column in vars(one.guarantee).items():
            np.testing.assert_array_equal(column, getattr(other.guarantee, name))


def test_reading_a_result_writes_nothing(run: RunResult) -> None:
    before = contents(run.path)
    loaded = crfl_core.load(str(run.path))
    assert (loaded.metrics, loaded.audits, loaded.certified, loaded.parameters) is not None
    crfl_core.predict(loaded, np.zeros((2, 64)))
    assert contents(run.path) == before


def raw_test_images() -> Any:
    """The test images as scikit-learn delivers them, with values 0..16."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return images[order][:60], labels[order][:60]


def assert_same_guarantee(prediction: Prediction, certified: CertificateResult) -> None:
    """What is said about new inputs is what was said about the test set."""
    (found,) = prediction.certified
    assert (found.certificate, found.level, found.statement) == ("paper", "feature", certified.statement)
    assert found.conditional == certified.conditional
    for name, column in vars(certified.guarantee).items():
        np.testing.assert_array_equal(getattr(found.guarantee, name), column)


def test_the_test_sets_raw_inputs_get_the_guarantees_that_are_stored(run: RunResult) -> None:
    images, labels = raw_test_images()
    prediction = crfl_core.predict(run, images)
    assert_same_guarantee(prediction, run.certified[0])
    assert float((prediction.classes == labels).mean()) == pytest.approx(run.metrics.accuracy)
    assert (prediction.certified[0].labels == -1).all()


def test_inputs_may_be_images_integers_or_already_scaled(run: RunResult) -> None:
    images, _ = raw_test_images()
    for inputs, scaled in (
        (images.reshape(60, 8, 8), False),
        (images.astype(np.uint8), False),
        (Digits(test_samples=60).load().test_x, True),
    ):
        assert_same_guarantee(crfl_core.predict(run, inputs, scaled=scaled), run.certified[0])


def test_a_single_input_gets_what_it_gets_among_others(run: RunResult) -> None:
    images, _ = raw_test_images()
    alone = crfl_core.predict(run, images[7:8])
    assert alone.classes[0] == crfl_core.predict(run, images).classes[7]
    assert alone.certified[0].guarantee.p_a[0] == run.certified[0].guarantee.p_a[7]


@pytest.mark.parametrize(
    "inputs",
    [np.zeros(64), np.zeros((3, 63)), np.zeros((2, 64, 64)), np.full((1, 64), np.nan), np.full((1, 64), "a"), []],
    ids=["one dimension", "too few", "too many", "not finite", "text", "nothing"],
)
def test_unusable_inputs_are_refused(run: RunResult, inputs: Any) -> None:
    with pytest.raises(DataError, match=r"^x"):
        crfl_core.predict(run, inputs)


@pytest.mark.parametrize("size", [1e25, 1e300])
@pytest.mark.parametrize("scaled", [True, False])
def test_inputs_whose_norm_is_beyond_all_numbers_are_refused(run: RunResult, size: float, scaled: bool) -> None:
    """A feature map that divides by an infinite norm would take them for nothing at all, and certify that."""
    inputs = np.stack([np.zeros(64), np.full(64, size)])
    with pytest.raises(DataError, match="the norm of row 1 is beyond the numbers of float32"):
        crfl_core.predict(run, inputs, scaled=scaled)


@pytest.mark.parametrize("certificate", ["pathwise-linear", "pathwise-smoothed"])
def test_short_inputs_are_certified_like_longer_ones_or_not_at_all(certificate: str, tmp_path: Path) -> None:
    """A margin is proportional to the input: a norm that underflows to 0 must not make it infinite."""
    config = tiny(
        dtype="float64",
        model={"type": "softmax", "bias": False},
        server={"clip_norm": 5.0, "noise_std": 0.1},
        training={"learning_rate": 0.01, "steps": 2},
        certificates=[{"type": certificate, "levels": ["client"]}],
        threat={"clients": 1, "rounds": [1], "poison": "update"},
    )
    run = crfl_core.run(config, out=tmp_path / "run")
    x = raw_test_images()[0].astype(np.float64)
    ordinary = crfl_core.predict(run, x, scaled=True).certified[0].guarantee
    assert (ordinary.radius >= 1).any()
    for size in (1e-100, 1e-200, 1e-260):
        again = crfl_core.predict(run, x * size, scaled=True).certified[0].guarantee
        np.testing.assert_array_equal(again.radius, ordinary.radius)
    for size in (1e-290, 1e-310, 1e-321):
        assert np.isnan(crfl_core.predict(run, x * size, scaled=True).certified[0].guarantee.radius).all()


def test_a_fitted_scaling_is_repeated_on_new_inputs(tmp_path: Path) -> None:
    dataset = {"type": "digits", "train_samples": 300, "test_samples": 60, "scaling": "standardise"}
    run = crfl_core.run(tiny(dataset=dataset), out=tmp_path / "run")
    assert_same_guarantee(crfl_core.predict(run, raw_test_images()[0]), run.certified[0])


@pytest.mark.parametrize("kind", ["mapping", "file", "object"])
def test_a_config_may_be_a_mapping_a_file_or_an_object(kind: str, run: RunResult, tmp_path: Path) -> None:
    sources: dict[str, Any] = {
        "mapping": tiny(model={"type": "softmax", "features": FEATURES}),
        "file": run.path / "config.toml",
        "object": run.config,
    }
    again = crfl_core.run(sources[kind], out=tmp_path / "run")
    assert contents(again.path) == contents(run.path)


def test_overrides_are_applied_in_order(tmp_path: Path) -> None:
    result = crfl_core.run(tiny(), overrides=["rounds=9", "rounds=2", "server.noise_std=0.5"], out=tmp_path / "run")
    assert (result.config.rounds, result.config.server.noise_std) == (2, 0.5)


def test_results_go_to_runs_and_the_name_of_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert crfl_core.run(tiny(name="mine")).path == Path("runs", "mine")
    assert (tmp_path / "runs" / "mine" / "metrics.json").exists()


def test_a_wrong_key_of_a_mapping_says_where_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the mapping given to crfl_core: attack\.clients: there is no client 99"):
        crfl_core.run(tiny(attack=tiny()["attack"] | {"clients": [99]}), out=tmp_path / "run")


class Diary(Tracker):
    """Writes down what it is told."""

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        entries.append(f"started {run.name} at {run.resumed_from} of {run.rounds}")

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        entries.append(f"round {record.round}")

    @hookimpl
    def crfl_certified(self, certified: CertificateResult) -> None:
        entries.append(f"certified {certified.test_set}")

    @hookimpl
    def crfl_run_failed(self, error: BaseException) -> None:
        entries.append(f"failed: {type(error).__name__}")

    @hookimpl
    def crfl_run_finished(self, result: RunResult) -> None:
        entries.append(f"finished with {len(result.metrics.curves)} curves")


entries: list[str] = []


@pytest.fixture(autouse=True)
def empty_diary() -> None:
    entries.clear()


def test_trackers_of_a_call_watch_it_without_being_part_of_its_config(tmp_path: Path) -> None:
    result = crfl_core.run(tiny(), out=tmp_path / "run", trackers=[Diary()])
    assert entries == [
        "started tiny at 0 of 4",
        "round 1",
        "round 2",
        "round 3",
        "round 4",
        "certified clean",
        "certified backdoored",
        "finished with 2 curves",
    ]
    assert result.config.trackers == ()


class Clumsy(Tracker):
    """Fails after the first round."""

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        raise OSError("disk full")


def test_a_tracker_that_fails_is_switched_off_and_changes_nothing(run: RunResult, tmp_path: Path) -> None:
    config = tiny(model={"type": "softmax", "features": FEATURES})
    with pytest.warns(CrflWarning, match="OSError: disk full .*; the run continues without it") as caught:
        watched = crfl_core.run(config, out=tmp_path / "run", trackers=[Clumsy(), Diary()])
    assert len(caught) == 1
    assert entries[-1] == "finished with 2 curves"
    assert contents(watched.path) == contents(run.path)


def test_loading_what_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a run directory"):
        crfl_core.load(tmp_path)
    with pytest.raises(StoreError, match="not a run directory"):
        crfl_core.resume(tmp_path / "nowhere")


def test_the_default_run_works_without_any_file(tmp_path: Path) -> None:
    result = crfl_core.run(overrides=["rounds=2", "attack.rounds=[2]", "votes.models=64"], out=tmp_path / "run")
    assert result.metrics.backdoor is not None
    assert result.metrics.curves
