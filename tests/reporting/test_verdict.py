"""The verdict on a run: one sentence that claims no more than the tables below it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import crfl_core
from crfl_core import load
from crfl_core.reporting.metrics import Attackers
from crfl_core.reporting.verdict import attack_text, verdict
from tests.oracle import tiny
from tests.reporting.test_summary import curve

BOTH = ("backward", "forward")


def say(
    *curves: Any, attackers: int = 1, refused: tuple[str, ...] = (), checks: tuple[dict[str, Any], ...] = ()
) -> str:
    audit = [{"certificate": "some", "checks": [{"level": None, "direction": None} | check for check in checks]}]
    return verdict(curves, refused, audit, clients=20, attackers=attackers)


def test_it_says_what_any_assumed_number_of_clients_leaves_and_what_is_not_checked() -> None:
    every = curve(rounds="every round", directions=BOTH, radii=(0.0, 1.0, 3.0), certified_accuracy=(0.9, 0.89, 0.8861))
    declared = {"name": "vote noise", "status": "declared"}
    assert say(every, attackers=3, checks=(declared,)) == (
        "Certified: 88.6 % correct whatever any 3 of 20 clients do, in every round. 1 assumption is not checked."
    )
    assert say(every, checks=(declared, declared | {"name": "other"})) == (
        "Certified: 89.0 % correct whatever any 3 of 20 clients do, in every round. 2 assumptions are not checked."
    ).replace("any 3", "any 1").replace("clients do", "clients does")
    assert say(every).endswith("All assumptions are checked.")


def test_assumptions_of_other_levels_and_directions_do_not_count() -> None:
    checks = (
        {"name": "a", "status": "declared", "level": "feature"},
        {"name": "b", "status": "declared", "direction": "forward"},
        {"name": "c", "status": "held"},
        {"name": "d", "status": "declared", "level": "client", "direction": "backward"},
    )
    assert say(curve(), checks=checks).endswith("1 assumption is not checked.")


def test_a_statement_about_this_run_alone_is_in_the_past() -> None:
    assert "any 1 of 20 clients did, in round 3." in say(curve())
    assert "any 1 of 20 clients does, in round 3." in say(curve(directions=BOTH))


def test_unknown_rounds_count_and_the_next_larger_number_that_is_known() -> None:
    unknown = curve(any_round_accuracy=(0.9, 0.5, 0.4), any_round_rate=(1.0, 0.6, 0.5))
    assert "50.0 % correct whatever any 1 of 20 clients did, in any one round." in say(unknown)
    sparse = curve(radii=(0.0, 5.0), certified_accuracy=(0.9, 0.6))
    assert "60.0 % correct whatever any 5 of 20 clients did" in say(sparse, attackers=3)


def test_the_best_proof_is_quoted_and_reproductions_and_conditions_are_not_proofs() -> None:
    weak = curve(certificate="weak", certified_accuracy=(0.9, 0.2, 0.1))
    label = curve(certificate="paper", label="reproduction, not a proof", certified_accuracy=(0.99, 0.99, 0.99))
    what_if = curve(certificate="other", conditional=("what-if, does not cover this run: scale 10",))
    assert "20.0 % correct" in say(label, weak, what_if)
    assert "80.0 % correct" in say(weak, curve())
    assert say(label) == "Not certified: paper is a reproduction, not a proof."
    assert say(what_if) == (
        "Certified under a condition: 80.0 % correct whatever any 1 of 20 clients did, in round 3. Condition: what-if, "
        "does not cover this run: scale 10."
    )


def test_attackers_among_named_clients_are_not_any_clients() -> None:
    check = {"name": "only the named clients attack", "status": "declared"}
    assert say(curve(directions=BOTH), attackers=2, checks=(check,)) == (
        "Certified: 70.0 % correct whatever any 2 of the named clients do, in round 3. 1 assumption is not checked."
    )
    assert "any 3 of the named clients" in say(curve(), attackers=3, checks=(check,))


def test_nothing_certified_is_said_first() -> None:
    assert say() == "Not certified: the config asks for no certificate."
    assert say(refused=("tail",)) == "Not certified: every certificate is refused."
    assert say(curve(), attackers=3) == (
        "Not certified: no correct prediction withstands any 3 of 20 clients; 70.0 % are correct whatever any 2 of 20 "
        "clients did, in round 3."
    )
    none = curve(certified_accuracy=(0.9, 0.0, 0.0))
    assert say(none, attackers=2) == "Not certified: no correct prediction withstands any 2 of 20 clients."


def test_sampled_votes_are_certain_up_to_an_error_probability() -> None:
    found = say(curve(), checks=({"name": "vote noise is secret", "status": "held"},))
    assert found.startswith("Certified, up to the error probability of its votes: 80.0 % correct")


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("feature", "70.0 % correct if the assumed attackers move poisoned inputs by at most 2."),
        ("sample", "80.0 % correct if the assumed attackers poison at most 40.0 % of their samples."),
        ("backdoor", "70.0 % correct whatever any 3 of 20 clients did, in round 3, and with any trigger of norm 2 on"),
    ],
)
def test_other_levels_are_quoted_if_there_is_none_about_clients(level: str, words: str) -> None:
    radii = (0.0, 0.4, 1.0) if level == "sample" else (0.0, 1.0, 2.0)
    shares = (0.9, 0.8, 0.3) if level == "sample" else (0.9, 0.8, 0.7)
    assert words in say(curve(level=level, radii=radii, certified_accuracy=shares), attackers=3)
    assert "whatever any 1 of 20" in say(curve(level=level), curve())


def test_the_attack_that_ran_is_stated() -> None:
    attackers = Attackers(
        attack="sign-flip",
        scale=10.0,
        clients=(0, 1, 2),
        rounds=tuple(range(1, 21)),
        mean_weight_share=None,
        largest_weight_share=None,
    )
    assert attack_text(attackers) == "sign-flip: 3 attackers (clients 0-2), rounds 1-20, scale 10"
    one = attackers.model_copy(update={"attack": "", "clients": (1,), "rounds": (2, 5), "scale": "replace"})
    assert attack_text(one, ("north", "south")) == "1 attacker (client south), rounds 2, 5, scale 'replace'"
    assert attack_text(None) == "no client attacked"


def test_a_run_shows_its_verdict_first(tmp_path: Path, crfl: Any) -> None:
    run = crfl_core.run(tiny(groups={"count": 5}, certificates=["group-vote"]), out=tmp_path / "run")
    assert run.verdict.startswith("Certified: ")
    assert repr(run).startswith(f"<RunResult {run.path}: {run.verdict} accuracy ")
    assert run.verdict in run._repr_html_()
    for command in (["show"], ["show", "--full"], ["certify"], ["certify", "--full"]):
        done = crfl(command[0], str(run.path), *command[1:])
        assert " ".join(done.stdout.split()).startswith(run.verdict)
    assert "model-replacement: " in crfl("show", str(run.path)).stdout
    (tmp_path / "run" / "metrics.json").write_text("{}")
    assert repr(load(run.path)) == f"<RunResult {run.path}>"
