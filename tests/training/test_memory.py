"""Chains that must see all updates at once are refused before round 1 if the updates cannot fit into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.krum import Krum
from crfl_aggregators.mixing import NearestNeighbourMixing
from crfl_aggregators.norm_caps import UpdateCap
from crfl_aggregators.trimmed_mean import Median

from crfl_core import CrflError, resource_limits, run
from crfl_core.extend import ConfigError
from crfl_core.runs import resource_needs
from crfl_core.training.aggregation import check_updates_fit, copies_in_memory
from crfl_core.training.rounds import initial_progress, play_round
from crfl_core.training.session import Session
from tests.oracle import federation_of, tiny


def leave_memory(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    """Let memory have this number of bytes left."""
    monkeypatch.setattr(resource_limits, "free_memory", lambda: resource_limits.Headroom(left, "memory of this test"))
    monkeypatch.setattr(resource_needs, "refuse_too_large", lambda *_: None)  # which would count the data, too


def test_chains_that_add_up_need_no_memory_for_updates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leave_memory(monkeypatch, 1)
    run(tiny(aggregation=["update-cap", "fedavg"], attack="none", certificates=[]), out=tmp_path / "run")


@pytest.mark.parametrize("rule", ["median", "bulyan"])
def test_a_rule_that_sees_all_updates_is_refused_if_they_do_not_fit(
    rule: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leave_memory(monkeypatch, 20_000)
    refusal = rf"aggregation: {rule} must see the updates of all 8 participants at once"
    with pytest.raises(CrflError, match=refusal):
        run(tiny(aggregation=[rule]), out=tmp_path / "run")


def test_the_refusal_says_what_is_needed_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_memory(monkeypatch, 2 * 10**9)
    refusal = r"at least 4\.0 GB, and 2\.0 GB are left \(memory of this test\): lower training"
    steps: list[Any] = [Median().with_name("median")]
    with pytest.raises(ConfigError, match=refusal):
        check_updates_fit(steps, 10_000, 100_000, 4, crafts=False)
    check_updates_fit(steps, 5_000, 100_000, 4, crafts=False)


@pytest.mark.parametrize(
    ("steps", "crafts", "copies"),
    [
        ([Krum()], False, 1),
        ([UpdateCap(), FedAvg()], True, 3),
        ([UpdateCap(), Krum()], True, 3),
        ([NearestNeighbourMixing(), Krum()], False, 2),
    ],
)
def test_every_stage_but_a_cap_makes_a_copy_of_all_updates(steps: list[Any], crafts: bool, copies: int) -> None:
    assert copies_in_memory(steps, crafts=crafts) == copies


def test_a_round_reads_no_memory_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session.of(federation_of(tiny(aggregation=["median"])), Path("nowhere"))

    def forbidden() -> None:
        raise AssertionError("memory limits are read once, before round 1")

    with session.open_engine():
        monkeypatch.setattr(resource_limits, "free_memory", forbidden)
        play_round(session, initial_progress(session.federation))
