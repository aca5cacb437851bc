"""What a server optimiser does to a run: weights, notes, memory, resuming, continuations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crfl_core import resume, run
from crfl_core.errors import ConfigError, PluginError, PluginFailure
from crfl_core.extend import (
    FixedRate,
    OptimiserResult,
    Plugin,
    Round,
    RoundFacts,
    ServerOptimiser,
    State,
    Tracker,
    hookimpl,
)
from crfl_core.training import rounds
from crfl_core.training.session import Session
from tests.oracle import Veto, contents, federation_of, played, tiny


def with_optimiser(optimiser: Any, **changes: Any) -> dict[str, Any]:
    server = {"clip_norm": 4.0, "noise_std": 0.02, "optimiser": optimiser}
    return tiny(**({"server": server, "attack": "none"} | changes))


@pytest.mark.parametrize("aggregation", [["fedavg"], [{"type": "krum", "f": 1}], ["update-cap", "fedavg"]])
def test_a_rate_of_1_changes_no_bit(aggregation: list[Any]) -> None:
    plain = played(federation_of(with_optimiser("none", aggregation=aggregation)))
    rated = played(federation_of(with_optimiser("rate", aggregation=aggregation)))
    assert torch.equal(plain[-1].parameters, rated[-1].parameters)
    assert [one.record.weights_from for one in plain] == [one.record.weights_from for one in rated]


def test_a_rate_is_in_every_weight_and_in_nothing_else_of_the_first_round() -> None:
    plain = played(federation_of(with_optimiser("none")))[0]
    rated = played(federation_of(with_optimiser({"type": "rate", "learning_rate": 0.25})))[0]
    np.testing.assert_array_equal(rated.clients.weight, 0.25 * plain.clients.weight)
    np.testing.assert_array_equal(rated.clients.weight_bound, 0.25 * plain.clients.weight_bound)
    np.testing.assert_array_equal(rated.clients.submitted_norm, plain.clients.submitted_norm)
    assert rated.record.server_rate == 0.25
    assert (rated.record.depends, rated.record.carries_state, rated.record.has_offset) == ("fixed", False, False)


def test_the_breakdown_of_a_rule_is_multiplied_by_the_rate() -> None:
    krum: dict[str, Any] = {"aggregation": [{"type": "krum", "f": 2}]}
    plain = played(federation_of(with_optimiser("none", **krum)))[0].record.breakdown
    rated = played(federation_of(with_optimiser({"type": "rate", "learning_rate": 0.5}, **krum)))[0].record.breakdown
    assert plain is not None
    assert rated == pytest.approx([0.5 * drift for drift in plain])


def test_nothing_is_known_of_the_breakdown_behind_an_optimiser_that_looks() -> None:
    record = played(federation_of(with_optimiser("momentum", aggregation=[{"type": "krum", "f": 2}])))[0].record
    assert (record.breakdown, record.server_rate, record.depends) == (None, None, "all")


def test_attackers_that_replace_the_model_know_the_rate() -> None:
    """They multiply by 1 / p, and p is their weight times the rate."""
    attack = {"type": "model-replacement", "clients": [0], "rounds": [2], "scale": "replace"}

    def scale(rate: float) -> float:
        config = with_optimiser({"type": "rate", "learning_rate": rate}, attack=attack)
        return float(played(federation_of(config))[1].clients.scale[0])

    assert scale(0.5) == pytest.approx(2 * scale(1.0), rel=1e-4)


def test_weights_over_time_of_momentum_rebuild_the_model() -> None:
    """`sum over rounds s <= t of eta beta^(t-s) aggregate_s` is what round t moves, and the ledger notes beta."""
    beta, eta = 0.7, 0.5
    optimiser = {"type": "momentum", "beta": beta, "learning_rate": eta}
    lines = played(federation_of(with_optimiser(optimiser, dtype="float64", rounds=5)))
    moves = [one.outcome.results[0].update for one in lines]
    for one, before, move in zip(lines, [torch.zeros_like(moves[0]), *moves], moves, strict=False):
        notes = one.record.notes
        fresh = move - beta * before
        assert notes["optimiser.this_round"] == pytest.approx(float(fresh.norm()), rel=1e-9)
        assert notes["optimiser.earlier_rounds"] == pytest.approx(beta * float(before.norm()), abs=1e-12)
        assert one.clients.weight.sum() == pytest.approx(eta)
    kept = [one.record.notes["optimiser.next_round"] for one in lines]
    assert kept == pytest.approx([beta] * 4 + [0.0])


def test_weights_of_a_rate_per_parameter_are_those_of_the_fastest_one() -> None:
    class Faster(ServerOptimiser):
        """Moves the last parameter twice as far."""

        def step(self, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:
            scale = torch.ones_like(aggregate)
            scale[-1] = 2.0
            return OptimiserResult(scale)

    first = played(federation_of(with_optimiser("faster"), {"faster": Faster}))[0]
    assert first.clients.weight.sum() == pytest.approx(2.0)
    assert (first.record.has_offset, first.record.carries_state) == (False, False)


@pytest.mark.parametrize("optimiser", ["momentum", "adam", "yogi", "adagrad"])
def test_a_resumed_run_equals_one_that_never_stopped(optimiser: str, tmp_path: Path) -> None:
    class Stop(Tracker):
        """Ends the process after round 3, once."""

        @hookimpl
        def crfl_round_finished(self, record: Any) -> None:
            if record.round == 3 and not stopped:
                stopped.append(record.round)
                raise KeyboardInterrupt

    stopped = [0]
    config = with_optimiser(optimiser, rounds=5, trackers=["stop"], storage={"figures": [], "checkpoint_seconds": 0})
    whole = run(config, plugins={"stop": Stop}, out=tmp_path / "whole")
    stopped.clear()
    with pytest.raises(KeyboardInterrupt):
        run(config, plugins={"stop": Stop}, out=tmp_path / "halves")
    halves = resume(tmp_path / "halves", plugins={"stop": Stop})
    assert contents(whole.path) == contents(halves.path)


def test_a_rejected_round_leaves_the_memory_as_it_was() -> None:
    lines = played(federation_of(with_optimiser("momentum", trackers=["veto"]), {"veto": Veto}))
    first, second, third = (one.states["optimiser"]["velocity"] for one in lines[:3])
    assert torch.equal(first, second)
    assert not torch.equal(second, third)


def test_continuations_start_from_the_memory_of_the_run_and_each_keeps_its_own(tmp_path: Path) -> None:
    federation = federation_of(with_optimiser("adam", dtype="float64", rounds=4))
    session = Session.of(federation, tmp_path)
    with session.open_engine():
        (before,), *_ = rounds.play_rounds(session, rounds.initial_progress(federation))
        kept = before.after
        both = rounds.Progress(1, kept.models.repeat(2, 1), kept.states * 2, range(1, 3))
        (second,), *_, (last,) = rounds.play_rounds(session, (both,))
        (alone,), *_ = rounds.play_rounds(session, (kept,))
    # Round 2 starts from the same model and memory in all three; only then comes noise of their own.
    for model in second.clipped:
        torch.testing.assert_close(model, alone.clipped[0], rtol=1e-9, atol=1e-12)
    one, other = (state["optimiser"]["first"] for state in last.after.states)
    assert not torch.equal(one, other)


class Wrong(ServerOptimiser):
    """Answers with something else in round 2."""

    what: str

    def step(self, aggregate: Tensor, current: Round, state: State) -> Any:
        if current.number < 2:
            return OptimiserResult(1.0)
        answers: dict[str, Any] = {
            "nothing": lambda: None,
            "shape": lambda: OptimiserResult(torch.ones(3)),
            "offset": lambda: OptimiserResult(1.0, torch.zeros(1, len(aggregate))),
            "precision": lambda: OptimiserResult(1.0, aggregate.double()),
            "infinite": lambda: OptimiserResult(float("inf")),
            "words": lambda: OptimiserResult("fast"),  # type: ignore[arg-type]
            "state": lambda: OptimiserResult(1.0, state={"round": 2}),  # type: ignore[dict-item]
            "changed": lambda: OptimiserResult(1.0, aggregate.mul_(2.0)),
            "raises": lambda: OptimiserResult(1.0 / 0.0),
        }
        return answers[self.what]()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing", "must return an OptimiserResult, found NoneType"),
        ("shape", r"returned scale of shape \(3,\) for an aggregate of \(650,\)"),
        ("offset", r"returned offset of shape \(1, 650\)"),
        ("precision", "returned offset in torch.float64 for an aggregate in torch.float32"),
        ("infinite", "returned a scale that is not finite"),
        ("words", "returned scale of str"),
        ("state", r"state\['round'\] must be a tensor, found int"),
        ("changed", "changed what it was given: work on a copy"),
        ("raises", "failed in step: ZeroDivisionError"),
    ],
)
def test_a_wrong_answer_is_named_in_its_round(what: str, message: str) -> None:
    federation = federation_of(with_optimiser({"type": "wrong", "what": what}), {"wrong": Wrong})
    with pytest.raises(PluginFailure, match=message) as failure:
        played(federation)
    assert "server.optimiser 'wrong'" in str(failure.value)


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf"), "half"])
def test_a_rate_must_be_a_number_of_at_least_0(rate: Any) -> None:
    class Odd(FixedRate):
        """A rate that is none."""

        def rate(self, facts: RoundFacts) -> float:
            return rate  # type: ignore[no-any-return]

    with pytest.raises(PluginFailure, match=r"rate\(\) .* must return a finite number of at least 0, found"):
        played(federation_of(with_optimiser("odd"), {"odd": Odd}))


def test_a_fixed_rate_cannot_watch_the_run_nor_say_what_it_depends_on() -> None:
    with pytest.raises(PluginError, match="cannot watch the run"):

        class Watching(FixedRate):
            """Sees the model through a hook."""

            def rate(self, facts: RoundFacts) -> float:
                return 0.5

            @hookimpl
            def crfl_round_started(self, current: Round) -> None:
                """Would see the model."""

    with pytest.raises(PluginError, match="sets `depends`, which follows from the base class: derive from FixedRate"):

        class Claiming(ServerOptimiser):
            """Says of itself that it is harmless."""

            depends = "fixed"

            def step(self, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:
                return OptimiserResult(float(aggregate.norm()))

    with pytest.raises(PluginError, match=r"replaces FixedRate\.step, which is final: implement rate instead"):

        class Both(FixedRate):
            """Names a rate and takes another."""

            def rate(self, facts: RoundFacts) -> float:
                return 0.5

            def step(self, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:  # type: ignore[misc]
                return OptimiserResult(float(aggregate.norm()))


@pytest.mark.parametrize(
    ("optimiser", "message"),
    [
        ({"type": "rate", "learning_rate": 0.0}, "server.optimiser.learning_rate"),
        ({"type": "momentum", "beta": 1.0}, "server.optimiser.beta"),
        ({"type": "adam", "gamma": 1.0}, "server.optimiser.gamma"),
        ("adamw", "did you mean 'adam'"),
    ],
)
def test_options_are_checked_where_they_are_written(optimiser: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        federation_of(with_optimiser(optimiser))


def test_workers_that_only_train_need_no_optimiser() -> None:
    class Mine(FixedRate):
        """A class that no other process knows."""

        def rate(self, facts: RoundFacts) -> float:
            return 0.5

    plugins: dict[str, type[Plugin]] = {"mine": Mine}
    assert "mine" not in federation_of(with_optimiser("mine"), plugins).specification
