"""`crfl divergence`: Theorem 2 as numbers of a run, which agree with Corollary 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from crfl_experiments.commands.leftover import leftover

import crfl_core
from crfl_core import CrflError, RunResult
from tests.oracle import tiny

Crfl = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Small clip norms and much noise, so that every round takes a part of the divergence away."""
    server = {"clip_norm": 0.3, "noise_std": 0.2}
    attack = tiny()["attack"] | {"clients": [0, 3]}
    return crfl_core.run(tiny(server=server, attack=attack), out=tmp_path_factory.mktemp("divergence") / "run")


def test_every_round_after_the_attack_leaves_less(run: RunResult) -> None:
    found = leftover(run, [0.5])
    assert found.attacked == (2,)
    assert found.by_round[0] == 0
    assert found.by_round[1] > found.by_round[2] > found.by_round[3] == found.final > 0


@pytest.mark.parametrize("delta", [1e-3, 0.02, 0.1, 0.5])
def test_a_sample_tolerates_what_is_left_where_its_radius_is_at_least_delta(run: RunResult, delta: float) -> None:
    (clean,) = [one for one in run.certified if one.test_set == "clean"]
    radii = np.nan_to_num(clean.guarantee.radius, nan=-1.0)
    assert leftover(run, [delta]).covered("clean") == pytest.approx((radii >= delta).mean())


def test_attackers_may_differ_and_what_was_measured_is_the_default(run: RunResult) -> None:
    assert leftover(run, [0.1, 0.5]).final < leftover(run, [0.5]).final
    measured = leftover(run)
    rows = run.ledger.clients.of_round(2)
    assert measured.deltas == tuple(rows.delta[np.isin(rows.client, [0, 3])])
    with pytest.raises(CrflError, match="give one, or one for each of the 2 attackers, found 3"):
        leftover(run, [0.1, 0.1, 0.1])


def test_the_command_says_it_to_people_and_programs(run: RunResult, crfl: Crfl) -> None:
    shown = crfl("divergence", str(run.path), "--delta", "0.02").stdout
    assert "attacked, samples moved by 0.02" in shown
    assert "of 60 samples tolerate the" in shown
    assert "reproduction, not a proof" in shown
    told = json.loads(crfl("divergence", str(run.path), "--delta", "0.02", "--json").stdout)
    assert told["by_round"] == pytest.approx(leftover(run, [0.02]).by_round)
    assert set(told["covered"]) == {"clean", "backdoored"}


def test_a_run_without_the_papers_certificate_or_an_attack_says_so(tmp_path: Path) -> None:
    sound = crfl_core.run(tiny(certificates=[]), out=tmp_path / "sound")
    with pytest.raises(CrflError, match="has no certificate 'paper'"):
        leftover(sound)
    clean = crfl_core.run(tiny(attack="none", threat={"clients": 1, "rounds": [2]}), out=tmp_path / "clean")
    with pytest.raises(CrflError, match="say how far with --delta"):
        leftover(clean)
    assert leftover(clean, [0.1]).final > 0
