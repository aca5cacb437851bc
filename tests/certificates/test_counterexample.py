"""Why votes of one run prove nothing about all runs: the counterexample to the paper's procedure.

Training is simulated with the loss `z w` of a single parameter w, whose gradient is z everywhere: 0 on clean data, so
that a clean round only clips and adds noise, and an attack adds one drift. The class is the sign of w. A run of the
softmax model with the same schedule lends its ledger; the votes are those of the simulation, one "test sample" per
simulated run.
"""

from __future__ import annotations

import numpy as np
import pytest
from crfl_certificates.paper import Paper, strengths
from crfl_certificates.pathwise_linear import PathwiseLinear
from crfl_certificates.pathwise_smoothed import PathwiseSmoothed
from crfl_certificates.tail import Tail
from numpy.typing import NDArray
from scipy.special import ndtr

import crfl_core.certification.formulas as formulas
from crfl_core import Threat
from crfl_core.extend import CountVotes, Ledger, LogitVotes, VoteRequest, VoteSettings
from tests.certificates.federations import coins
from tests.certificates.worlds import federation_of, play

Array = NDArray[np.float64]
RUNS, MODELS, ALPHA = 2000, 1000, 0.001
HEADS, TAILS = 0, 1


def ledger_of(rounds: int, clip_norm: float, test_noise: float) -> Ledger:
    """The record of a run with training noise 1 in which one of two clients may attack in round 1."""
    config = coins({"learning_rate": 0.5, "steps": 1}, rounds=rounds)
    noise = [1.0] * (rounds - 1) + [test_noise]
    config["server"] = {"clip_norm": clip_norm, "noise_std": noise, "cap_updates": False}
    return play(federation_of(config)).ledger


def simulated(noise: Array, clip_norm: float, drift: float = 0.0) -> Array:
    """The final parameters of runs with this noise, (runs, rounds - 1), after a drift in round 1."""
    w = np.full(len(noise), drift)
    for column in noise.T:
        w = np.clip(w, -clip_norm, clip_norm) + column
    clipped: Array = np.clip(w, -clip_norm, clip_norm)
    return clipped


def votes_of(w: Array, test_noise: float, request: VoteRequest) -> CountVotes:
    """What noisy copies of each run's final model vote: tails if the parameter is positive."""
    generator = np.random.default_rng(1)
    tails = np.array([(one + test_noise * generator.standard_normal(request.models) > 0).sum() for one in w])
    counts = np.stack([request.models - tails, tails], axis=1)
    chosen = np.stack([w <= 0, w > 0], axis=1).astype(np.int64)
    settings = VoteSettings(models=request.models, alpha=ALPHA)
    labels = np.zeros(len(w), np.int64)
    return CountVotes(request, settings, labels, np.ones(len(w)), counts=counts, selection=chosen)


def paper_drift(ledger: Ledger, threat: Threat, radius: Array) -> Array:
    """The drift of the parameters that the paper counts for an attack of a radius: `2 S L_Z radius`."""
    (strength,) = strengths(ledger, threat, 1)
    constant = formulas.gradient_lipschitz(ledger.round(1).clip_norm)
    return 2 * float(strength) * constant * radius


THREAT = Threat(clients=(0,), rounds=(1,), poison="features", poison_ratio=1.0, clean_world="scaled")


def test_the_paper_certifies_nearly_every_run_though_runs_contradict_each_other() -> None:
    """`rho / sigma = 1`, 30 rounds after the attack, little test noise, and no attack at all.

    Half of all runs end on each side. Two independent clean runs are both certified and disagree half of the time,
    where the certificate may be wrong with probability 0.001. A vote over fresh noise sees the tie and abstains.
    """
    ledger = ledger_of(31, clip_norm=1.0, test_noise=0.01)
    generator = np.random.default_rng(0)
    one, other = (simulated(generator.standard_normal((RUNS, 30)), clip_norm=1.0) for _ in range(2))
    request = VoteRequest("monte-carlo", models=MODELS, noise_std=0.01)
    first, second = (Paper().certify(ledger, votes_of(w, 0.01, request), THREAT, "feature") for w in (one, other))
    both = ~first.abstained & ~second.abstained
    assert both.mean() > 0.97
    assert paper_drift(ledger, THREAT, first.radius[both]).min() > 1.0  # as if nothing could change them
    assert 0.45 < (first.prediction[both] != second.prediction[both]).mean() < 0.55

    fresh = VoteRequest("continuations", models=MODELS, noise_std=0.01, selection_models=1, resample_from=1)
    ends = simulated(generator.standard_normal((20 * MODELS, 30)), clip_norm=1.0)
    tails = (ends.reshape(20, MODELS) > 0).sum(axis=1)
    counts = np.stack([MODELS - tails, tails], axis=1)
    chosen = (counts == counts.max(axis=1, keepdims=True)).astype(np.int64)
    settings = VoteSettings(models=MODELS, alpha=ALPHA)
    votes = CountVotes(fresh, settings, np.zeros(20, np.int64), np.ones(20), counts=counts, selection=chosen)
    tail = Tail(continuations=MODELS, resample_from=1).certify(ledger, votes, THREAT, "client")
    assert tail.abstained.all()


@pytest.mark.parametrize("drift", [0.3, 0.6])
def test_with_less_test_noise_the_paper_is_wrong_about_the_same_noise_too_and_pathwise_is_not(drift: float) -> None:
    """`rho / sigma = 10`, one round after the attack, `sigma_T = sigma / 10`: training noise hides nothing from a run.

    An attacked run and the clean one with the same noise are compared. A certificate is wrong if it tolerates this
    drift, by its own count, and the clean run predicts another class: nearly always when the drift changed the sign.
    """
    ledger = ledger_of(2, clip_norm=10.0, test_noise=0.1)
    noise = np.random.default_rng(0).standard_normal((RUNS, 1))
    poisoned, clean = simulated(noise, 10.0, drift), simulated(noise, 10.0)
    expected = np.where(clean > 0, TAILS, HEADS)

    request = VoteRequest("monte-carlo", models=MODELS, noise_std=0.1)
    paper = Paper().certify(ledger, votes_of(poisoned, 0.1, request), THREAT, "feature")
    with np.errstate(invalid="ignore"):
        certified = paper_drift(ledger, THREAT, paper.radius) > drift
    false = certified & (paper.prediction != expected)
    assert false.mean() > 0.8 * (ndtr(drift) - 0.5) > 50 * ALPHA

    selected = VoteRequest("monte-carlo", models=MODELS, noise_std=0.1, selection_models=1)
    votes = votes_of(poisoned, 0.1, selected)
    smoothed = PathwiseSmoothed(method="monte-carlo").certify(ledger, votes, THREAT, "client")
    bounds = formulas.two_stage(votes.selection, votes.counts, ALPHA)
    tolerated = 0.1 * np.asarray(formulas.gaussian_threshold(bounds.p_a, bounds.p_b))
    certified = ~smoothed.abstained & (tolerated > drift)
    assert (smoothed.prediction[certified] == expected[certified]).all()

    # Logits 0 and w on inputs of norm 1 differ by w; a drift of w alone is along one of the two weights.
    logits = np.stack([np.zeros(RUNS), poisoned], axis=1)
    margins = np.asarray(formulas.margin_threshold(logits, np.ones(RUNS)))
    linear = PathwiseLinear().certify(
        ledger,
        LogitVotes(VoteRequest("logits"), VoteSettings(), np.zeros(RUNS, np.int64), np.ones(RUNS), logits=logits),
        THREAT,
        "client",
    )
    certified = margins > drift
    assert certified.mean() > 0.2
    assert (linear.prediction[certified] == expected[certified]).all()
