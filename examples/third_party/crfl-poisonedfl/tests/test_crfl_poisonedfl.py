"""The attack is the published one, keeps the contract of its kind, and ruins a model without a defence."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from crfl import attack_effect, load_config, run
from crfl_core.extend import AttackerObservation, State, Streams
from crfl_core.testing import parametrize_with_checks, round_of

from crfl_poisonedfl import PoisonedFL, signs_of

EXAMPLE = Path(__file__).parents[1] / "example.toml"
SIZE = 40


@parametrize_with_checks([PoisonedFL(), PoisonedFL(window=1, factor=2.0)])
def test_it_keeps_the_contract_of_its_kind(check: Callable[[], object]) -> None:
    check()


def seen(change: np.ndarray, submitted: np.ndarray | None, before: float = 0.0) -> AttackerObservation:
    """Return a round that changed the model like this, in which two attackers submitted the same, or were honest.

    The model was `before` times this change away from the origin.
    """
    rows = np.zeros((2, SIZE)) if submitted is None else np.stack([submitted, submitted])
    start = torch.from_numpy(before * change)
    current = replace(round_of(torch.from_numpy(rows)).round, streams=Streams(0), start=start)  # as attacks see it
    return AttackerObservation(current, start + torch.from_numpy(change), torch.from_numpy(rows), submitted is not None)


def signs() -> np.ndarray:
    return signs_of(seen(np.zeros(SIZE), None).round).numpy()


def published(changes: list[np.ndarray], pushes: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Return the magnitude of the next push after every round, written once more from the paper."""
    for g, m in zip(changes, pushes, strict=True):
        v = np.abs(g - np.linalg.norm(g) / np.linalg.norm(m) * m)
        yield np.linalg.norm(g) * v / np.linalg.norm(v)


def test_the_magnitudes_are_those_of_the_paper() -> None:
    generator, state = np.random.default_rng(0), start_of(PoisonedFL(window=100))
    changes, pushes = generator.standard_normal((2, 6, SIZE))
    for change, push, expected in zip(changes, pushes, published(list(changes), list(pushes)), strict=True):
        state = PoisonedFL(window=100).learn(seen(change, push), state)
        assert state["magnitude"].numpy() == pytest.approx(expected, abs=1e-12)
    assert float(state["factor"]) == 8.0  # the window is not over


def start_of(attack: PoisonedFL) -> State:
    return attack.prepare(None, None)  # type: ignore[arg-type]  # it looks at neither


def factor_after(change: np.ndarray, rounds: int, attack: PoisonedFL) -> float:
    state = start_of(attack)
    for before in range(rounds):
        state = attack.learn(seen(change, signs(), before), state)
    return float(state["factor"])


def test_a_push_that_was_filtered_is_followed_by_a_weaker_one() -> None:
    attack, against = PoisonedFL(window=3), -signs()
    assert factor_after(against, 2, attack) == 8.0
    assert factor_after(against, 3, attack) == pytest.approx(0.7 * 8.0)
    assert factor_after(against, 6, attack) == pytest.approx(0.49 * 8.0)
    assert factor_after(against, 90, attack) == pytest.approx(0.7**7 * 8.0)  # the next one would be below 0.5
    assert factor_after(signs(), 90, attack) == 8.0


@pytest.mark.parametrize(("aligned", "factor"), [(27, 5.6), (28, 8.0)])
def test_the_test_is_a_sign_test_of_one_percent(aligned: int, factor: float) -> None:
    """P(X >= 27) = .0192 and P(X >= 28) = .0083 for X ~ Bin(40, 1/2), from tables."""
    change = np.where(np.arange(SIZE) < aligned, signs(), -signs())
    assert factor_after(change, 1, PoisonedFL(window=1)) == pytest.approx(factor)


def test_rounds_without_an_attack_do_not_count() -> None:
    attack = PoisonedFL(window=1)
    state = attack.learn(seen(-signs(), None), start_of(attack))
    assert float(state["factor"]) == 8.0
    assert state["magnitude"].numpy() == pytest.approx(np.ones(SIZE))  # all of the change is the others'


def test_it_ruins_the_model_of_the_example(tmp_path: Path) -> None:
    config = load_config(EXAMPLE, overrides=["storage.figures=[]", "evaluation.every=0"]).config
    clean = run(config.without_attack(), out=tmp_path / "clean")
    effect = attack_effect(run(config, out=tmp_path / "attacked"), clean)
    assert effect.accuracy < effect.clean_accuracy - 0.2
