"""The vote of groups: no certified prediction changes, whatever that number of clients does in every round."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from numpy.typing import NDArray
from torch import Tensor

import crfl_core
from crfl_core import RunResult
from crfl_core.extend import AttackerView, GroupVotes, State, hookimpl
from tests.oracle import contents, federation_of, tiny

Crfl = Callable[..., CompletedProcess[str]]
REFINED = {"type": "group-vote", "name": "refined", "refine": True}
PARTITION = {"type": "iid", "clients": 9}


def grouped(**changes: Any) -> dict[str, Any]:
    """Nine clients, each with a model of its own, on 300 digits."""
    defaults: dict[str, Any] = {
        "dataset": {"type": "digits", "test_samples": 120},
        "partition": PARTITION,
        "groups": {"count": 9},
        "training": {"learning_rate": 0.5, "steps": 20, "batch_size": 32},
        "attack": "none",
        "certificates": ["group-vote"],
    }
    return tiny(**(defaults | changes))


def trained(config: dict[str, Any], path: Path, **plugins: Any) -> RunResult:
    return crfl_core.run(config, out=path, plugins=plugins)


def answers(run: RunResult) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The prediction of every clean test sample, and the number of clients that it stands."""
    certified = next(one for one in run.certified if one.test_set == "clean")
    return certified.guarantee.prediction, certified.guarantee.radius


class Turning(ModelReplacement):
    """Submits whatever moves the model of its group away, as far as it can go."""

    def craft(self, known: AttackerView, state: State) -> Tensor:
        generator = torch.Generator().manual_seed(known.round.number)
        return -30.0 * known.own_updates + torch.randn(
            known.own_updates.shape, generator=generator, dtype=known.own_updates.dtype
        )


def test_no_certified_prediction_changes_under_attack_in_every_round(tmp_path: Path) -> None:
    prediction, radius = answers(trained(grouped(), tmp_path / "clean"))
    reached, changed = 0, 0
    for number, clients in enumerate([[0], [8], [1, 5], [2, 3, 7], [0, 1, 2, 3], [4, 5, 6, 7]]):
        attack = {"type": "turning", "clients": clients, "rounds": [1, 2, 3, 4]}
        attacked, _ = answers(trained(grouped(attack=attack), tmp_path / str(number), turning=Turning))
        stands = radius >= len(clients)
        reached += int(stands.sum())
        assert (attacked == prediction)[stands].all()
        changed += int((attacked != prediction).sum())
    assert reached > 100
    assert changed > 10  # or the attack would show nothing


def test_the_number_is_exact(tmp_path: Path) -> None:
    """One client more can change the winner: by brute force over what its groups might vote."""
    run = trained(grouped(), tmp_path / "run")
    votes = run.votes(run.certifier.questions[0].request)["clean"].expect(GroupVotes)
    prediction, radius = answers(run)
    close = np.flatnonzero(radius <= 2)[:12]
    assert len(close) > 3
    for sample in close:
        cast, stands = votes.ballots[sample], int(radius[sample])
        assert not changeable(cast, stands, prediction[sample])
        assert changeable(cast, stands + 1, prediction[sample])


def changeable(cast: NDArray[np.int64], groups: int, winner: int) -> bool:
    """Whether some of the groups, voting for one and the same other class, change the winner."""
    for chosen in combinations(range(len(cast)), groups):
        for rival in range(10):
            counts = np.bincount(np.where(np.isin(range(len(cast)), chosen), rival, cast), minlength=10)
            if counts.argmax() != winner:
                return True
    return False


def test_named_candidates_reach_their_own_groups_only(tmp_path: Path) -> None:
    facts = federation_of(grouped(groups={"count": 3})).facts.groups
    assert facts is not None
    threat = {"clients": list(facts.members[1]), "poison": "update"}
    config = grouped(groups={"count": 3}, threat=threat, certificates=[{"type": "group-vote", "candidates": "named"}])
    run = trained(config, tmp_path / "run")
    all_may_attack = crfl_core.certify(run, overrides=["certificates=['group-vote']"])
    _, named = answers(run)
    free = next(one for one in all_may_attack.certified if one.test_set == "clean").guarantee.radius
    declared = [check.measured for check in run.audits[0].checks if check.status == "declared"]
    assert declared == [f"clients {', '.join(map(str, facts.members[1]))}"]
    assert (named >= free).all()
    assert named.max() == 3  # all of them together have one vote of three
    assert free.max() == 1


def test_groups_with_more_votes_are_worth_more(tmp_path: Path) -> None:
    weights = [5, 1, 1, 1, 1, 1, 1, 1, 1]
    run = trained(grouped(groups={"count": 9, "weights": weights}), tmp_path / "run")
    votes = run.votes(run.certifier.questions[0].request)["clean"].expect(GroupVotes)
    prediction, radius = answers(run)
    totals = np.stack([((votes.ballots == label) * weights).sum(1) for label in range(10)], axis=1)
    np.testing.assert_array_equal(prediction, totals.argmax(1))
    assert run.metrics.accuracy == pytest.approx(float((prediction == votes.labels).mean()))
    unanimous = (votes.ballots == votes.ballots[:, :1]).all(1) & (votes.ballots[:, 0] > 0)
    assert set(radius[unanimous]) == {2.0}  # 13 votes: the large group and one more leave 7 against 6


def test_groups_that_certify_themselves_count_for_more(tmp_path: Path) -> None:
    config = {
        "groups": {"count": 3},
        "dtype": "float64",
        "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
        "training": {"learning_rate": 1.0, "steps": 20, "batch_size": 32, "weight_decay": 0.05},
        "server": {"clip_norm": 50.0, "noise_std": 0.0},
        "aggregation": [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}],
        "threat": {"clients": 1, "rounds": [1], "poison": "update"},
        "rounds": 8,
    }
    plain = {"type": "group-vote"}
    refined = {"type": "group-vote", "name": "refined", "refine": True}
    run = trained(grouped(**config, certificates=[plain, refined]), tmp_path / "run")
    assert not run.metrics.refused
    one, other = (
        next(
            found.guarantee.radius for found in run.certified if found.certificate == name and found.test_set == "clean"
        )
        for name in ("group-vote", "refined")
    )
    assert (other >= one).all()
    assert (other > one).sum() > 20
    directions = {found.certificate: found.directions for found in run.certified}
    assert directions["refined"] == ("backward", "forward")


def test_groups_that_certify_themselves_in_single_precision_declare_it(tmp_path: Path) -> None:
    """Their certificates rest on steps that do not expand, which single precision does not prove."""
    config = {
        "groups": {"count": 3},
        "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
        "server": {"clip_norm": 50.0, "noise_std": 0.0, "cap_updates": True},
        "threat": {"clients": 1, "rounds": [1], "poison": "update"},
        "certificates": [{"type": "group-vote", "name": "no"}, {"type": "group-vote", "name": "yes", "refine": True}],
    }
    run = trained(grouped(**config), tmp_path / "run")
    assert not run.metrics.refused
    declared = {
        audit.certificate: [check.name for check in audit.checks if check.status == "declared"] for audit in run.audits
    }
    assert declared == {"no": [], "yes": ["local steps are non-expansive"]}
    directions = {found.certificate: found.directions for found in run.certified}
    assert directions["yes"] == ("backward", "forward")  # server.cap_updates put a cap into the aggregation


SUBSETS = {"by": "subsets", "count": 12, "size": 2}


def test_no_certified_prediction_of_overlapping_groups_changes_under_attack_in_every_round(tmp_path: Path) -> None:
    """Clients of several random subsets reach the votes of all of them: no confidence level is needed."""
    config = grouped(groups=SUBSETS, partition={"type": "iid", "clients": 18})
    run = trained(config, tmp_path / "clean")
    assert not run.metrics.refused
    prediction, radius = answers(run)
    groups = run.ledger.facts.groups
    assert groups is not None
    shared = [client for client in range(18) if sum(client in members for members in groups.members) > 1]
    assert len(shared) > 2
    reached = 0
    for number, clients in enumerate([shared[:1], shared[1:2], shared[:2], shared[-2:]]):
        attack = {"type": "turning", "clients": clients, "rounds": [1, 2, 3, 4]}
        attacked, _ = answers(trained(config | {"attack": attack}, tmp_path / str(number), turning=Turning))
        stands = radius >= len(clients)
        reached += int(stands.sum())
        assert (attacked == prediction)[stands].all()
    assert reached > 100


def test_overlapping_groups_do_not_certify_themselves(tmp_path: Path) -> None:
    config = grouped(groups=SUBSETS, certificates=[{"type": "group-vote", "refine": True}])
    refused = trained(config, tmp_path / "run").metrics.refused["group-vote"]
    assert "groups are disjoint: found random subsets" in refused
    assert "set refine = false" in refused


def test_what_crosses_groups_refuses_the_certificate(tmp_path: Path) -> None:
    class Judging(crfl_core.extend.Tracker):
        """Sees the models of all groups."""

        @hookimpl
        def crfl_accept_round(self) -> bool:
            return True

    run = trained(grouped(trackers=["judging"]), tmp_path / "run", judging=Judging)
    assert "nothing crosses groups: found a plugin judges rounds" in run.metrics.refused["group-vote"]


def test_other_certificates_say_that_they_are_about_one_model(tmp_path: Path) -> None:
    config = grouped(certificates=["group-vote", "pathwise-linear", "tail", "postprocess", "paper", "ensemble"])
    refused = trained(config, tmp_path / "run").metrics.refused
    for name in ("pathwise-linear", "tail", "postprocess", "paper"):
        assert "one global model: found 9 groups with a model each" in refused[name]
    assert "groups are disjoint" in refused["ensemble"]
    alone = trained(tiny(certificates=["group-vote"]), tmp_path / "alone").metrics.refused
    assert "groups of clients: found one model, needs a model for each group: set groups.count" in alone["group-vote"]


def test_new_inputs_are_elected_and_certified_the_same(tmp_path: Path) -> None:
    run = trained(grouped(), tmp_path / "run")
    prediction, radius = answers(run)
    x = crfl_core.load_config(run.path / "config.toml").config.dataset.load().test_x
    found = crfl_core.predict(run, x, scaled=True)
    np.testing.assert_array_equal(found.classes, prediction)
    np.testing.assert_array_equal(found.certified[0].guarantee.radius, radius)


def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    class Stopping(crfl_core.extend.Tracker):
        """Stops once, in the middle of the groups of a round."""

        @hookimpl
        def crfl_round_finished(self, record: crfl_core.extend.RoundRecord) -> None:
            if record.round == 3 and record.group == 4:
                raise KeyboardInterrupt

    config = grouped(aggregation=["foolsgold"], storage={"checkpoint_seconds": 0, "figures": []})
    whole = trained(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config, out=tmp_path / "cut", trackers=[Stopping()])
    again = crfl_core.resume(tmp_path / "cut")
    assert contents(again.path) == contents(whole.path)


def test_collective_accuracy_stands_beside_that_of_single_predictions(tmp_path: Path, crfl: Crfl) -> None:
    """It has a name of its own wherever it is shown, and is never below the other one."""
    run = trained(grouped(), tmp_path / "run")
    (curve,) = run.metrics.collective
    single = next(one for one in run.metrics.curves if one.test_set == "clean")
    known = dict(zip(single.radii, single.certified_accuracy, strict=True))
    assert curve.clients == tuple(number for number in single.radii if number >= 1)
    assert all(curve.exact)
    shares = [share for share in curve.collective_accuracy if share is not None]
    assert all(share >= known[number] for number, share in zip(curve.clients, shares, strict=True))
    assert any(share > known[number] for number, share in zip(curve.clients, shares, strict=True))
    sentence = f"stay right, whichever {curve.clients[-1]} of the 9 clients are malicious"
    assert sentence in crfl("show", run.path).stdout
    assert sentence in crfl("show", run.path, "--full").stdout
    assert "group-vote: collective certified accuracy at clients 1" in crfl("compare", run.path, "--json").stdout
    assert sentence in run._repr_html_()
    table = (run.path / "collective" / "group-vote.csv").read_text().splitlines()
    assert table[0] == "set,clients,of_clients,collective_certified_accuracy,exact"
    assert table[1] == f"clean,1,9,{shares[0]!r},True"
    assert (run.path / "certificates" / "group-vote.csv").read_text().count("\n") == 121  # samples are elsewhere
    run.plot("collective")


def test_a_what_if_question_about_radii_answers_collectively_as_well(tmp_path: Path) -> None:
    run = trained(grouped(), tmp_path / "run")
    answer = crfl_core.certify(run, overrides=["evaluation.radii=[2, 3]"])
    (curve,) = answer.collective
    known = dict(zip(run.metrics.collective[0].clients, run.metrics.collective[0].collective_accuracy, strict=True))
    assert curve.clients == (1, 2, 3)  # the assumed number, too
    assert curve.collective_accuracy == tuple(known[number] for number in curve.clients)


def test_no_set_of_clients_leaves_less_than_the_collective_accuracy(tmp_path: Path) -> None:
    run = trained(grouped(), tmp_path / "clean")
    (curve,) = run.metrics.collective
    for number, clients in enumerate([[0], [1, 5], [2, 3, 7]]):
        attack = {"type": "turning", "clients": clients, "rounds": [1, 2, 3, 4]}
        attacked = trained(grouped(attack=attack), tmp_path / str(number), turning=Turning)
        share = curve.collective_accuracy[curve.clients.index(len(clients))]
        assert share is not None
        assert attacked.metrics.accuracy >= share


def test_groups_that_certify_themselves_have_no_collective_accuracy(tmp_path: Path) -> None:
    """It ignores their own certificates, and might be below what holds of single predictions."""
    run = trained(grouped(certificates=["group-vote", REFINED]), tmp_path / "run")
    assert [curve.certificate for curve in run.metrics.collective] == ["group-vote"]
