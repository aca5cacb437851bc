"""The rule is the published one, keeps the contract of its kind, and moves no further than it claims."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from crfl import run
from crfl_core.extend import OptionError, RuleResult
from crfl_core.testing import parametrize_with_checks, round_of

from crfl_cge import Cge

EXAMPLE = Path(__file__).parents[1] / "example.toml"


def mean_of_shortest(values: torch.Tensor, f: int) -> RuleResult:
    return Cge(f=f).aggregate(round_of(values), {})


@parametrize_with_checks([Cge(), Cge(f=2)])
def test_it_keeps_the_contract_of_its_kind(check: Callable[[], object]) -> None:
    check()


def test_the_longest_updates_are_left_out() -> None:
    found = mean_of_shortest(torch.tensor([[1.0, 0.0], [0.0, 9.0], [0.0, 2.0], [-3.0, 0.0]]), f=1)
    assert found.weights.tolist() == pytest.approx([1 / 3, 0.0, 1 / 3, 1 / 3])
    assert found.update.tolist() == pytest.approx([-2 / 3, 2 / 3])


def test_more_eliminated_than_honest_is_refused() -> None:
    clients = round_of(torch.ones(4, 1)).round.clients
    Cge(f=1).check(clients)
    with pytest.raises(OptionError, match="2 f must be below the number of clients, found f = 2 for 4"):
        Cge(f=2).check(clients)


@pytest.mark.parametrize("attackers", [1, 2, 3])
def test_no_attack_moves_the_mean_further_than_the_breakdown_says(attackers: int) -> None:
    generator = torch.Generator().manual_seed(attackers)
    worst = 0.0
    for _ in range(300):
        honest = torch.randn(10, 3, generator=generator, dtype=torch.float64)
        honest /= honest.norm(dim=1, keepdim=True).clamp(min=1.0)
        attacked = honest.clone()
        direction = honest.mean(0) / honest.mean(0).norm()
        lengths = 1.2 * torch.rand(attackers, 1, generator=generator, dtype=torch.float64)
        attacked[:attackers] = -lengths * direction
        moved = mean_of_shortest(attacked, f=3).update - mean_of_shortest(honest, f=3).update
        worst = max(worst, float(moved.norm()))
    claimed = Cge(f=3).breakdown(round_of(honest).round.clients, mean_of_shortest(honest, 3), 1.0)
    assert claimed is not None
    assert 0.4 * claimed[attackers] < worst <= claimed[attackers]
    assert np.isinf(claimed[4:]).all()


def test_the_example_is_trained_and_certified(tmp_path: Path) -> None:
    result = run(EXAMPLE, overrides=["storage.figures=[]"], out=tmp_path / "run")
    assert result.metrics.accuracy > 0.5
    assert result.metrics.refused == {}
    (clean, backdoored) = result.certified
    assert (clean.certificate, clean.level) == (backdoored.certificate, backdoored.level) == ("postprocess", "client")
    assert (clean.guarantee.radius >= 1).mean() > 0.3
