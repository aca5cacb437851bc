"""The certificate is exact, keeps the contract of its kind, and certifies the example."""

from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from crfl import RunResult, run
from crfl_core.extend import ABSTAIN, GroupVotes, VoteRequest, VoteSettings
from crfl_core.testing import parametrize_with_checks

from crfl_quorum import Quorum

EXAMPLE = Path(__file__).parents[1] / "example.toml"
CLASSES = 3


@parametrize_with_checks([Quorum(), Quorum(share=0.75), Quorum(may_fall_silent=True)])
def test_it_keeps_the_contract_of_its_kind(check: Callable[[], object]) -> None:
    check()


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    overrides = ["storage.figures=[]", "evaluation.every=0"]
    return run(EXAMPLE, overrides=overrides, out=tmp_path_factory.mktemp("quorum") / "run")


def answer(ballots: tuple[int, ...], weights: tuple[int, ...], share: float) -> int:
    """Return what the classifier answers, written once more."""
    for label in range(CLASSES):
        votes = sum(weight for ballot, weight in zip(ballots, weights, strict=True) if ballot == label)
        if votes > share * sum(weights):
            return label
    return ABSTAIN


def searched(ballots: tuple[int, ...], weights: tuple[int, ...], certificate: Quorum) -> float:
    """Search all votes of all sets of groups for the largest number of them that changes nothing."""
    before = answer(ballots, weights, certificate.share)
    for attackers in range(1, len(ballots) + 1):
        for groups in combinations(range(len(ballots)), attackers):
            for cast in product(range(CLASSES), repeat=attackers):
                attacked = list(ballots)
                for group, ballot in zip(groups, cast, strict=True):
                    attacked[group] = ballot
                after = answer(tuple(attacked), weights, certificate.share)
                if after != before and not (certificate.may_fall_silent and after == ABSTAIN):
                    return attackers - 1
    return float(len(ballots))


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("share", [0.5, 0.6, 0.7])
@pytest.mark.parametrize("weights", [None, (3, 1, 2, 1, 1)])
def test_it_is_exact(example: RunResult, weights: tuple[int, ...] | None, share: float, silent: bool) -> None:
    certificate = Quorum(share=share, may_fall_silent=silent)
    ballots = np.array(list(product(range(CLASSES), repeat=5)))[::5]
    facts = example.ledger.facts
    assert facts.groups is not None
    groups = facts.groups.model_copy(update={"members": facts.groups.members[:5], "weights": weights})
    ledger = example.ledger.of_group(0)
    object.__setattr__(ledger, "facts", facts.model_copy(update={"groups": groups, "classes": CLASSES}))
    unknown = np.zeros(len(ballots))
    votes = GroupVotes(VoteRequest("groups"), VoteSettings(), unknown.astype(int), unknown, ballots, 0.0 * ballots)
    found = certificate.certify(ledger, votes, example.threat, "client")
    for row, prediction, radius in zip(map(tuple, ballots.tolist()), found.prediction, found.radius, strict=True):
        assert prediction == answer(row, groups.votes, share)
        if prediction == ABSTAIN:
            assert np.isnan(radius)
        else:
            assert radius == searched(row, groups.votes, certificate)


def test_the_example_is_certified(example: RunResult) -> None:
    assert example.metrics.refused == {}
    stays, is_not_replaced = (one for one in example.certified if one.test_set == "clean")
    assert is_not_replaced.certificate == "no-other-answer"
    for certified, clients, least in ((stays, 1, 0.7), (is_not_replaced, 5, 0.7)):
        right = certified.guarantee.prediction == certified.labels
        assert (right & (certified.guarantee.radius >= clients)).mean() > least
        assert certified.directions == ("backward", "forward")
    assert 0.05 < stays.guarantee.abstained.mean() < 0.25


def test_groups_that_overlap_are_refused(tmp_path: Path) -> None:
    overrides = ["storage.figures=[]", "rounds=2", "groups.by='subsets'", "groups.size=2", "attack=none"]
    refused = run(EXAMPLE, overrides=overrides, out=tmp_path / "run").metrics.refused
    assert all("groups are disjoint" in reason for reason in refused.values())
    assert len(refused) == 2
