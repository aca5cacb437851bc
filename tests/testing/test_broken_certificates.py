"""Certificates that are broken in one way each, and one that an attack beats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from crfl_attacks.model_replacement import ModelReplacement
from crfl_certificates.group_vote import GroupVote
from crfl_certificates.pathwise_linear import PathwiseLinear
from numpy.typing import NDArray

from crfl_core import ABSTAIN, Threat
from crfl_core.extend import Certificate, Check, Guarantee, Ledger, Level, LogitVotes, Plugin, Votes
from crfl_core.testing import Trial, check_plugin
from tests.testing.support import assert_fails, checks_of, verdict


class Trusting(GroupVote):
    """Forgets that all groups share the preprocessing."""

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        forgotten = ("preprocessing is public", "nothing crosses groups")
        return tuple(check for check in super().audit(ledger, threat) if check.name not in forgotten)


def changed(guarantee: Guarantee, **columns: Any) -> Guarantee:
    """The guarantee with another radius, and its logarithm."""
    if "radius" in columns:
        with np.errstate(divide="ignore"):
            columns.setdefault("log_radius", np.log(columns["radius"]))
    return replace(guarantee, **columns)


class Unlabelled(PathwiseLinear):
    """Is not sound, and does not say so."""

    sound: ClassVar[bool] = False


class UnknownClass(PathwiseLinear):
    """Predicts a class that does not exist."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        found = super().certify(ledger, votes, threat, level)
        return changed(found, prediction=found.prediction + 7)


class Abstaining(PathwiseLinear):
    """Certifies what it does not predict."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        found = super().certify(ledger, votes, threat, level)
        return changed(found, prediction=np.full_like(found.prediction, ABSTAIN))


class Confused(PathwiseLinear):
    """Forgets the logarithm."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        found = super().certify(ledger, votes, threat, level)
        return changed(found, log_radius=found.radius)


class Backwards(PathwiseLinear):
    """Certifies more against more attackers."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        found = super().certify(ledger, votes, threat, level)
        return changed(found, radius=np.full_like(found.radius, float(threat.attackers)))


class Doubtful(PathwiseLinear):
    """Certifies more the less the model is sure."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        found = super().certify(ledger, votes, threat, level)
        return changed(found, radius=1.0 / (1.0 + np.ptp(votes.expect(LogitVotes).logits, axis=1)))


class Generous(PathwiseLinear):
    """Certifies a little, whatever the votes are."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        found = super().certify(ledger, votes, threat, level)
        return changed(found, radius=np.where(np.isnan(found.radius), 0.0, found.radius) + 0.1)


class Taciturn(PathwiseLinear):
    """Refuses without a word."""

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        return (Check("the moon is full", "failed"),)


class Credulous(PathwiseLinear):
    """Checks nothing."""

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        return ()


class Boundless(PathwiseLinear):
    """Certifies everything."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        found = super().certify(ledger, votes, threat, level)
        return changed(found, radius=np.full_like(found.radius, np.inf))


class Spread(PathwiseLinear):
    """Shares its radius among the attacked rounds, at one of its levels."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        found = super().certify(ledger, votes, threat, level)
        return changed(found, radius=9.0 ** len(threat.rounds) * found.radius) if level == "sample" else found


class Watching(PathwiseLinear):
    """Speaks about fresh noise, and uses what clients submitted under that of the run."""

    statement: ClassVar[Any] = "tail"


class Flattered(PathwiseLinear):
    """Certifies more the more clients submit."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        found = super().certify(ledger, votes, threat, level)
        return changed(found, radius=found.radius * (1.0 + ledger.clients.residual_norm.max()))


class OneWay(PathwiseLinear):
    """Claims that its numbers hold for attacks to come, and does not ask whether they do."""

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        claimed = Check("it will be fine", "held", direction="forward")
        return (*(check for check in super().audit(ledger, threat) if check.direction is None), claimed)


class Meddling(PathwiseLinear):
    """Changes the votes that it reads."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        votes.expect(LogitVotes).logits[:] = 0.0
        return super().certify(ledger, votes, threat, level)


def flooding(trial: Trial, level: Level) -> NDArray[np.float64] | None:
    """Four clients that poison all their samples and multiply their updates, which at the client level is size 4."""
    if level != "client":
        return None
    attack = ModelReplacement(clients=4, rounds=(2,), scale=50.0, poisoned_per_batch=20)
    return np.where(trial.attacked(attack).predictions != trial.predictions, 4.0, np.inf)


BROKEN: dict[str, list[tuple[Plugin, str]]] = {
    "declares_claims": [(Unlabelled(), "say what kind of number it is")],
    "answers_every_sample": [(UnknownClass(), "predict a label, or -1"), (Meddling(), "read-only")],
    "nothing_is_certified_without_a_prediction": [(Abstaining(), "has a radius where it abstains")],
    "log_radius_agrees": [(Confused(), "log(radius)")],
    "stronger_threats_shrink_radii": [
        (Backwards(), "threat.clients becomes 2"),
        (Spread(), "at the sample level that do not grow when threat.rounds becomes (2, 3)"),
    ],
    "surer_votes_do_not_shrink_radii": [(Doubtful(), "rise with p_a")],
    "ties_certify_nothing": [(Generous(), "abstain if p_a <= p_b")],
    "refusals_help": [(Taciturn(), "a remedy in 'the moon is full'")],
    "refuses_unknown_territory": [(Credulous(), "add a Check of status 'failed'")],
    "fitted_preprocessing_is_not_taken_as_public": [(Trusting(), "check_preprocessing(ledger)")],
    "observed_norms_are_for_pathwise_statements": [
        (Watching(), "leave `observed` of DriftBound as it is"),
        (Flattered(), "adds to what it costs"),
    ],
    "dropped_updates_end_the_forward_reading": [(OneWay(), "add forward_checks(ledger, threat)")],
    "larger_caps_end_the_forward_reading": [(OneWay(), "depend on caps")],
    "no_known_attack_beats_it": [(Boundless(), "the certificate is unsound")],
}
EXAMPLES = [(check, plugin, word) for check, examples in BROKEN.items() for plugin, word in examples]


@pytest.mark.parametrize(
    ("check", "plugin", "word"), EXAMPLES, ids=[type(plugin).__name__ for _, plugin, _ in EXAMPLES]
)
def test_a_broken_certificate_is_told_what_to_fix(check: str, plugin: Plugin, word: str) -> None:
    assert_fails(plugin, check, word, search=flooding)


def test_every_check_has_a_certificate_that_fails_it() -> None:
    assert set(BROKEN) == checks_of(Certificate)


def test_a_sound_certificate_stands_the_search_that_beats_a_boundless_one() -> None:
    (result,) = (
        result
        for result in check_plugin(PathwiseLinear(), search=flooding)
        if result.check == "no_known_attack_beats_it"
    )
    assert result.status == "passed"


def test_without_a_search_nothing_is_claimed_about_attacks() -> None:
    status, message = verdict(PathwiseLinear(), "no_known_attack_beats_it")
    assert (status, message.partition(":")[0]) == ("skipped", "no search was supplied")


class OverGenerous(GroupVote):
    """One client more than the votes allow."""

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        found = super().certify(ledger, votes, threat, level)
        return changed(found, radius=found.radius + 1.0)


def test_certificates_about_groups_are_put_to_a_run_with_groups() -> None:
    skipped = {result.check for result in check_plugin(GroupVote()) if result.status == "skipped"}
    assert skipped == {"no_known_attack_beats_it"}
    assert_fails(OverGenerous(), "ties_certify_nothing", "abstain if p_a <= p_b")
