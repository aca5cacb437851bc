"""The rule is the published one, keeps the contract of its kind, and keeps a backdoor out."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from crfl import run
from crfl_core.extend import ClientUpdates, ConfigError, OptionError
from crfl_core.testing import parametrize_with_checks, round_of

from crfl_zeno import Zeno

EXAMPLE = Path(__file__).parents[1] / "example.toml"


@parametrize_with_checks([Zeno(), Zeno(b=3, rho=0.1, samples=10)])
def test_it_keeps_the_contract_of_its_kind(check: Callable[[], object]) -> None:
    check()


def some_updates(clients: int = 8, size: int = 5) -> ClientUpdates:
    return round_of(torch.randn(clients, size, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))


def test_scores_are_those_of_the_paper() -> None:
    """Against NumPy, for the model of the kit: two classes with the logits 0 and w x."""
    updates = some_updates()
    root = updates.round.server.root
    assert root is not None
    x, y, w = root.x.numpy(), root.y.numpy(), updates.round.start.numpy()

    def loss(model: np.ndarray) -> float:
        slopes = x @ model
        return float(np.mean(np.logaddexp(0.0, slopes) - y * slopes))

    expected = [loss(w) - loss(w + u) - 0.02 * u @ u for u in updates.values.numpy()]
    assert Zeno(rho=0.02).scores(updates) == pytest.approx(expected, abs=1e-12)
    best = np.argsort(expected)[3:]
    found = Zeno(b=3, rho=0.02).aggregate(updates, {})
    assert found.update.numpy() == pytest.approx(updates.values.numpy()[best].mean(axis=0))
    assert set(np.flatnonzero(found.weights.numpy())) == set(best)
    assert found.notes["lowest_kept_score"] == pytest.approx(sorted(expected)[3])


def test_a_round_draws_its_own_samples() -> None:
    updates = some_updates()
    few, again, every = (Zeno(samples=samples).scores(updates) for samples in (5, 5, None))
    assert (few == again).all()
    assert (few != every).all()


def test_an_update_without_a_finite_loss_is_left_out() -> None:
    values = some_updates().values
    values[2] *= 1e200
    found = Zeno(b=1).aggregate(round_of(values), {})
    assert found.weights[2] == 0
    assert found.update.isfinite().all()


def test_options_that_do_not_fit_are_refused() -> None:
    updates = some_updates()
    with pytest.raises(OptionError, match="must be below the number of clients, found 8 for 8"):
        Zeno(b=8).check(updates.round.clients)
    with pytest.raises(OptionError, match=r"found 1000, but reserve\.root has 20"):
        Zeno(samples=1000).prepare(updates.round.server)


def test_a_server_without_samples_is_refused(tmp_path: Path) -> None:
    without = tmp_path / "without.toml"
    without.write_text(EXAMPLE.read_text(encoding="utf-8").replace("reserve = { root = 100 }", ""), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"reserve\.root: is missing: 'zeno', aggregation\.0, learns from samples"):
        run(without, out=tmp_path / "run")


def test_it_keeps_the_backdoor_of_the_example_out(tmp_path: Path) -> None:
    quick = ["storage.figures=[]"]
    defended = run(EXAMPLE, overrides=quick, out=tmp_path / "zeno").metrics
    plain = run(EXAMPLE, overrides=[*quick, "aggregation=['fedavg']"], out=tmp_path / "fedavg").metrics
    assert defended.backdoor is not None
    assert plain.backdoor is not None
    assert defended.accuracy > 0.7
    assert defended.backdoor.success_rate < 0.1
    assert plain.backdoor.success_rate > 0.8
