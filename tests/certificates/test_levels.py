"""The three questions to a certificate: how far inputs, how many samples, how many clients. Laws of the answers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from crfl_certificates.pathwise_linear import PathwiseLinear
from crfl_certificates.pathwise_smoothed import PathwiseSmoothed
from crfl_certificates.tail import Tail
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crfl_core import ABSTAIN, Threat, formulas
from crfl_core.certification import confidence
from crfl_core.certification.drift import DriftBound
from crfl_core.extend import CountVotes, Guarantee, Ledger, Level, LogitVotes, VoteRequest, Votes, VoteSettings
from tests.certificates.ledgers import synthetic_ledger

Array = NDArray[np.float64]
LEVELS: tuple[Level, ...] = ("feature", "sample", "client")
SQRT2 = np.sqrt(2.0)


def votes_with(margins: Array) -> Votes:
    """Logits of inputs of norm 1, plus the bias, whose margins are given."""
    logits = np.stack([margins, np.zeros(len(margins)), np.full(len(margins), -9.0)], axis=1)
    labels = np.zeros(len(margins), np.int64)
    return LogitVotes(VoteRequest("logits"), VoteSettings(), labels, np.ones(len(margins)), logits=logits)


def certified(ledger: Ledger, threat: Threat, level: Level, margins: Array) -> Guarantee:
    return PathwiseLinear().certify(ledger, votes_with(margins), threat, level)


def tolerated_by(scenario: DriftBound, margins: Array) -> Array:
    """The drift that predictions stand: `margin / (sqrt 2 ||x||)`, less what rounding adds; 0 if nothing is left."""
    votes = votes_with(margins).expect(LogitVotes)
    drift = formulas.largest_attack(
        confidence.margin_thresholds(scenario.ledger, votes.logits, np.full(len(margins), SQRT2)),
        rounding=scenario.rounding,
        terms=scenario.terms,
    )
    np.testing.assert_allclose(np.nan_to_num(drift), margins / (SQRT2 * SQRT2), rtol=1e-9, atol=1e-6)
    return np.nan_to_num(drift)


def size_of(radius: Array) -> Array:
    """Radii in one order: nothing certified below everything that is."""
    return np.where(np.isnan(radius), -1.0, radius)


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of a ledger and of a threat."""
    clients = draw(st.integers(1, 5))
    ledger: dict[str, Any] = {
        "samples": draw(st.lists(st.integers(1, 90), min_size=clients, max_size=clients)),
        "participants": [
            sorted(draw(st.sets(st.integers(0, clients - 1), min_size=1))) for _ in range(draw(st.integers(1, 4)))
        ],
        "rate": draw(st.sampled_from([1e-3, 0.1, 0.8])),
        "steps": draw(st.integers(1, 12)),
        "batch_size": draw(st.sampled_from([1, 7, 32])),
        "decay": draw(st.sampled_from([0.0, 0.01, 0.5])),
        "cap": draw(st.sampled_from([np.inf, 5.0, 60.0])),
        "clip_norm": draw(st.sampled_from([0.2, 10.0])),
        "start_norm": draw(st.sampled_from([0.0, 1.0, 30.0])),
    }
    rounds = len(ledger["participants"])
    threat: dict[str, Any] = {
        "clients": draw(st.one_of(st.integers(0, clients), st.just(tuple(range(clients))))),
        "rounds": tuple(sorted(draw(st.sets(st.integers(1, rounds), min_size=1)))),
        "poison": draw(st.sampled_from(["features", "labels", "features+labels", "replacement", "update"])),
        "poison_ratio": draw(st.sampled_from([0.0, 0.05, 1.0])),
        "scale": draw(st.sampled_from([1.0, 10.0])),
        "clean_world": draw(st.sampled_from(["scaled", "honest"])),
    }
    return ledger, threat


MARGINS = np.concatenate([[0.0], np.geomspace(1e-6, 1e3, 40)])


@settings(max_examples=150, deadline=None)
@given(situation=situations(), level=st.sampled_from(LEVELS))
def test_answers_are_missing_or_infinite_exactly_where_they_must_be(
    situation: tuple[dict[str, Any], dict[str, Any]], level: Level
) -> None:
    """NaN for ties and where attackers need no poison to exceed the margin; infinite only if nothing could exceed it.

    Never a number in between that is not reached: the cost at the radius fits the margin, and more does not.
    """
    ledger, threat = synthetic_ledger(**situation[0]), Threat(**situation[1])
    answer = certified(ledger, threat, level, MARGINS)
    scenario = DriftBound(ledger, threat, ledger.facts.rounds, observed=True)
    tolerated = tolerated_by(scenario, MARGINS)
    sure = tolerated > 0  # all but ties, and what rounding alone might change
    assert answer.abstained.tolist() == (~sure).tolist()
    assert np.isnan(answer.radius[0])
    if level == "client":
        costs = scenario.client_costs()
        assert not np.isnan(costs).any()
        assert (np.diff(costs) >= 0).all()
        assert costs[0] == 0.0
        assert not np.isnan(answer.radius[sure]).any()
        np.testing.assert_array_equal(answer.radius, answer.count)
        for margin, radius in zip(tolerated[sure], answer.radius[sure].astype(int), strict=True):
            assert costs[radius] <= margin
            assert radius == ledger.facts.clients or costs[radius + 1] > margin
        return
    cost = scenario.feature_cost if level == "feature" else lambda size: scenario.sample_cost(np.minimum(size, 1.0))
    at_zero, at_most = cost(np.array([0.0, np.inf]))
    np.testing.assert_array_equal(np.isnan(answer.radius[sure]), at_zero > tolerated[sure])
    unlimited = tolerated[sure] >= at_most
    largest = np.inf if level == "feature" else 1.0
    assert (answer.radius[sure][unlimited] == largest).all()
    finite = np.isfinite(answer.radius)
    assert (cost(answer.radius[finite]) <= tolerated[finite]).all()
    rest = finite & (answer.radius < largest) & (answer.radius > 1e-50)
    if rest.any():
        assert (cost(answer.radius[rest] * (1 + 1e-9)) > tolerated[rest] * (1 - 1e-9)).all()
    if level == "sample":
        assert answer.count is not None
        table = scenario.sample_costs()
        assert (np.diff(table) >= -1e-15).all()
        np.testing.assert_array_equal(np.isnan(answer.count[sure]), table[0] > tolerated[sure])


STRONGER: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "more attackers": [({}, {"clients": number}) for number in range(5)],
    "more rounds": [({}, {"rounds": tuple(range(1, last + 1))}) for last in (1, 2, 3)],
    "scale": [({}, {"scale": scale}) for scale in (1.0, 1.5, 10.0, 1e6)],
    "poison ratio": [({}, {"poison_ratio": ratio}) for ratio in (0.0, 0.01, 0.5, 1.0)],
    "kind of poison": [({}, {"poison": kind}) for kind in ("features", "features+labels", "replacement")],
    # More training also forgets more, so these two are laws for an attack that nothing follows.
    "learning rate": [({"rate": rate}, {"rounds": (3,)}) for rate in (1e-4, 1e-2, 0.5, 1.9)],
    "steps": [({"steps": steps}, {"rounds": (3,)}) for steps in (1, 2, 5, 40)],
    "cap": [({"cap": cap}, {"poison": "update"}) for cap in (5.0, 8.0, 20.0)],
    "clip norm": [({"clip_norm": norm}, {}) for norm in (0.01, 0.1, 10.0)],
    "norm of the model": [({"start_norm": norm}, {}) for norm in (0.0, 1.0, 50.0)],
    "domain": [({}, {"input_bound": bound}) for bound in (0.5, 1.0, 20.0)],
    "fewer participants": [
        ({"participants": [tuple(range(number))] * 3}, {"clients": (0,)}) for number in (4, 3, 2, 1)
    ],
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("what", STRONGER)
@pytest.mark.parametrize("clean_world", ["scaled", "honest"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_stronger_attacker_never_gets_a_larger_answer(
    what: str, level: Level, clean_world: str, decay: float
) -> None:
    answers = []
    for ledger, threat in STRONGER[what]:
        assumed = {"clients": 2, "rounds": (1,), "poison_ratio": 0.1, "clean_world": clean_world} | threat
        record = synthetic_ledger(decay=decay, **ledger)
        answers.append(size_of(certified(record, Threat(**assumed), level, MARGINS).radius))
    for weaker, stronger in itertools.pairwise(answers):
        assert (stronger <= weaker + 1e-9 * np.abs(weaker)).all()
    assert any((one != answers[0]).any() for one in answers) or (what, level) in INSENSITIVE


INSENSITIVE = {
    ("more attackers", "client"),
    ("poison ratio", "sample"),
    ("poison ratio", "client"),
    ("kind of poison", "sample"),
    ("kind of poison", "client"),
    ("norm of the model", "sample"),
    ("norm of the model", "client"),
}
"""What a level asks for cannot be what it depends on, and replacement is what samples and clients are asked about."""


@pytest.mark.parametrize("level", LEVELS)
def test_a_clearer_vote_never_gets_a_smaller_answer(level: Level) -> None:
    ledger = synthetic_ledger(decay=0.1)
    threat = Threat(clients=2, rounds=(1, 3), poison_ratio=0.2)
    sizes = size_of(certified(ledger, threat, level, MARGINS).radius)
    assert (sizes[1:] >= sizes[:-1]).all()


def test_an_earlier_attack_fades_with_weight_decay_and_only_with_it() -> None:
    for decay, fades in ((0.0, False), (0.1, True)):
        ledger = synthetic_ledger(decay=decay, participants=[(0, 1, 2, 3)] * 6)
        costs = [DriftBound(ledger, Threat(clients=1, rounds=(number,)), 6).client_costs()[1] for number in (1, 3, 6)]
        assert bool(costs[0] < costs[1] < costs[2]) == fades
        assert fades or costs == pytest.approx([costs[2]] * 3)
        if fades:
            assert costs[0] == pytest.approx(costs[2] * (1 - 0.05) ** (4 * 5))


def test_attackers_in_every_round_cost_the_sum_that_weight_decay_leaves() -> None:
    ledger = synthetic_ledger(decay=0.1, cap=5.0, participants=[(0, 1, 2, 3)] * 50, clip_norm=1e3)
    threat = Threat(clients=1, rounds=tuple(range(1, 51)), poison="update")
    single = DriftBound(ledger, threat.model_copy(update={"rounds": (50,)}), 50).client_costs()
    kept = 0.95**4
    every = DriftBound(ledger, threat, 50).client_costs()
    assert every[1] == pytest.approx(single[1] * (1 - kept**50) / (1 - kept))
    assert every[4] == pytest.approx(4 * every[1])


def test_the_clip_bounds_what_many_attackers_of_a_round_can_do() -> None:
    ledger = synthetic_ledger(clip_norm=0.05)
    costs = DriftBound(ledger, Threat(clients=1, rounds=(1, 2)), 3).client_costs()
    assert costs.tolist() == pytest.approx([0.0] + [0.2] * 4)  # two rounds, each at most the diameter 2 rho


def test_attackers_stay_the_same_in_all_rounds() -> None:
    """Unequal clients in turn: one attacker is the worst by its sum over rounds, not the worst of every round."""
    turns = [(0, 1), (2, 3), (0, 1)]
    ledger = synthetic_ledger(participants=turns, samples=(30, 10, 39, 1))
    scenario = DriftBound(ledger, Threat(clients=1, rounds=(1, 2, 3)), 3)
    each = [attacked.strength.max() for attacked in scenario.attacked]
    shift = 2 * SQRT2 * SQRT2
    assert scenario.client_costs()[1] == pytest.approx(shift * max(each[0] + each[2], each[1]))


def test_a_client_weighs_what_it_weighs_among_the_participants_of_the_round() -> None:
    ledger = synthetic_ledger(participants=[(0, 1, 2, 3), (0, 1), (2, 3)])
    threat = Threat(clients=(0,), rounds=(1,), poison="labels")
    one = {number: threat.model_copy(update={"rounds": (number,)}) for number in (1, 2, 3)}
    costs = {number: float(DriftBound(ledger, t, 3).sample_cost(np.array([1.0]))[0]) for number, t in one.items()}
    assert costs[2] == pytest.approx(2 * costs[1])
    assert costs[3] == 0.0  # it takes no part
    assert np.isposinf(certified(ledger, one[3], "feature", np.array([1e-9])).radius[0])


def test_samples_are_counted_where_they_fall_and_not_on_average() -> None:
    """One step on a tenth of 600 samples: a share of 0.05 is 30 samples, but all of them may be in that batch."""
    ledger = synthetic_ledger(samples=(600, 600), participants=[(0, 1)], steps=1, batch_size=60)
    threat = Threat(clients=(0,), rounds=(1,), poison="replacement")
    cost = float(DriftBound(ledger, threat, 1).sample_cost(np.array([0.05]))[0])
    answer = certified(ledger, threat, "sample", np.array([2 * cost * (1 + 1e-9)]))
    assert answer.radius[0] == pytest.approx(0.05)
    assert answer.count is not None
    assert answer.count[0] == 3
    whole = synthetic_ledger(samples=(600, 600), participants=[(0, 1)], steps=10, batch_size=60)
    cost = float(DriftBound(whole, threat, 1).sample_cost(np.array([0.05]))[0])
    answer = certified(whole, threat, "sample", np.array([2 * cost * (1 + 1e-9)]))
    assert answer.count is not None
    assert answer.count[0] == 30  # whole epochs of equal batches


def test_a_short_last_batch_is_poisoned_first() -> None:
    ledger = synthetic_ledger(samples=(9, 9), participants=[(0, 1)], steps=3, batch_size=4)
    threat = Threat(clients=(0,), rounds=(1,), poison="replacement")
    table = DriftBound(ledger, threat, 1).sample_costs()
    strength = 0.5 * 0.5 * 2 * SQRT2 * SQRT2
    np.testing.assert_allclose(table[:4] / strength, [0.0, 1.0, 1.25, 1.5])
    assert table[9] / strength == pytest.approx(3.0)


def test_flipped_labels_alone_leave_no_radius_or_any() -> None:
    """There is nothing that a change of inputs could add: the answer is all or nothing, and says which."""
    ledger, threat = synthetic_ledger(), Threat(clients=1, rounds=(1,), poison="labels", poison_ratio=0.1)
    cost = float(DriftBound(ledger, threat, 3).feature_cost(np.array([0.0]))[0])
    answer = certified(ledger, threat, "feature", np.array([2 * cost * 0.999, 2 * cost * 1.001]))
    assert np.isnan(answer.radius[0])
    assert np.isposinf(answer.radius[1])
    assert answer.prediction.tolist() == [0, 0]


def test_a_feature_map_divides_the_radius_by_its_constant() -> None:
    threat = Threat(clients=1, rounds=(1,), poison="features", poison_ratio=0.1)
    plain, steep = synthetic_ledger(), synthetic_ledger(feature_lipschitz=4.0)
    margins = np.array([0.001, 0.01])
    one, other = (certified(ledger, threat, "feature", margins).radius for ledger in (plain, steep))
    np.testing.assert_allclose(one, 4 * other, rtol=1e-9)
    for level in LEVELS[1:]:
        one, other = (certified(ledger, threat, level, margins).radius for ledger in (plain, steep))
        np.testing.assert_array_equal(one, other)


def test_the_scaled_clean_world_does_not_count_scaling_and_the_honest_one_does() -> None:
    ledger = synthetic_ledger(clip_norm=1e3)
    threat = Threat(clients=1, rounds=(1,), poison="features", poison_ratio=0.0, scale=10.0)
    costs = {
        world: float(
            DriftBound(ledger, threat.model_copy(update={"clean_world": world}), 3).feature_cost(np.array([1.0]))[0]
        )
        for world in ("scaled", "honest")
    }
    assert costs["scaled"] == 0.0
    assert costs["honest"] == pytest.approx(9 * 0.25 * 0.5 * 4 * SQRT2 * SQRT2)


@settings(max_examples=60, deadline=None)
@given(situation=situations(), level=st.sampled_from(LEVELS), wins=st.integers(0, 300))
def test_votes_over_fresh_noise_answer_at_least_as_much_as_over_test_noise_alone(
    situation: tuple[dict[str, Any], dict[str, Any]], level: Level, wins: int
) -> None:
    """For equal counts: every round of fresh noise hides more of the drift; never NaN where the other has a number.

    Unless what was submitted is known to be shorter than the cap, which only a pathwise statement may use.
    """
    capped = {"cap": min(60.0, situation[0]["cap"]), "residual": np.inf}
    ledger, threat = synthetic_ledger(**(situation[0] | capped)), Threat(**situation[1])
    start = max(threat.rounds)
    counts = np.array([[wins, 300 - wins]])
    selection = np.array([[10 if wins > 150 else 0, 0 if wins > 150 else 10]])

    def votes(kind: Any, resample_from: int | None) -> Votes:
        request = VoteRequest(kind, models=300, noise_std=0.1, selection_models=10, resample_from=resample_from)
        return CountVotes(
            request, VoteSettings(), np.zeros(1, np.int64), np.ones(1), counts=counts, selection=selection
        )

    tail = Tail().certify(ledger, votes("continuations", start), threat, level)
    smoothed = PathwiseSmoothed(method="monte-carlo").certify(ledger, votes("monte-carlo", None), threat, level)
    assert tail.prediction.tolist() == smoothed.prediction.tolist()
    (most,), (least,) = size_of(tail.radius), size_of(smoothed.radius)
    assert most >= least or most == pytest.approx(least)
    assert (tail.prediction[0] == ABSTAIN) == bool(tail.p_a[0] <= tail.p_b[0])
