"""A certificate of a third party stands on the same ground as ours: it needs nothing but `crfl_core.extend`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crfl_core
from crfl_core.extend import ConfigError
from tests.oracle import tiny

SOURCE = '''
"""Margins of linear models, by a third party."""
from typing import ClassVar

import numpy as np
from crfl_core.extend import (
    Certificate, Check, Guarantee, Ledger, Level, LogitVotes, DriftBound, Threat, VoteRequest, Votes, VoteSettings,
    bias_input, build_guarantee, margin_thresholds, pathwise_checks,
)


class Margins(Certificate):
    """What pathwise-linear certifies, written from the documentation."""

    levels_offered: ClassVar[tuple[Level, ...]] = ("feature", "sample", "client")
    statement: ClassVar = "pathwise"

    def stages_to_add(self, cap_updates):
        return ({"type": "update-cap", "bound": "known"},)

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:
        return VoteRequest("logits")

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        return pathwise_checks(ledger, threat, ledger.facts.rounds, observed=True)

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        logits, norms = votes.expect(LogitVotes).logits, np.hypot(votes.input_norms, bias_input(ledger))
        bound, unknown = DriftBound(ledger, threat, ledger.facts.rounds, observed=True), np.full(len(norms), np.nan)
        thresholds = margin_thresholds(ledger, logits, norms)
        return build_guarantee(bound, level, logits.argmax(1), thresholds, unknown, unknown)
'''


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of a package that was written elsewhere."""
    (tmp_path / "third_party_margins.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import third_party_margins  # type: ignore[import-not-found]

    yield third_party_margins.Margins
    sys.modules.pop("third_party_margins", None)
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)


CONFIG = tiny(
    dtype="float64",
    server={"clip_norm": 10.0, "noise_std": 0.01},
    partition={"type": "iid", "clients": 8},
    model={"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
    training={"learning_rate": 0.3, "steps": 1, "weight_decay": 0.1},
    attack="none",
    threat={"rounds": [2], "poison_ratio": 0.1},
)


def test_it_gets_the_same_numbers_readings_and_stages_as_ours(theirs: Any, tmp_path: Path) -> None:
    both = CONFIG | {"certificates": [{"type": "margins"}, {"type": "pathwise-linear"}]}
    run = crfl_core.run(both, out=tmp_path / "run", plugins={"margins": theirs})
    half = len(run.certified) // 2
    assert half == 3
    for mine, other in zip(run.certified[:half], run.certified[half:], strict=True):
        np.testing.assert_array_equal(mine.guarantee.radius, other.guarantee.radius)
        np.testing.assert_array_equal(mine.guarantee.prediction, other.guarantee.prediction)
        assert mine.directions == other.directions == ("backward", "forward")
    assert np.isfinite(run.ledger.clients.cap).all()
    *checks, declared = run.audits[0].checks
    assert tuple(checks) == run.audits[1].checks
    assert (declared.name, declared.status) == ("the certificate is correct", "declared")
    assert declared.measured == "declared by 'margins' of (this process)"


def test_it_says_by_itself_which_stages_it_wants(theirs: Any) -> None:
    """The core knows no stage by name; a stage that is there already is not put in twice."""
    from crfl_core.plugin_loading.registry import Registry

    def chain(**changes: Any) -> list[str]:
        mapping = CONFIG | {"certificates": [{"type": "margins"}]} | changes
        config = crfl_core.load_config(mapping, registry=Registry({"margins": theirs})).config
        return [step.configured_as for step in config.aggregation]

    server = CONFIG["server"]
    assert chain() == ["update-cap", "fedavg"]
    assert chain(aggregation=["update-cap", "fedavg"]) == ["update-cap", "fedavg"]
    assert chain(aggregation=["crfl:update-cap", "fedavg"]) == ["crfl:update-cap", "fedavg"]
    assert chain(certificates=[{"type": "margins"}, {"type": "pathwise-linear"}]) == ["update-cap", "fedavg"]
    assert chain(server=server | {"cap_updates": False}) == ["fedavg"]
    assert chain(certificates=["paper"]) == ["fedavg"]
    assert chain(certificates=["paper"], server=server | {"cap_updates": True}) == ["update-cap", "fedavg"]
    with pytest.raises(ConfigError, match=r"server\.cap_updates = true: no certificate names a stage"):
        chain(certificates=[], server=server | {"cap_updates": True})
    assert chain(certificates=[], aggregation=["norm-bound", "fedavg"], server=server | {"cap_updates": True})


def test_the_core_names_no_stage() -> None:
    """It gives advice, in remedies of checks; but what is put into a chain is not its decision."""
    root = Path(crfl_core.__file__ or "").parent
    for folder in ("config", "federation", "kinds", "api"):
        for path in (root / folder).glob("*.py"):
            assert "update-cap" not in path.read_text(), path
