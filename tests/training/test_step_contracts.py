"""What a step may look at follows from its base class, and the core does what certificates rest on."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crfl_core.extend import (
    Aggregator,
    CapStage,
    Clients,
    FixedStage,
    LinearAggregator,
    Mixing,
    PluginError,
    RoundFacts,
    Stage,
    hookimpl,
)
from crfl_core.plugin_api import hookspecs
from crfl_core.plugin_api.aggregator import AggregationStep
from crfl_core.training.aggregation_chain import apply_stage, run_chain
from tests.aggregators.support import gaussian, updates_of

STEPS: list[type[AggregationStep]] = [Stage, FixedStage, CapStage, Aggregator, LinearAggregator]
HOOKS = [name for name in vars(hookspecs) if name.startswith("crfl_")]


FALSE = [(base, claim) for base in STEPS for claim in ("fixed", "own", "all") if claim != base.depends]


@pytest.mark.parametrize(("base", "claim"), FALSE, ids=lambda value: getattr(value, "__name__", value))
def test_no_step_says_itself_what_it_depends_on(base: type[AggregationStep], claim: str) -> None:
    body: dict[str, Any] = {"__module__": __name__, "__qualname__": "Boast", "depends": claim}
    body["__annotations__"] = {"depends": ClassVar[str]}
    with pytest.raises(PluginError, match=r"Boast .* sets `depends`, which follows from the base class: derive from"):
        type("Boast", (base,), body)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("base", [FixedStage, CapStage, LinearAggregator], ids=lambda base: base.__name__)
def test_a_step_that_must_not_see_updates_cannot_watch_the_run(base: type[AggregationStep], hook: str) -> None:
    """Through a hook it would see what its methods are not shown."""

    def watch(self: Any) -> None: ...

    with pytest.raises(PluginError, match=f"Watching has the hook {hook} .*: put the hook into a tracker"):
        type("Watching", (base,), {"__module__": __name__, "__qualname__": "Watching", hook: hookimpl(watch)})


@pytest.mark.parametrize("base", [Stage, Aggregator], ids=lambda base: base.__name__)
def test_a_step_that_sees_everything_anyway_may_have_hooks(base: type[AggregationStep]) -> None:
    def watch(self: Any) -> None: ...

    made = cast("type[AggregationStep]", type("Watching", (base,), {"__module__": __name__, HOOKS[0]: hookimpl(watch)}))
    assert made.depends == "all"


class Given(CapStage):
    """Caps that are given, on residuals or on whole updates."""

    bounds: tuple[float, ...]

    def caps(self, clients: Clients) -> Tensor:
        return torch.tensor(self.bounds, dtype=torch.float64)


class GivenAtZero(Given):
    """The same around zero."""

    centre: ClassVar[Literal["decay", "zero"]] = "zero"


@settings(deadline=None, max_examples=150)
@given(
    data=st.data(),
    seed=st.integers(0, 999),
    scale=st.floats(1e-3, 1e6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    centred=st.booleans(),
)
def test_a_cap_projects_on_the_ball_around_what_weight_decay_takes_off(
    data: st.DataObject, seed: int, scale: float, dtype: torch.dtype, centred: bool
) -> None:
    """`v = -(1 - c) w + r min(1, cap / ||r||)` for `u = -(1 - c) w + r`; nothing within the ball is changed.

    An update beyond it is not taken away: it ends up on the sphere.
    """
    clients, size = 5, 7
    retention = np.asarray(data.draw(st.lists(st.floats(0.0, 1.0), min_size=clients, max_size=clients)))
    caps = np.asarray(data.draw(st.lists(st.floats(1e-3, 1e4), min_size=clients, max_size=clients)))
    values = torch.from_numpy(scale * gaussian(clients, size, seed)).to(dtype)
    start = torch.from_numpy(gaussian(1, size, seed + 1)[0]).to(dtype)
    updates = updates_of(values, start=start, retention=retention)
    kind = Given if centred else GivenAtZero
    staged = apply_stage(kind(bounds=tuple(caps)), updates, {})

    centres = -np.outer(1 - retention, start.double()) if centred else np.zeros((clients, size))
    before, after = (tensor.double().numpy() - centres for tensor in (values, staged.values))
    lengths = np.linalg.norm(before, axis=1)
    eps = float(torch.finfo(dtype).eps)
    rounding = 32 * eps * (np.linalg.norm(values.double(), axis=1) + np.linalg.norm(centres, axis=1))
    within = lengths <= caps * (1 - 64 * eps)
    assert torch.equal(staged.values[torch.from_numpy(within)], values[torch.from_numpy(within)])
    projected = before * np.minimum(1.0, caps / lengths)[:, None]
    assert (np.linalg.norm(after - projected, axis=1) <= rounding + 8 * eps * caps).all()
    assert (np.linalg.norm(after, axis=1) <= caps + rounding).all()
    assert (np.linalg.norm(after, axis=1)[~within] >= caps[~within] * (1 - 128 * eps) - rounding[~within]).all()


def test_a_cap_of_zero_leaves_what_weight_decay_takes_off() -> None:
    updates = updates_of(np.full((2, 3), 5.0), start=torch.ones(3).double(), retention=np.asarray([0.25, 1.0]))
    staged = apply_stage(Given(bounds=(0.0, 0.0)), updates, {})
    assert staged.values.tolist() == [[-0.75] * 3, [0.0] * 3]


class Halving(FixedStage):
    """Hands on half of every update, and a constant beside it."""

    def mixing(self, facts: RoundFacts) -> Mixing:
        clients = len(facts.clients)
        return Mixing(torch.full((clients,), 0.5, dtype=torch.float64), offset=torch.ones(facts.layout.size).double())


class Even(LinearAggregator):
    """The plain mean."""

    def weights(self, clients: Clients) -> Tensor:
        return torch.full((len(clients),), 1 / len(clients), dtype=torch.float64)


def test_steps_that_see_no_updates_are_told_nothing_but_facts_and_the_core_does_the_rest() -> None:
    values = gaussian(4, 5)
    result = run_chain([Given(bounds=(0.1, 0.2, 0.3, 99.0)), Halving(), Even()], updates_of(values), {})
    lengths = np.linalg.norm(values, axis=1)
    factors = np.minimum(1.0, np.asarray([0.1, 0.2, 0.3, 99.0]) / lengths)
    np.testing.assert_allclose(result.weights, factors / 8, rtol=1e-12)
    np.testing.assert_allclose(result.weight_bound, 1 / 8)
    np.testing.assert_allclose(result.update, (factors[:, None] * values).mean(0) / 2 + 1.0, rtol=1e-12)
    assert (result.cap.tolist(), result.depends, result.has_offset) == ([0.1, 0.2, 0.3, 99.0], "own", True)
