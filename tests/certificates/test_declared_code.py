"""What plugins and engines say about themselves and nothing checks: the audit names who declares it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crfl_aggregators.krum import Krum
from crfl_certificates.pathwise_linear import PathwiseLinear
from crfl_engines.local import Local
from crfl_models.feature_maps.rescaling import BoundUnitBall, UnitBall
from torch import Tensor

import crfl_core
from crfl_core import Threat
from crfl_core.certification import assumption_checks
from crfl_core.errors import StoreError
from crfl_core.extend import BoundMap, Check, LocalUpdates, TrainingTask
from crfl_core.plugin_api import own_packages
from crfl_core.plugin_api.base import is_built_in, name_with_distribution
from crfl_core.records.ledger import RunFacts
from crfl_core.runs.run_directory import RunDirectory
from tests.certificates.ledgers import synthetic_ledger
from tests.oracle import federation_of, tiny

THREAT = Threat(clients=1, rounds=(1,))


def facts_of(plugins: dict[str, Any], **changes: Any) -> RunFacts:
    return federation_of(tiny(**changes), plugins).facts


def declared(checks: tuple[Check, ...]) -> dict[str, str]:
    return {check.name: check.measured for check in checks if check.status == "declared"}


class Negating(Local):
    """Answers every task with the opposite of what the clients trained."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        for part in super().train(task):
            part.updates.neg_()
            yield part


class Steep(BoundUnitBall):
    """Stretches by more than the constant that it states."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(1000.0 * x)


class SteepMap(UnitBall):
    def bind(self, inputs: int) -> BoundMap:
        return Steep(inputs, self.radius)


class OwnKrum(Krum):
    """A rule of this process."""


class OwnMargins(PathwiseLinear):
    """A certificate of this process."""


@pytest.mark.parametrize(
    "certificate", ["pathwise-linear", "pathwise-smoothed", "tail", "postprocess", "paper", "group-vote", "ensemble"]
)
def test_every_certificate_declares_an_engine_that_is_more_than_this_process(certificate: str, tmp_path: Path) -> None:
    groups = {"groups": {"by": "subsets", "count": 4, "size": 2}} if certificate in ("group-vote", "ensemble") else {}
    small = {"type": certificate} | (
        {"continuations": 4, "selection": 2} if certificate in ("tail", "postprocess") else {}
    )
    config = tiny(certificates=[small], votes={"models": 8}, attack="none", threat={"rounds": [2]}, **groups)
    rows = []
    for number, engine in enumerate(["negating", "local"]):
        run = crfl_core.run(config | {"engine": engine}, out=tmp_path / str(number), plugins={"negating": Negating})
        found = declared(run.audits[0].checks)
        rows.append({name: what for name, what in found.items() if "engine" in name})
    assert list(rows[0]) == ["the engine and its workers are trusted"]
    assert rows[0]["the engine and its workers are trusted"].startswith(
        "'negating' of (this process): updates and cont"
    )
    assert rows[1] == {}


def test_runs_that_are_stacked_in_this_process_trust_no_other() -> None:
    assert facts_of({}, engine={"type": "stacked", "models": 1, "place": 0}).engine == ""
    assert facts_of({}, engine="ray").engine == "'ray' of crfl"


def test_the_constant_of_a_foreign_map_is_declared_by_it() -> None:
    model = {"type": "softmax", "features": [{"type": "unit-ball"}, {"type": "steep"}]}
    facts = facts_of({"steep": SteepMap}, model=model)
    assert facts.foreign_maps == ("'steep' of (this process)",)
    ledger = synthetic_ledger(foreign_maps=facts.foreign_maps)
    maps = assumption_checks.check_feature_maps(ledger)
    assert (maps.status, maps.level) == ("declared", "feature")
    assert maps.measured == "constant 1, declared by 'steep' of (this process)"
    poisoned = assumption_checks.check_input_norms(ledger, THREAT)
    assert poisoned.status == "declared"
    assert poisoned.measured.endswith("by 'steep' of (this process)")
    for safe in (THREAT.model_copy(update={"input_bound": 1.0}), THREAT.model_copy(update={"poison": "update"})):
        assert assumption_checks.check_input_norms(ledger, safe).status == "held"
    assert assumption_checks.check_feature_maps(synthetic_ledger()).status == "held"


def test_a_breakdown_names_the_rule_and_the_rules_inside_it() -> None:
    own = {"own-krum": OwnKrum}
    assert facts_of({}, aggregation=[{"type": "krum", "f": 1}]).rule == "'krum' of crfl"
    nested = facts_of(own, aggregation=[{"type": "per-layer", "rule": {"type": "own-krum", "f": 1}}]).rule
    assert nested == "'per-layer' of crfl with 'own-krum' of (this process)"
    ledger = synthetic_ledger(rule=nested)
    known = [record.model_copy(update={"breakdown": (0.0, 1.0)}) for record in ledger.rounds]
    object.__setattr__(ledger, "rounds", tuple(known))
    check = assumption_checks.check_breakdown(ledger, THREAT)
    assert check.status == "declared"
    assert check.measured == f"declared by {nested} for up to 1 attackers, honest clean world"


def test_an_own_certificate_is_declared_by_its_distribution_and_ours_is_not() -> None:
    ledger = synthetic_ledger()
    theirs = OwnMargins().with_name("margins", "crfl-margins 1.2.3")
    (check,) = assumption_checks.check_trusted_code(ledger, theirs)  # type: ignore[arg-type]  # a copy of itself
    assert (check.name, check.status) == ("the certificate is correct", "declared")
    assert check.measured == "declared by 'margins' of crfl-margins"
    assert assumption_checks.check_trusted_code(ledger, PathwiseLinear()) == ()


@pytest.mark.parametrize(("started", "resumed", "fits"), [("'a' of x", "'a' of y", True), ("", "'a' of x", False)])
def test_a_run_resumes_whichever_name_its_plugins_have_unless_they_were_ours(
    started: str, resumed: str, fits: bool, tmp_path: Path
) -> None:
    facts = facts_of({})
    old = facts.model_copy(update={"engine": started, "foreign_maps": (started,) * bool(started), "rule": "'b' of x"})
    directory = RunDirectory.create(tmp_path / "run", {"ledger.json": old.model_dump_json()}, {})
    new = {"engine": resumed, "foreign_maps": (resumed,) * bool(resumed), "rule": "'b' of y"}
    if fits:
        directory.check_facts(facts.model_copy(update=new))
    else:
        with pytest.raises(StoreError, match="engine, foreign_maps differ"):
            directory.check_facts(facts.model_copy(update=new))


def test_a_gpu_is_declared_because_its_sums_need_not_repeat() -> None:
    (check,) = assumption_checks.check_trusted_code(synthetic_ledger(device="cuda"), PathwiseLinear())
    assert (check.name, check.status) == ("the device repeats its bits", "declared")
    assert facts_of({}).device == "cpu"


def test_own_packages_are_those_of_the_distribution() -> None:
    assert {"crfl_core", "crfl_aggregators", "crfl_certificates", "crfl_engines", "crfl_models"} <= own_packages()
    assert not any(package.startswith("tests") for package in own_packages())
    assert is_built_in(Krum(f=1))
    assert not is_built_in(OwnKrum(f=1))
    assert name_with_distribution(OwnKrum(f=1)) == "'OwnKrum' of (this process)"
