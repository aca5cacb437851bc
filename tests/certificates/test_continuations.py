"""Continuations: the rest of a run with fresh noise, many times, and what their vote says about the clean world."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from crfl_certificates.postprocess import Postprocess, drift_costs
from crfl_certificates.resampled import fresh_noise_stds
from crfl_certificates.tail import Tail
from crfl_datasets.digits import Digits
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy.special import ndtr, ndtri
from torch import Tensor

import crfl_core
import crfl_core.certification.formulas as formulas
from crfl_core import RunResult, extend
from crfl_core.certification.drift import DriftBound
from crfl_core.errors import StoreError
from crfl_core.extend import Clients, CountVotes, LinearAggregator, PluginFailure
from crfl_core.records.random_streams import Streams
from crfl_core.runs.worlds import with_attack
from tests.certificates.federations import small
from tests.certificates.worlds import (
    PLUGINS,
    World,
    attacked,
    continued,
    federation_of,
    honest_world,
    play,
)
from tests.oracle import Problem, submitted

ATTACK = {"type": "steering", "clients": [0], "rounds": [2], "kind": "labels", "ratio": 0.1}
NOISY = {"clip_norm": 4.0, "noise_std": 0.1, "cap_updates": False}


@pytest.mark.parametrize(
    "aggregation",
    [
        [{"type": "fedavg"}],
        [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}],
        [{"type": "rfa"}],
        [{"type": "krum", "f": 0}],
        [{"type": "foolsgold"}],
    ],
    ids=lambda steps: steps[-1]["type"] + str(len(steps)),
)
def test_a_continuation_is_the_same_alone_and_among_others(aggregation: list[dict[str, Any]]) -> None:
    world = play(federation_of(small(rounds=5, server=NOISY, aggregation=aggregation)))
    together = continued(world, 2, range(1, 7))
    for replica in (1, 4, 6):
        alone = continued(world, 2, range(replica, replica + 1))
        np.testing.assert_allclose(alone[0], together[replica - 1], rtol=1e-10, atol=1e-12)
    assert len({tuple(model.tolist()) for model in together}) == 6


def test_a_continuation_is_the_rest_of_algorithm_1_with_noise_of_its_own() -> None:
    """The oracle trains it again, sample by sample, from the stored model and the streams of the replica."""
    server = {"clip_norm": [4.0, 4.0, 0.8, 0.9], "noise_std": [0.1, 0.2, 0.05, 0.3], "cap_updates": False}
    training = {"learning_rate": 0.5, "steps": 3, "batch_size": 16, "weight_decay": 0.1, "participation": 0.5}
    federation = federation_of(small(server=server, training=training))
    world, streams = play(federation), federation.streams
    problem = Problem(
        x=federation.data.x.numpy(),
        y=federation.data.y.numpy(),
        classes=10,
        holdings=federation.data.partition,
        participants=[],
        rates=[0.5] * 4,
        steps=[3] * 4,
        batch_size=16,
        weight_decay=0.1,
        clip_norms=server["clip_norm"],  # type: ignore[arg-type]
        noise_stds=server["noise_std"],  # type: ignore[arg-type]
        streams=streams,
        ball_radius=4.0,
    )
    for replica, found in zip((1, 5), continued(world, 2, range(1, 6))[[0, 4]], strict=True):
        model = world.aggregate(2)
        for number in (3, 4):
            model = model + server["noise_std"][number - 2] * draw(streams, number - 1, replica, len(model))  # type: ignore[index]
            taking_part = np.sort(streams.generator("participation", round_number=number).choice(4, 2, replace=False))
            total = sum(len(problem.holdings[client]) for client in taking_part)
            updates = [
                len(problem.holdings[client]) / total * submitted(problem, model, client, number)
                for client in taking_part
            ]
            combined = model + sum(updates)
            model = combined / max(1.0, float(np.linalg.norm(combined)) / server["clip_norm"][number - 1])  # type: ignore[index]
        model = model + 0.3 * draw(streams, 4, replica, len(model))
        np.testing.assert_allclose(found, model, rtol=1e-9, atol=1e-11)


def draw(streams: Streams, number: int, replica: int, size: int) -> NDArray[np.float64]:
    """The noise of one round in one continuation, or in the run itself, which is replica 0."""
    purpose = "votes/continuation" if replica else "noise"
    return streams.generator(purpose, round_number=number, replica=replica).standard_normal(size)


def test_continuations_do_not_replay_the_attack_of_later_rounds() -> None:
    attack = ATTACK | {"rounds": [2, 3, 4], "scale": 5.0}
    federation = federation_of(small(server=NOISY, attack=attack))
    clean = honest_world(federation)
    world = attacked(federation, clean)
    np.testing.assert_array_equal(
        continued(world, 2, range(1, 4)),
        continued(World(with_attack(federation, None), world.outcomes), 2, range(1, 4)),
    )


def clean_votes(clean: World, start: int, count: int) -> NDArray[np.float64]:
    """How often each class wins on each test sample when the clean world is continued, with other noise."""
    models = continued(clean, start, range(10**6, 10**6 + count))
    features = clean.federation.test_sets["clean"].features
    return clean.federation.model.count_votes(models, features).numpy() / count


FEDAVG, RFA, KRUM = [{"type": "fedavg"}], [{"type": "rfa"}], [{"type": "krum", "f": 1}]


@pytest.mark.parametrize(
    ("certificate", "aggregation", "count"),
    [
        (Tail(continuations=400, selection=40), FEDAVG, 1500),
        (Tail(continuations=400, selection=40, resample_from=4), FEDAVG, 1500),
        (Postprocess(continuations=400, selection=40), FEDAVG, 1500),
        (Postprocess(continuations=100, selection=10), RFA, 200),
        (Postprocess(continuations=100, selection=10), KRUM, 200),
    ],
    ids=["tail", "tail from a later round", "postprocess", "postprocess behind rfa", "postprocess behind krum"],
)
def test_certified_classes_win_the_clean_vote(
    certificate: Tail | Postprocess, aggregation: list[dict[str, Any]], count: int
) -> None:
    """And no probability falls below what the budget of the real drift allows, up to four standard errors."""
    config = small(
        rounds=6,
        dataset={"type": "zeros-and-ones", "train_samples": 200, "test_samples": 60},
        partition={"type": "iid", "clients": 6},
        training={"learning_rate": 0.5, "steps": 2, "batch_size": 16, "weight_decay": 0.05},
        server=NOISY,
        aggregation=aggregation,
        attack=ATTACK | {"ratio": 1.0},
    )
    federation = federation_of(config)
    clean = honest_world(federation)
    world = attacked(federation, clean)
    threat, start = world.threat(), certificate.start((2,))
    expected = clean_votes(clean, start, count)

    guarantee = world.certify(certificate, threat, "feature")
    certified = guarantee.radius >= 0
    own = expected[np.arange(60), np.maximum(guarantee.prediction, 0)]
    assert (own[certified] > 0.5 - 4 * np.sqrt(0.25 / count)).all()
    if aggregation == FEDAVG:
        assert certified.mean() > 0.5

    drift = float(np.linalg.norm(world.aggregate(start) - clean.aggregate(start)))
    assert drift <= (drift_costs(world.ledger, threat, start).feature_cost(np.array([0.0]))[0])
    noises = fresh_noise_stds(world.ledger, start, 0.1)
    budget = drift / noises[0]
    if isinstance(certificate, Tail):
        constants = DriftBound(world.ledger, threat, start).lipschitz[start - 1 :]
        budget = drift * float(formulas.budget_per_unit_drift(noises, constants)[0])
    sure = guarantee.prediction >= 0
    floor = ndtr(ndtri(guarantee.p_a[sure]) - budget)
    assert (own[sure] >= floor - 4 * np.sqrt(0.25 / count)).all()


def test_an_attack_in_the_final_round_leaves_only_the_test_noise() -> None:
    """Then tail, postprocess and the smoothed pathwise certificate make the same statement, up to their bounds."""
    federation = federation_of(small(rounds=3, server=NOISY, attack=ATTACK | {"rounds": [3]}))
    world = attacked(federation, honest_world(federation))
    threat = world.threat()
    tail = world.certify(Tail(continuations=300), threat, "client")
    after = world.certify(Postprocess(continuations=300), threat, "client")
    np.testing.assert_array_equal(tail.radius, after.radius)
    np.testing.assert_array_equal(tail.p_a, after.p_a)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """One run with every certificate; tests do not change it."""
    config = small(
        dataset={"type": "digits", "train_samples": 200, "test_samples": 40},
        server={"clip_norm": 4.0, "noise_std": 0.05},
        attack={"type": "model-replacement", "clients": [0], "rounds": [2], "poisoned_per_batch": 2},
        votes={"models": 64, "selection_models": 16},
        certificates=[
            {"type": "paper"},
            {"type": "pathwise-linear"},
            {"type": "pathwise-smoothed"},
            {"type": "pathwise-smoothed", "name": "counted", "method": "monte-carlo"},
            {"type": "tail", "continuations": 48, "selection": 16},
            {"type": "tail", "name": "later", "resample_from": 3, "continuations": 24, "selection": 8},
            {"type": "postprocess", "continuations": 48, "selection": 16},
        ],
    )
    return crfl_core.run(config, out=tmp_path_factory.mktemp("continuations") / "run")


def test_the_models_before_noise_are_kept_where_certificates_start_again(run: RunResult) -> None:
    files = {file.name for file in (run.path / "resample").glob("round-*")}
    assert files == {"round-0002.safetensors", "round-0003.safetensors"}
    stored = load_file(run.path / "resample" / "round-0003.safetensors")["parameters"]
    record = run.ledger.round(3)
    assert np.linalg.norm(stored) == pytest.approx(min(record.norm_before_clip, record.clip_norm))
    noise = draw(Streams(run.config.seed), 3, 0, len(stored))
    assert np.linalg.norm(stored + 0.05 * noise) == pytest.approx(run.ledger.round(4).start_norm)


def test_stored_votes_are_those_of_the_stored_models(run: RunResult) -> None:
    """Tail and postprocess ask the same question here, so their continuations were trained once."""
    tail, later = run.config.certificates[4:6]
    for certificate, total in ((tail, 64), (later, 32)):
        request = certificate.request(run.ledger, run.threat, run.config.votes)
        models = load_file(run.path / "resample" / f"models-{request.digest}.safetensors")["models"]
        assert models.shape == (total, run.layout.size)
        votes = run.votes(request)["clean"].expect(CountVotes)
        assert votes.selection.sum(axis=1).tolist() == [request.selection_models] * 40
        assert votes.counts.sum(axis=1).tolist() == [request.models] * 40
        weights = run.layout.unflatten(torch.from_numpy(models[request.selection_models :]))
        x = torch.from_numpy(Digits(test_samples=40).load().test_x).double()
        inputs = x / x.norm(dim=1, keepdim=True).clamp(min=4.0)
        winners = (torch.einsum("kcd,md->mkc", weights["weight"], inputs) + weights["bias"]).argmax(-1)
        counted = torch.nn.functional.one_hot(winners, 10).sum(1).numpy()
        np.testing.assert_array_equal(votes.counts, counted)
    assert len(list((run.path / "resample").glob("models-*"))) == 2


def test_new_inputs_get_what_the_test_set_got_from_every_certificate(run: RunResult) -> None:
    """Predictions use the stored continuations: nothing is trained again."""
    data = Digits(test_samples=40).load()
    prediction = crfl_core.predict(run, data.test_x, scaled=True)
    clean = [one for one in run.certified if one.test_set == "clean"]
    assert [(one.certificate, one.level) for one in prediction.certified] == [
        (one.certificate, one.level) for one in clean
    ]
    for found, expected in zip(prediction.certified, clean, strict=True):
        for name, column in vars(expected.guarantee).items():
            if column is None:
                assert getattr(found.guarantee, name) is None
            else:
                np.testing.assert_allclose(getattr(found.guarantee, name), column, rtol=1e-12, err_msg=name)


def test_without_the_stored_models_a_prediction_says_which_file_is_missing(run: RunResult, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    for file in (copy / "resample").glob("models-*"):
        file.unlink()
    with pytest.raises(StoreError, match=r"models-[0-9a-f]+.safetensors: missing"):
        crfl_core.predict(crfl_core.load(copy), np.zeros((1, 64)))


def test_a_round_to_start_from_must_exist_before_anything_is_trained(tmp_path: Path) -> None:
    config = small(certificates=[{"type": "pathwise-linear"}, {"type": "tail", "resample_from": 9}])
    with pytest.raises(extend.ConfigError, match=r"certificates\.1\.resample_from: found round 9, but rounds are 1..4"):
        crfl_core.run(config, out=tmp_path / "run", plugins=PLUGINS)
    assert not (tmp_path / "run").exists()


def test_only_rounds_in_which_attackers_take_part_are_started_from(tmp_path: Path) -> None:
    """An attack is planned in every round, but its attacker is not drawn in the last ones."""
    config = small(
        seed=2,
        rounds=6,
        training={"learning_rate": 0.5, "steps": 2, "participation": 0.25},
        server=NOISY,
        attack=ATTACK | {"rounds": [1, 2, 3, 4, 5, 6]},
        certificates=[{"type": "tail", "continuations": 8, "selection": 4}],
    )
    result = crfl_core.run(config, out=tmp_path / "run", plugins=PLUGINS)
    last = int(result.ledger.clients.round[result.ledger.clients.attacking].max())
    assert last < 6
    assert (result.path / "resample" / f"round-{last:04d}.safetensors").exists()
    assert not result.metrics.refused


@pytest.mark.parametrize("bound", ["two-stage", "one-stage", "bonferroni", "hoeffding"])
def test_every_bound_on_probabilities_works_for_votes_of_continuations(bound: str, tmp_path: Path) -> None:
    """Without a separate selection no continuation is trained for one, and the bounds are those of the formulas."""
    certificates = [{"type": kind, "continuations": 40, "selection": 8} for kind in ("tail", "postprocess")]
    config = small(
        dataset={"type": "zeros-and-ones", "test_samples": 40},
        server=NOISY,
        attack=ATTACK,
        votes={"bound": bound},
        certificates=certificates,
    )
    run = crfl_core.run(config, out=tmp_path / "run", plugins=PLUGINS)
    assert {one.certificate for one in run.certified} == {"tail", "postprocess"}
    request = run.certifier.questions[0].request
    separate = bound == "two-stage"
    assert request.selection_models == (8 if separate else 0)
    assert len(run.read_continued_models(request)) == (48 if separate else 40)
    votes = run.votes(request)["clean"].expect(CountVotes)
    assert votes.counts.sum(axis=1).tolist() == [40] * len(votes.labels)
    assert votes.selection.sum(axis=1).tolist() == [request.selection_models] * len(votes.labels)
    expected = {
        "two-stage": lambda: formulas.two_stage(votes.selection, votes.counts, 0.001),
        "one-stage": lambda: formulas.one_stage(votes.counts, 0.001),
        "bonferroni": lambda: formulas.one_stage_bonferroni(votes.counts, 0.001),
        "hoeffding": lambda: formulas.hoeffding(votes.counts, 0.001 / 4),
    }[bound]()
    for one in run.certified:
        if one.test_set == "clean":
            np.testing.assert_array_equal(one.guarantee.p_a, expected.p_a)
            np.testing.assert_array_equal(one.guarantee.p_b, expected.p_b)
    assert any((~one.guarantee.abstained).any() for one in run.certified)


class Counting(LinearAggregator):
    """Answers from a memory of its own: every round counts the first client for more."""

    asked: ClassVar[list[int]] = []

    def weights(self, clients: Clients) -> Tensor:
        self.asked.append(0)
        weights = torch.ones(len(clients), dtype=torch.float64)
        weights[0] += len(self.asked)
        return weights / weights.sum()


def test_a_rule_that_weighs_continuations_differently_is_found_out(tmp_path: Path) -> None:
    certificate = {"type": "tail", "continuations": 20}
    config = small(server=NOISY, aggregation=[{"type": "counting"}], attack=ATTACK, certificates=[certificate])
    run = crfl_core.run(config, out=tmp_path / "run", plugins=PLUGINS | {"counting": Counting})  # asked once for all
    with pytest.raises(PluginFailure, match="the weights of client 0 are not those of the run"):
        crfl_core.certify(run, ["certificates.0.continuations=30"])
