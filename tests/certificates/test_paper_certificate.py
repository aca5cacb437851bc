"""Algorithm 2 and Corollary 1: reference values, laws, abstention, and the certificate on a real run."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crfl_certificates.paper import Paper, strengths
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erf

import crfl_core
from crfl_core import ABSTAIN, RunResult, Threat, formulas
from crfl_core.certification.certifier import audit_certificate
from crfl_core.extend import CountVotes, Ledger, VoteRequest, Votes, VoteSettings
from tests.certification.reference import VECTORS
from tests.oracle import tiny


def vectors(kind: str) -> list[Any]:
    """The reference values of a kind: 50-digit arithmetic, inputs as exact decimals."""
    return [pytest.param(vector, id=vector["id"]) for vector in VECTORS if vector["kind"] == kind]


def radius_of(inputs: dict[str, Any], budget: Any) -> Any:
    """Corollary 1 with the schedule `rho_t = a t + b`, all attackers alike and p_i = 1 / N, as the vectors have it."""
    attacked, total = inputs["t_adv"], inputs["T"]
    clips = [float(Decimal(inputs["rho_a"]) * t + Decimal(inputs["rho_b"])) for t in range(1, total + 1)]
    noises = [float(inputs["sigma"])] * (total - 1) + [float(inputs["sigma_T"])]
    shares = Decimal(inputs["gamma"]) * inputs["tau"] * Decimal(inputs["eta"]) * Decimal(inputs["q_over_n"])
    return formulas.log_radius(
        budget,
        noise_std=noises[attacked - 1],
        lipschitz=formulas.gradient_lipschitz(clips[attacked - 1]),
        strengths=[float(shares / inputs["N"])] * inputs["R"],
        contraction=formulas.log_contraction(clips[attacked:], noises[attacked:]),
    )


@pytest.mark.parametrize("vector", vectors("paper_radius"))
def test_radii_agree_with_the_reference_values(vector: dict[str, Any]) -> None:
    inputs, expected = vector["inputs"], {key: value["float"] for key, value in vector["outputs"].items()}
    budget = formulas.kl_budget(float(inputs["pA"]), float(inputs["pB"]))
    log_radius = radius_of(inputs, budget)
    assert float(budget) == pytest.approx(expected["eps"], rel=1e-12)
    assert float(log_radius) == pytest.approx(expected["log_radius"], rel=1e-12)
    # A thousand rounds of contraction put the radius at e^1000 and its rounding into the third digit from the end.
    assert math.exp(log_radius) == pytest.approx(expected["radius"], rel=1e-10 if inputs["T"] > 1000 else 1e-12)


@pytest.mark.parametrize("vector", vectors("counts_hoeffding"))
def test_bounds_from_counts_agree_with_the_reference_values(vector: dict[str, Any]) -> None:
    inputs, expected = vector["inputs"], vector["outputs"]
    rest = inputs["M"] - inputs["nA"] - inputs["nB"]
    # The votes of all other classes, spread so that none of them is the second.
    counts = np.array([[inputs["nB"], inputs["nA"], *np.bincount(np.arange(rest) % 200, minlength=200)]])
    bounds = formulas.hoeffding(counts, float(inputs["alpha"]))
    assert bounds.first.tolist() == [1]
    assert float(bounds.p_a[0]) == pytest.approx(expected["hoeffding_pA"]["float"], rel=1e-12)
    assert float(bounds.p_b[0]) == pytest.approx(expected["hoeffding_pB"]["float"], rel=1e-12)
    assert bool(bounds.p_a[0] <= bounds.p_b[0]) == expected["abstain"]
    budget = formulas.kl_budget(bounds.p_a, bounds.p_b)
    assert float(budget[0]) == pytest.approx(expected["eps"]["float"], rel=1e-12)
    assert float(np.exp(radius_of(inputs, budget)[0])) == pytest.approx(
        expected["radius_paper_mnist"]["float"], rel=1e-12
    )


probability = st.floats(0.0, 1.0)
ordinary: dict[str, Any] = {
    "p_a": 0.8,
    "p_b": 0.1,
    "attackers": 2,
    "weight": 0.05,
    "scale": 10.0,
    "steps": 30,
    "rate": 0.01,
    "poison_ratio": 0.1,
    "noise_std": 0.01,
    "clip_norms": [3.0] * 5,
}


def log_radius(**changes: Any) -> float:
    """Corollary 1 for attackers that are all alike, in terms of what an experiment varies."""
    k = ordinary | changes
    strength = k["weight"] * k["scale"] * k["steps"] * k["rate"] * k["poison_ratio"]
    return float(
        formulas.log_radius(
            formulas.kl_budget(k["p_a"], k["p_b"]),
            noise_std=k["noise_std"],
            lipschitz=formulas.gradient_lipschitz(k["clip_norms"][0]),
            strengths=[strength] * k["attackers"],
            contraction=formulas.log_contraction(k["clip_norms"][1:], [k["noise_std"]] * (len(k["clip_norms"]) - 1)),
        )
    )


@settings(deadline=None, max_examples=60)
@given(
    factor=st.floats(1.01, 50.0),
    what=st.sampled_from(["scale", "steps", "rate", "poison_ratio", "weight"]),
    p_a=st.floats(0.3, 1.0),
    noise_std=st.floats(1e-3, 1.0),
)
def test_the_radius_falls_with_everything_that_strengthens_an_attacker(
    factor: float, what: str, p_a: float, noise_std: float
) -> None:
    """gamma, tau, eta, q/n and p_i enter as a product: a factor on any of them divides the radius."""
    weak = log_radius(p_a=p_a, noise_std=noise_std)
    strong = log_radius(p_a=p_a, noise_std=noise_std, **{what: ordinary[what] * factor})
    assert strong == pytest.approx(weak - math.log(factor), abs=1e-9) or strong == weak == math.inf


@given(attackers=st.integers(1, 50), more=st.integers(1, 50))
def test_the_radius_falls_inversely_with_the_number_of_attackers(attackers: int, more: int) -> None:
    """`R sum_i S_i^2 = R^2 S^2` for equal attackers."""
    fewer, many = log_radius(attackers=attackers), log_radius(attackers=attackers + more)
    assert many == pytest.approx(fewer - math.log((attackers + more) / attackers), abs=1e-9)


@settings(max_examples=200)
@given(p_a=probability, p_b=probability, more=probability, less=probability)
def test_the_radius_rises_with_the_margin(p_a: float, p_b: float, more: float, less: float) -> None:
    wider = log_radius(p_a=max(p_a, more), p_b=min(p_b, less))
    assert wider >= log_radius(p_a=p_a, p_b=p_b) - 1e-12


@given(rounds=st.integers(1, 40), ratio=st.floats(0.1, 8.0))
def test_the_radius_rises_with_every_round_after_the_attack(rounds: int, ratio: float) -> None:
    clip = ratio * 0.01
    shorter, longer = (log_radius(clip_norms=[clip] * count) for count in (rounds, rounds + 1))
    assert longer >= shorter


@settings(deadline=None, max_examples=300)
@given(
    p_a=st.one_of(probability, st.just(1.0), st.floats(0.5, 0.5 + 1e-7)),
    p_b=st.one_of(probability, st.just(0.0), st.floats(0.5 - 1e-7, 0.5)),
    strength=st.floats(0.0, 1e300),
    noise_std=st.floats(0.0, 1e3),
    ratio=st.floats(1e-3, 1e6),
    rounds=st.integers(0, 1000),
)
def test_no_input_gives_nan_or_a_warning(
    p_a: float, p_b: float, strength: float, noise_std: float, ratio: float, rounds: int
) -> None:
    """Warnings are errors in these tests. The radius itself may overflow; its logarithm does not."""
    budget = formulas.kl_budget(p_a, p_b)
    assert budget >= 0
    assert (budget > 0) == (p_a > p_b) or abs(p_a - p_b) < 1e-150  # whose square underflows
    radius = formulas.log_radius(
        budget,
        noise_std=noise_std,
        lipschitz=formulas.gradient_lipschitz(3.0),
        strengths=[strength, strength],
        contraction=formulas.log_contraction([ratio] * rounds, [1.0] * rounds),
    )
    assert not np.isnan(radius)


def test_probabilities_an_ulp_apart_still_have_a_budget() -> None:
    """`1 - (sqrt p_A - sqrt p_B)^2` rounds to 1 or beyond; the budget must not turn negative."""
    p_b = np.linspace(0.01, 0.9, 1000)
    budget = formulas.kl_budget(np.nextafter(p_b, 1.0), p_b)
    assert (budget > 0).all()
    wider = formulas.kl_budget(p_b * (1 + 1e-9), p_b)
    np.testing.assert_allclose(wider, p_b * 0.25e-18, rtol=1e-6)


@pytest.mark.parametrize("gap", [1e-3, 1e-9, 1e-15])
def test_certainty_is_approached_without_loss(gap: float) -> None:
    """At p_A = 1 - gap and p_B = 0 the budget is -log(gap), at p_A = 1 infinite."""
    p_a = 1.0 - gap
    assert float(formulas.kl_budget(p_a, 0.0)) == pytest.approx(-math.log(1.0 - p_a), rel=1e-12)
    assert formulas.kl_budget(1.0, 0.0) == math.inf


@pytest.mark.parametrize("ratio", [1e-300, 1e-20, 1e-8, 1e-3, 0.5, 1.0, 5.0, 20.0, 1e6])
def test_the_contraction_is_exact_for_any_ratio_of_clip_to_noise(ratio: float) -> None:
    """log(2 Phi(x) - 1): about log(x sqrt(2/pi)) for small x, about -erfc(x / sqrt 2) for large x."""
    found = formulas.log_contraction([ratio], [1.0])
    if ratio < 1e-7:
        assert found == pytest.approx(math.log(ratio) + 0.5 * math.log(2 / math.pi), rel=1e-13)
    elif ratio > 5:
        assert found == pytest.approx(-math.erfc(ratio / math.sqrt(2)), rel=1e-12)
    else:
        assert found == pytest.approx(math.log(erf(ratio / math.sqrt(2))), rel=1e-12)


def test_a_round_without_noise_contracts_nothing() -> None:
    assert formulas.log_contraction([1.0, 2.0], [0.0, 0.0]) == 0.0
    assert formulas.log_contraction([], []) == 0.0


def test_attackers_who_can_do_nothing_have_an_infinite_radius_and_no_budget_none() -> None:
    common = {"noise_std": 0.01, "lipschitz": 4.0, "contraction": -3.0}
    assert formulas.log_radius(0.5, strengths=[0.0], **common) == math.inf
    assert formulas.log_radius(0.5, strengths=[], **common) == math.inf
    assert formulas.log_radius(0.0, strengths=[0.0], **common) == -math.inf


@settings(deadline=None, max_examples=100)
@given(
    votes=st.lists(st.lists(st.integers(0, 400), min_size=3, max_size=3), min_size=1, max_size=6).filter(
        lambda rows: all(map(sum, rows))
    ),
    alpha=st.floats(1e-6, 0.5),
)
def test_hoeffding_uses_the_number_of_models_of_each_sample(votes: list[list[int]], alpha: float) -> None:
    counts = np.array(votes)
    bounds = formulas.hoeffding(counts, alpha)
    for row, p_a, p_b in zip(votes, bounds.p_a, bounds.p_b, strict=True):
        models, (_, second, first) = sum(row), sorted(row)
        slack = math.sqrt(math.log(1 / alpha) / (2 * models))
        assert float(p_a) == pytest.approx(max(0.0, first / models - slack))
        assert float(p_b) == pytest.approx(min(1.0, second / models + slack))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A small attacked run with schedules, so that every round has its own clip norm and noise."""
    server = {"clip_norm": {"start": 0.5, "slope": 0.25}, "noise_std": [0.3, 0.6, 0.8, 0.5]}
    config = tiny(server=server, model={"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}})
    return crfl_core.run(config, out=tmp_path_factory.mktemp("paper") / "run")


def counted(counts: list[list[int]], noise_std: float = 0.1, alpha: float = 0.001) -> Votes:
    """Votes as they would come from a model."""
    request = VoteRequest("monte-carlo", models=sum(counts[0]), noise_std=noise_std)
    zeros = np.zeros(len(counts), np.int64)
    found = np.array(counts)
    norms = zeros.astype(np.float64)
    return CountVotes(request, VoteSettings(alpha=alpha), zeros, norms, counts=found, selection=np.zeros_like(found))


def test_the_certificate_puts_the_ledger_into_corollary_1(run: RunResult) -> None:
    """All by hand: attack in round 2 of 4, noise of that round, contraction of rounds 3 and 4, 1/4 by the map."""
    votes = counted([[950, 50] + [0] * 8], noise_std=0.9)
    threat = Threat(clients=(0, 5), rounds=(2,), poison_ratio=0.2, scale=3.0, poison="features")
    guarantee = Paper().certify(run.ledger, votes, threat, "feature")
    slack = math.sqrt(math.log(1000) / 2000)
    budget = -math.log(1 - (math.sqrt(0.95 - slack) - math.sqrt(0.05 + slack)) ** 2)
    samples = np.asarray(run.ledger.facts.samples, np.float64)
    weights = samples / samples.sum()
    each = [float(weights[client]) * 3.0 * 5 * 0.2 * 0.2 for client in (0, 5)]
    contraction = erf(1.25 / 0.8 / math.sqrt(2)) * erf(1.5 / 0.9 / math.sqrt(2))
    lipschitz = math.sqrt(2 + 2 * 1.0 + 1.0**2)
    square = budget * 0.6**2 / (2 * 2 * lipschitz**2 * sum(s**2 for s in each) * contraction)
    assert guarantee.prediction.tolist() == [0]
    assert float(guarantee.radius[0]) == pytest.approx(math.sqrt(square) * 4.0, rel=1e-6)
    assert float(guarantee.log_radius[0]) == pytest.approx(math.log(guarantee.radius[0]), rel=1e-12)


def test_the_authors_code_is_two_options(run: RunResult) -> None:
    """A rho of its own in L_Z, and a radius where p_A <= p_B, of the square of the difference."""
    votes = counted([[950, 50] + [0] * 8, [505, 495] + [0] * 8])
    threat = Threat(clients=(0,), rounds=(2,), poison_ratio=0.2, scale=3.0, poison="features")
    plain, theirs = (
        one.certify(run.ledger, votes, threat, "feature")
        for one in (Paper(), Paper(attacked_clip_norm=3.0, abstains=False))
    )
    ratio = formulas.gradient_lipschitz(1.0) / formulas.gradient_lipschitz(3.0)  # rho is 1 in round 2
    assert float(theirs.radius[0]) == pytest.approx(float(plain.radius[0]) * ratio, rel=1e-12)
    assert plain.prediction.tolist() == [0, ABSTAIN]
    assert theirs.prediction.tolist() == [0, 0]
    p_a, p_b = theirs.p_a, theirs.p_b
    assert p_a[1] < p_b[1]
    budgets = -np.log(1 - (np.sqrt(p_a) - np.sqrt(p_b)) ** 2)
    assert float(theirs.radius[1] / theirs.radius[0]) == pytest.approx(math.sqrt(budgets[1] / budgets[0]), rel=1e-9)


def test_an_attack_in_the_final_round_meets_the_test_noise_only(run: RunResult) -> None:
    threat = Threat(clients=(0,), rounds=(4,), poison_ratio=0.2, scale=3.0)
    small, large = (
        Paper().certify(run.ledger, counted([[950, 50]], noise_std=noise), threat, "feature").log_radius[0]
        for noise in (0.1, 0.2)
    )
    assert float(large - small) == pytest.approx(math.log(2), rel=1e-12)


def test_a_number_of_unknown_clients_means_the_strongest(run: RunResult) -> None:
    votes, strongest = counted([[950, 50]]), np.argsort(run.ledger.facts.samples)[::-1][:2]
    radii = [
        float(Paper().certify(run.ledger, votes, Threat(clients=clients, rounds=(2,)), "feature").radius[0])
        for clients in (2, tuple(map(int, strongest)), tuple(map(int, np.argsort(run.ledger.facts.samples)[:2])))
    ]
    assert radii[0] == radii[1] < radii[2]


def test_it_abstains_exactly_where_the_bounds_do_not_separate(run: RunResult) -> None:
    """With 1000 models and alpha 0.001 the two bounds meet at a margin of 117.5 votes."""
    rows = [[500 + margin // 2, 500 - margin // 2] for margin in (0, 100, 116, 118, 120, 900)]
    guarantee = Paper().certify(run.ledger, counted(rows), Threat(clients=(0,), rounds=(2,)), "feature")
    assert guarantee.abstained.tolist() == [True, True, True, False, False, False]
    np.testing.assert_array_equal(guarantee.abstained, guarantee.p_a <= guarantee.p_b)
    np.testing.assert_array_equal(guarantee.prediction == ABSTAIN, guarantee.abstained)
    np.testing.assert_array_equal(np.isnan(guarantee.radius), guarantee.abstained)
    assert (np.diff(guarantee.radius[3:]) > 0).all()


def checks(ledger: Ledger, threat: Threat) -> dict[str, str]:
    """The audit as a table of status by name."""
    return {check.name: check.status for check in Paper().audit(ledger, threat)}


def test_the_audit_says_what_the_corollary_passes_over(run: RunResult) -> None:
    found = checks(run.ledger, run.threat)
    assert found["softmax regression"] == found["one attacked round"] == found["input norm"] == "held"
    assert found["labels unchanged"] == "failed"  # the attack flips labels, the radius is about features
    assert found["votes of one run stand for all runs"] == "declared"
    assert run.audits[0].refusal == ""
    assert all(curve.label == "reproduction, not a proof" for curve in run.metrics.curves)
    assert any("labels unchanged" in text for text in run.metrics.curves[0].conditional)


@pytest.mark.parametrize("rounds", [(9,), (1, 9)])
def test_rounds_that_do_not_exist_are_refused(run: RunResult, rounds: tuple[int, ...]) -> None:
    assert checks(run.ledger, Threat(clients=1, rounds=rounds))["attacked rounds exist"] == "failed"


def test_several_attacked_rounds_are_a_condition_that_says_what_was_added(run: RunResult) -> None:
    found = audit_certificate(Paper(), run.ledger, Threat(clients=1, rounds=(1, 2)))
    assert found.refusal == ""
    (check,) = (check for check in found.checks if check.name == "one attacked round")
    assert (check.status, check.refuses) == ("failed", False)
    assert "remark on attacks of a fixed frequency" in check.remedy


def test_several_attacked_rounds_add_their_divergences(run: RunResult) -> None:
    """Rounds 1 and 3 of 4: rounds 2 and 4 contract, the attacked ones do not. By the divergence, not by radii."""
    votes = counted([[950, 50] + [0] * 8], noise_std=0.9)
    threat = Threat(clients=(0, 5), rounds=(1, 3), poison_ratio=0.2, scale=3.0, poison="features")
    radius = float(Paper().certify(run.ledger, votes, threat, "feature").radius[0])
    clips, noises = [record.clip_norm for record in run.ledger.rounds], [0.3, 0.6, 0.8, 0.9]
    added = [0.0] * 4
    for number in (1, 3):
        added[number - 1] = formulas.attack_divergence(
            [radius / 4.0] * 2,  # behind the map, which divides by 4
            noise_std=noises[number - 1],
            lipschitz=formulas.gradient_lipschitz(clips[number - 1]),
            strengths=strengths(run.ledger, threat, number),
        )
    _, p_a, p_b = formulas.hoeffding(np.array([[950, 50]]), 0.001)
    left = formulas.divergence_by_round(added, clips, noises)
    assert float(left[-1]) == pytest.approx(float(formulas.kl_budget(p_a, p_b)[0]), rel=1e-9)


def test_more_attacked_rounds_are_never_better(run: RunResult) -> None:
    def log_radius_of(**rounds: Any) -> float:
        threat = Threat(clients=2, poison_ratio=0.2, scale=3.0, poison="features", **rounds)
        return float(Paper().certify(run.ledger, counted([[950, 50]]), threat, "feature").log_radius[0])

    every = (1, 2, 3, 4)
    at_most = [log_radius_of(rounds=every, rounds_at_most=count) for count in (1, 2, 3, 4)]
    assert at_most == sorted(at_most, reverse=True)
    assert at_most[-1] == pytest.approx(log_radius_of(rounds=every), rel=1e-12)
    for pair in ((1, 2), (1, 4), (2, 3), (3, 4)):
        assert at_most[1] <= log_radius_of(rounds=pair) + 1e-12


def test_a_run_without_noise_in_the_attacked_round_is_refused(tmp_path: Path) -> None:
    config = tiny(server={"clip_norm": 4.0, "noise_std": [0.1, 0.0, 0.1, 0.1]})
    result = crfl_core.run(config, out=tmp_path / "quiet")
    assert "noise in the attacked round" in result.metrics.refused["paper"]
