"""One model in several threads: each gets the numbers that it would get alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch
from crfl_models.networks import Cnn, Mlp
from crfl_models.softmax import Softmax
from torch import Tensor, nn

from crfl_core.extend import Model, ModuleModel, OptionError
from tests.models.test_models import FACTS, gaussian, some_data

THREADS, CALLS = 8, 6
MODELS: list[Model] = [Softmax(), Mlp(hidden=[8, 5]), Cnn(channels=[3])]

every_model = pytest.mark.parametrize("model", MODELS, ids=[type(model).__name__ for model in MODELS])


@pytest.fixture(autouse=True)
def threads_take_turns_often() -> Iterator[None]:
    """A hundred times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)


def in_threads(task: Callable[[int], list[Tensor]]) -> list[list[Tensor]]:
    """What a task gives for 0, 1, 2, ..., each in a thread of its own, all started at once."""
    start = Barrier(THREADS)

    def together(number: int) -> list[Tensor]:
        start.wait()
        return task(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(together, range(THREADS)))


def same(found: list[list[Tensor]], expected: list[list[Tensor]]) -> bool:
    """To the last bit."""
    pairs = zip(found, expected, strict=True)
    return all(torch.equal(one, other) for ours, theirs in pairs for one, other in zip(ours, theirs, strict=True))


@every_model
def test_gradients_and_logits_are_those_of_the_threads_own_parameters(model: Model) -> None:
    bound = model.build(FACTS)
    x, y, weights = some_data(3, 4)

    def task(number: int) -> list[Tensor]:
        parameters = 0.1 * gaussian(CALLS, 2, 3, bound.layout.size, seed=number)
        return [
            answer
            for here in parameters
            for answer in (bound.gradient(here, x, y, weights), bound.logits(here[:, 0], x[0]))
        ]

    expected = [task(number) for number in range(THREADS)]
    assert same(in_threads(task), expected)


@every_model
def test_starts_depend_on_their_stream_alone(model: Model) -> None:
    bound = model.build(FACTS)

    def task(number: int) -> list[Tensor]:
        return [bound.initial_parameters(np.random.default_rng((number, call))) for call in range(CALLS)]

    expected, before = [task(number) for number in range(THREADS)], torch.random.get_rng_state()
    assert same(in_threads(task), expected)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_models_can_be_built_in_threads() -> None:
    def task(number: int) -> list[Tensor]:
        return [Mlp(hidden=[8]).build(FACTS).initial_parameters(np.random.default_rng(number)) for _ in range(CALLS)]

    expected = [task(number) for number in range(THREADS)]
    assert same(in_threads(task), expected)


def test_modules_that_share_layers_are_refused() -> None:
    """A layer of two modules would hold the parameters of whichever thread called last."""
    layer = nn.Linear(36, 4)
    with pytest.raises(OptionError, match=r"two modules share parameters: make new layers"):
        ModuleModel(lambda: nn.Sequential(layer, nn.Linear(4, 4)))
