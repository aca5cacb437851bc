"""What an audit covers, and what a refusal does to the run, its levels and the other certificates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from crfl_certificates.pathwise_linear import PathwiseLinear

import crfl_core
from crfl_core.certification import certifier as certification
from crfl_core.records.threat import ThreatSettings
from tests.certificates.audited import LABELS, SOUND, attacked_world, audits, refused, small
from tests.certificates.worlds import PLUGINS, federation_of, play


def test_a_run_as_the_certificates_like_it_holds_every_check() -> None:
    capped = small(aggregation=[{"type": "update-cap"}, {"type": "fedavg"}], seeds={"votes": "secret"})
    attacked, clean = audits(attacked_world(capped)), audits(play(federation_of(capped | {"attack": "none"})))
    for found in (attacked, clean):
        assert not refused(found)
        assert not any(audit.refusals for audit in found.values())
    assert {check.status for name in SOUND for check in clean[name].checks} == {"held"}
    checks = [check for name in SOUND for check in attacked[name].checks]
    assert {check.status for check in checks if check.direction != "forward"} == {"held"}


def test_a_map_without_a_constant_refuses_the_feature_level_alone() -> None:
    found = audits(attacked_world(small(model={"type": "softmax", "features": {"type": "unit-sphere"}})))
    assert not refused(found)
    for name in SOUND | {"paper"}:
        assert set(found[name].refusals) == {f"{found[name].certificate} (feature level)"}
        assert not found[name].refusal_at("sample")


def test_a_level_that_is_not_asked_for_is_not_audited() -> None:
    world = attacked_world(small(model={"type": "softmax", "features": "unit-sphere"}))
    whole, clients = (
        certification.audit_certificate(PathwiseLinear(levels=levels), world.ledger, world.threat())
        for levels in (None, ("client",))
    )
    assert "feature maps are Lipschitz" in {check.name for check in whole.checks if check.status == "failed"}
    assert {check.level for check in clients.checks} <= {None, "client"}
    assert "failed" not in {check.status for check in clients.checks if check.direction is None}
    assert clients.directions_at("client") == whole.directions_at("client")


def test_an_attack_beyond_the_threat_makes_a_what_if() -> None:
    """More attackers, another round, more poison: the numbers stand, and say that they do not cover this run."""
    world = attacked_world(small(attack=LABELS | {"clients": [0, 1], "scale": 3.0}))
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"clients": [0]}, "clients [1] attacked and are not among the assumed ones"),
        ({"clients": 1}, "2 clients attacked, 1 assumed"),
        ({"rounds": [1]}, "rounds [2] were attacked and are not among the assumed ones"),
        ({"scale": 2.0}, "scale 3 is above the assumed 2"),
        ({"poison_ratio": 0.1}, "poison_ratio 0.5 is above the assumed 0.1"),
        ({"poison": "features"}, "poison 'labels' is not covered by 'features'"),
    )
    for change, reason in changes:
        assert world.uncovered(ThreatSettings(**change)) == (reason,)


MANY = [{"type": "paper"}, {"type": "pathwise-linear"}, {"type": "tail", "continuations": 8, "selection": 4}]


def test_a_refused_certificate_leaves_the_run_and_the_others_alone(
    tmp_path: Path, crfl: Callable[..., CompletedProcess[str]]
) -> None:
    """The reason is in the audit, in the metrics and on the terminal; the refused one has no file of numbers."""
    config = small(
        partition={"type": "iid", "clients": 6},
        aggregation=[{"type": "rfa"}],
        votes={"models": 32},
        certificates=[*MANY, {"type": "postprocess", "continuations": 8, "selection": 4}],
    )
    result = crfl_core.run(config, out=tmp_path / "run", plugins=PLUGINS)
    assert {file.name for file in (result.path / "certificates").iterdir()} == {"paper.csv", "postprocess.csv"}
    assert set(result.metrics.refused) == {"pathwise-linear", "tail"}
    table = json.loads((result.path / "audit.json").read_text())["certificates"]
    assert [(entry["certificate"], entry["sound"]) for entry in table] == [
        ("paper", False),
        ("pathwise-linear", True),
        ("tail", True),
        ("postprocess", True),
    ]
    assert table[1]["refused"]["pathwise-linear"] == result.metrics.refused["pathwise-linear"]
    for entry in table:
        for check in entry["checks"]:
            assert {"name", "status", "measured", "required", "remedy"} <= set(check)
    paper = next(one for one in result.certified if one.certificate == "paper")
    assert any("fixed aggregation weights" in condition for condition in paper.conditional)
    brief = " ".join(crfl("show", result.path).stdout.split())
    assert "refused: pathwise-linear: aggregation weights are fixed: found round 1" in brief
    shown = " ".join(crfl("show", "--full", result.path).stdout.split())
    assert "certificate pathwise-linear refused: aggregation weights are fixed: found round 1" in shown
    for status in ("held", "failed"):
        assert status in shown
