"""Cells of a sweep are attacked alike unless a key says otherwise, and tables state the attack."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from crfl_experiments.comparison import compare
from crfl_experiments.sweeps import sweep
from crfl_experiments.sweeps.cells import define

from crfl_core.errors import CrflWarning
from tests.experiments.support import SMALL

Crfl = Callable[..., CompletedProcess[str]]
ATTACKED = {**SMALL, "attack": {"type": "sign-flip", "clients": [0, 1, 2], "rounds": {"first": 1}, "scale": 10.0}}
ALIKE = "attack: 3 attackers (clients 0-2), rounds 1-3, scale 10"
DIFFERENT = [{"type": "alie"}, {"type": "sign-flip", "clients": [5], "rounds": [2]}]


@pytest.mark.parametrize("key", ["attack.type", "attack"])
def test_another_attack_has_the_same_attackers_rounds_and_scale(key: str) -> None:
    cells = define(ATTACKED, parts={"grid": {key: ["sign-flip", "alie"]}}).cells()
    assert [str(cell.attack) for cell in cells] == 2 * [ALIKE.removeprefix("attack: ")]
    assert [cell.config.attack.configured_as for cell in cells if cell.config.attack] == ["sign-flip", "alie"]


def test_tables_of_sweeps_and_comparisons_state_the_attack(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sweep(ATTACKED, vary={"attack.type": ["sign-flip", "alie"]}, out=tmp_path / "sweep", workers=1)
    assert compare(tmp_path / "sweep").attacks == (ALIKE,)
    cells = sorted((tmp_path / "sweep" / "cells").iterdir())
    assert compare(*cells).attacks == (ALIKE,)


def test_attacks_that_differ_in_what_no_key_varies_are_warned_of(tmp_path: Path) -> None:
    said = (
        "attacks differ in what no key varies, and are not comparable: 3 attackers (clients 0-2) or 1 attacker "
        "(client 5); rounds 1-3 or round 2"
    )
    with pytest.warns(CrflWarning) as caught:
        sweep(ATTACKED, vary={"attack": DIFFERENT}, out=tmp_path / "sweep", workers=1)
    assert str(caught[0].message) == said
    both = "attack: 3 attackers (clients 0-2) or 1 attacker (client 5), rounds 1-3 or round 2, scale 10"
    assert compare(tmp_path / "sweep").attacks == (f"warning: {said}", both)


def test_what_is_varied_on_purpose_is_stated_without_a_warning(crfl: Crfl) -> None:
    options = ["--vary", "attack.scale=1,10", "--vary", "attack=none,alie", "--vary", "rounds=40,60", "--dry-run"]
    listed = crfl("sweep", *options)
    assert listed.returncode == 0
    assert "attack: 1 attacker (client 0), round 30, scale 1 or scale 10; or none\n" in listed.stdout
    assert "differ" not in listed.stdout
