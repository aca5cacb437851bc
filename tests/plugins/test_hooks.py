"""The hooks of a run: who is asked, in which order, and what happens if somebody fails."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_aggregators.median import Median
from torch import Tensor

import crfl_core
from crfl_core import CrflWarning, RunResult
from crfl_core.extend import (
    Aggregator,
    CertificateResult,
    ClientUpdates,
    ConfigError,
    Plugin,
    PluginError,
    PluginFailure,
    Registry,
    Round,
    RoundRecord,
    RuleResult,
    RunContext,
    RunError,
    State,
    Tracker,
    hookimpl,
)
from crfl_interface import hookspecs

Install = Callable[..., None]

SMALL = {
    "rounds": 3,
    "dataset": {"type": "digits", "test_samples": 40},
    "partition": {"type": "iid", "clients": 5},
    "training": {"learning_rate": 0.5, "steps": 2, "batch_size": 16},
    "server": {"clip_norm": 5.0, "noise_std": 0.0},
    "votes": {"models": 16, "noise_std": 0.05},
    "engine": {"type": "local", "threads": 1},
}


def run(path: Path, *trackers: type[Plugin], **settings: Any) -> RunResult:
    """A run whose config names these trackers, in this order."""
    named = {f"tracker-{number}": tracker for number, tracker in enumerate(trackers)}
    return crfl_core.run(SMALL | {"trackers": list(named)} | settings, out=path / "run", plugins=named)


HOOKS = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("crfl_")}


class TestEveryHook:
    """What must be true of each hook in hookspecs.py, including the next one that somebody adds."""

    @pytest.mark.parametrize("hook", HOOKS)
    def test_is_called_by_the_core(self, hook: str) -> None:
        assert hook in called_hooks()

    @pytest.mark.parametrize("hook", HOOKS)
    def test_has_a_test_here(self, hook: str) -> None:
        assert [name for name in globals() if name.startswith("test_") and hook in name]

    @pytest.mark.parametrize("hook", HOOKS)
    def test_is_documented_with_its_signature(self, hook: str) -> None:
        signature = str(inspect.signature(HOOKS[hook])).replace("'", "")
        text = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
        assert f"def {hook}{signature}" in text

    @pytest.mark.parametrize("hook", HOOKS)
    def test_says_what_it_is_for(self, hook: str) -> None:
        assert inspect.getdoc(HOOKS[hook])


@functools.cache
def called_hooks() -> set[str]:
    """Hooks that the core observes by name, and those that a method of `Hooks` asks, if the core calls the method."""
    sources = Path(crfl_core.__file__).parent.rglob("*.py")
    trees = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in sources if path.name != "hookspecs.py"}
    calls = [
        node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    methods = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
    observed = {
        str(call.args[0].value)
        for call in calls
        if ast.unparse(call.func).endswith(("hooks.observe", "self.observe")) and isinstance(call.args[0], ast.Constant)
    }
    asked = {
        node.attr
        for function in ast.walk(trees["hooks.py"])
        if isinstance(function, ast.FunctionDef) and function.name in methods
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self._manager.hook"
    }
    return observed | asked


def test_crfl_working_tells_how_far_feature_maps_are_unless_they_are_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    class Listening(Tracker):
        @hookimpl
        def crfl_working(self, phase: str, done: int, total: int) -> None:
            if phase == "feature maps":
                told.append((done, total))

        @hookimpl
        def crfl_run_started(self) -> None:
            told.append("started")

    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("computed", "cached"):
        model = {"type": "softmax", "features": {"type": "scattering", "angles": 2}}
        result = run(tmp_path / name, Listening, model=model)
    samples = sum(result.ledger.facts.samples)
    assert told == [(samples, samples), "started", "started"]


def test_crfl_working_tells_how_far_votes_and_continuations_are(tmp_path: Path) -> None:
    told: dict[str, list[tuple[int, int]]] = {}

    class Listening(Tracker):
        @hookimpl
        def crfl_working(self, phase: str, done: int, total: int) -> None:
            told.setdefault(phase, []).append((done, total))

    tail = "{type='tail', continuations=8, selection=4}"
    changes = ("rounds=3", "attack.rounds=[1]", "votes.models=16", f"certificates=['paper', {tail}]")
    crfl_core.run(overrides=changes, out=tmp_path / "run", trackers=[Listening()])
    assert list(told) == ["data", "feature maps", "votes", "certificates", "continuations", "figures"]
    assert (16, 16) in told["votes"]
    assert told["continuations"] == [(12, 24), (24, 24)]  # twelve at once, in the two rounds after the attacked one


def test_crfl_run_started_says_where_a_run_begins_and_goes_on(tmp_path: Path) -> None:
    contexts: list[RunContext] = []

    class Watch(Tracker):
        @hookimpl
        def crfl_run_started(self, run: RunContext) -> None:
            contexts.append(run)

        @hookimpl
        def crfl_round_started(self, current: Round) -> None:
            if current.number > 2 and len(contexts) == 1:
                raise KeyboardInterrupt

    settings = {"name": "watched", "storage": {"checkpoint_seconds": 0}}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Watch, **settings)
    run(tmp_path, Watch, **settings)
    assert [context.resumed_from for context in contexts] == [0, 2]
    for context in contexts:
        assert (context.name, context.path, context.rounds) == ("watched", tmp_path / "run", 3)
        assert context.data.clients == 5
        assert context.model.layout.size == 650


def test_crfl_round_started_shows_participants_and_the_broadcast_model(tmp_path: Path) -> None:
    rounds: list[Round] = []

    class Watch(Tracker):
        @hookimpl
        def crfl_round_started(self, run: RunContext, current: Round) -> None:
            assert run.rounds == current.total
            rounds.append(current)

    run(tmp_path, Watch)
    assert [current.number for current in rounds] == [1, 2, 3]
    assert all(current.clients.ids.tolist() == [0, 1, 2, 3, 4] for current in rounds)
    assert not rounds[0].start.any()  # softmax regression starts from zero
    assert rounds[1].start.any()


def test_crfl_round_finished_shows_the_record_of_the_ledger(tmp_path: Path) -> None:
    records: list[RoundRecord] = []

    class Watch(Tracker):
        @hookimpl
        def crfl_round_finished(self, record: RoundRecord) -> None:
            records.append(record)

    assert run(tmp_path, Watch).ledger.rounds == tuple(records)


def test_crfl_certified_shows_every_guarantee(tmp_path: Path) -> None:
    seen: list[CertificateResult] = []

    class Watch(Tracker):
        @hookimpl
        def crfl_certified(self, run: RunContext, certified: CertificateResult) -> None:
            seen.append(certified)

    noisy = {"clip_norm": 5.0, "noise_std": 0.05}  # without noise the certificate is refused
    twice = [{"type": "paper"}, {"type": "paper", "name": "again"}]
    result = run(tmp_path, Watch, server=noisy, certificates=twice)
    assert [(one.certificate, one.level, one.test_set) for one in seen] == [
        ("paper", "feature", "clean"),
        ("again", "feature", "clean"),
    ]
    for mine, stored in zip(seen, result.certified, strict=True):
        np.testing.assert_array_equal(mine.guarantee.radius, stored.guarantee.radius)


def test_crfl_run_finished_comes_when_everything_is_on_disk(tmp_path: Path) -> None:
    accuracies: list[float] = []

    class Watch(Tracker):
        @hookimpl
        def crfl_run_finished(self, run: RunContext, result: RunResult) -> None:
            assert json.loads((run.path / "status.json").read_text())["state"] == "finished"
            accuracies.append(result.metrics.accuracy)

    assert [run(tmp_path, Watch).metrics.accuracy] == accuracies


@pytest.mark.parametrize("reason", [KeyboardInterrupt("enough"), RunError("no more")])
def test_crfl_run_failed_shows_why_a_run_ends_early(tmp_path: Path, reason: BaseException) -> None:
    seen: list[BaseException] = []

    class Breaks(Median):
        @hookimpl
        def crfl_round_started(self, current: Round) -> None:
            if current.number == 2:
                raise reason

    class Watch(Tracker):
        @hookimpl
        def crfl_run_failed(self, error: BaseException) -> None:
            seen.append(error)

        @hookimpl
        def crfl_run_finished(self) -> None:
            raise AssertionError("this run does not finish")

    with pytest.raises(type(reason)):
        crfl_core.run(
            SMALL | {"aggregation": ["breaks"], "trackers": ["watch"]},
            out=tmp_path / "run",
            plugins={"breaks": Breaks, "watch": Watch},
        )
    assert seen == [reason]


def test_crfl_effective_weights_may_replace_the_reported_ones(tmp_path: Path) -> None:
    class Answers(Tracker):
        @hookimpl
        def crfl_effective_weights(self, updates: ClientUpdates, aggregate: RuleResult) -> Tensor | None:
            return aggregate.weights.double() * (1 + 1e-6) if updates.round.number == 2 else None

    result = run(tmp_path, Answers)
    assert [record.depends for record in result.ledger.rounds] == ["fixed", "all", "fixed"]
    assert [record.weights_from for record in result.ledger.rounds] == [
        "chain",
        "tracker 'tracker-0' of (this process)",
        "chain",
    ]
    samples = np.asarray(result.ledger.facts.samples)
    answered = result.ledger.clients.of_round(2)
    np.testing.assert_allclose(answered.weight, samples / samples.sum() * (1 + 1e-6), rtol=1e-7)
    np.testing.assert_array_equal(answered.weight_bound, answered.weight)


def test_crfl_effective_weights_takes_the_first_answer_in_the_order_of_the_config(tmp_path: Path) -> None:
    asked: list[str] = []

    class Passes(Tracker):
        @hookimpl
        def crfl_effective_weights(self) -> None:
            asked.append("passes")

    class Answers(Tracker):
        @hookimpl
        def crfl_effective_weights(self, aggregate: RuleResult) -> Tensor:
            asked.append("answers")
            return aggregate.weights

    class Late(Answers):
        pass

    result = run(tmp_path, Passes, Answers, Late, rounds=1)
    assert asked == ["passes", "answers"]
    assert result.ledger.rounds[0].weights_from == "tracker 'tracker-1' of (this process)"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda weights: weights * 1.01, "does not reconstruct the aggregate"),
        (lambda weights: weights * torch.nan, "does not reconstruct the aggregate"),
        (lambda weights: weights[1:], "must return a tensor of 5 weights"),
        (lambda weights: weights.tolist(), "must return a tensor of 5 weights"),
    ],
    ids=["slightly off", "not finite", "too few", "no tensor"],
)
def test_crfl_effective_weights_that_do_not_reconstruct_the_aggregate_stop_the_run(
    tmp_path: Path, answer: Callable[[Tensor], object], reason: str
) -> None:
    class Answers(Tracker):
        @hookimpl
        def crfl_effective_weights(self, aggregate: RuleResult) -> object:
            return answer(aggregate.weights)

    with pytest.raises(PluginFailure, match=f"tracker 'tracker-0' of .*: crfl_effective_weights {reason}"):
        run(tmp_path, Answers)


def test_crfl_accept_round_goes_on_from_the_broadcast_model_after_a_rejection(tmp_path: Path) -> None:
    starts: dict[int, Tensor] = {}

    class Rejects(Tracker):
        @hookimpl
        def crfl_accept_round(self, run: RunContext, current: Round, candidate: Tensor) -> bool:
            assert candidate.shape == (run.model.layout.size,)
            starts[current.number] = current.start
            return current.number != 2

    result = run(tmp_path, Rejects)
    assert [record.accepted for record in result.ledger.rounds] == [True, False, True]
    torch.testing.assert_close(starts[3], starts[2], rtol=0, atol=0)
    assert not result.ledger.clients.of_round(2).weight.any()
    assert result.ledger.clients.of_round(3).weight.sum() == pytest.approx(1)


def test_crfl_accept_round_needs_one_rejection_and_ignores_who_has_no_opinion(tmp_path: Path) -> None:
    class NoOpinion(Tracker):
        @hookimpl
        def crfl_accept_round(self) -> None:
            return None

    class Accepts(Tracker):
        @hookimpl
        def crfl_accept_round(self) -> bool:
            return True

    class RejectsTheLast(Tracker):
        @hookimpl
        def crfl_accept_round(self, current: Round) -> bool:
            return current.number < 3

    assert all(record.accepted for record in run(tmp_path / "one", NoOpinion).ledger.rounds)
    result = run(tmp_path / "other", Accepts, RejectsTheLast, NoOpinion)
    assert [record.accepted for record in result.ledger.rounds] == [True, True, False]


def test_crfl_accept_round_shows_a_step_of_the_aggregation_its_own_state(tmp_path: Path) -> None:
    seen: list[int] = []

    class Counting(Aggregator):
        def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
            weights = updates.values.new_full((len(updates.values),), 1 / len(updates.values))
            count = state.get("count", torch.zeros(1)) + 1
            return RuleResult(update=weights @ updates.values, weights=weights, state={"count": count})

        @hookimpl
        def crfl_accept_round(self, current: Round, state: State) -> bool:
            seen.append(int(state["count"]))
            return current.number != 2

    class Watch(Tracker):
        @hookimpl
        def crfl_accept_round(self, state: State) -> None:
            assert not state

    crfl_core.run(
        SMALL | {"aggregation": ["counting"], "trackers": ["watch"]},
        out=tmp_path / "run",
        plugins={"counting": Counting, "watch": Watch},
    )
    assert seen == [1, 2, 2]  # the rejected round leaves no trace in the state


def test_an_implementation_takes_any_of_the_arguments_by_name(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []

    class Watch(Tracker):
        @hookimpl
        def crfl_round_finished(self, record: RoundRecord, run: RunContext, comment: str = "mine") -> None:
            seen.append((record.round, f"{run.name} {comment}"))

        @hookimpl
        def crfl_run_finished(self) -> None:
            seen.append((0, "done"))

    run(tmp_path, Watch, name="any", rounds=1)
    assert seen == [(1, "any mine"), (0, "done")]


def test_a_plugin_of_any_kind_may_carry_hooks(tmp_path: Path) -> None:
    rounds: list[int] = []

    class Watching(Median):
        @hookimpl
        def crfl_round_finished(self, record: RoundRecord) -> None:
            rounds.append(record.round)

    crfl_core.run(SMALL | {"aggregation": ["watching"]}, out=tmp_path / "run", plugins={"watching": Watching})
    assert rounds == [1, 2, 3]


def test_trackers_of_the_caller_watch_without_becoming_part_of_the_config(tmp_path: Path) -> None:
    rounds: list[int] = []

    class Watch(Tracker):
        @hookimpl
        def crfl_round_finished(self, record: RoundRecord) -> None:
            rounds.append(record.round)

    result = crfl_core.run(SMALL, out=tmp_path / "run", trackers=[Watch()])
    assert rounds == [1, 2, 3]
    assert result.config.trackers == ()


RAISES = """
from crfl_core.extend import Tracker, hookimpl

class Raises(Tracker):
    @hookimpl
    def crfl_round_finished(self, record):
        raise ValueError("disk full")
"""


def test_an_installed_plugin_that_no_config_names_is_never_asked(install: Install, tmp_path: Path) -> None:
    install("noisy-tools", "2.0", {"crfl.trackers": {"raises": "Raises"}}, RAISES)
    crfl_core.run(SMALL, out=tmp_path / "run")


def test_an_exception_in_a_tracker_disables_it_and_the_run_goes_on(install: Install, tmp_path: Path) -> None:
    install("noisy-tools", "2.0", {"crfl.trackers": {"raises": "Raises"}}, RAISES)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watched = crfl_core.run(SMALL | {"trackers": ["raises"]}, out=tmp_path / "watched")
    assert [(one.category, str(one.message)) for one in caught] == [
        (
            CrflWarning,
            "tracker 'raises' of noisy-tools 2.0 failed in crfl_round_finished: ValueError: disk full; "
            "the run continues without it",
        )
    ]
    plain = crfl_core.run(SMALL, out=tmp_path / "plain")
    torch.testing.assert_close(watched.parameters, plain.parameters, rtol=0, atol=0)
    assert watched.metrics == plain.metrics


def test_an_exception_in_any_other_plugin_stops_the_run(install: Install, tmp_path: Path) -> None:
    source = "from crfl_datasets.partitioners.iid import Iid\n" + RAISES.replace("(Tracker)", "(Iid)")
    install("noisy-tools", "2.0", {"crfl.partitioners": {"raises": "Raises"}}, source)
    message = r"partitioner 'raises' of noisy-tools 2\.0 failed in crfl_round_finished: ValueError: disk full"
    with pytest.raises(PluginFailure, match=message):
        crfl_core.run(SMALL | {"partition": "raises"}, out=tmp_path / "run")


MISFITS = {
    "misspelt": (
        "crfl_round_finishd(self, record): pass",
        "there is no hook 'crfl_round_finishd' (PLACE): did you mean 'crfl_round_finished'",
    ),
    "unknown argument": (
        "crfl_round_finished(self, recrod): pass",
        "the hook crfl_round_finished has no argument 'recrod' (PLACE): it has run, record",
    ),
    "argument of plugin API 1": (
        "crfl_round_started(self, run, round): pass",
        "the hook crfl_round_started has no argument 'round' (PLACE): it is 'current' since plugin API 2",
    ),
    "wrapper": (
        "crfl_round_finished(self, record): yield",
        "crfl_round_finished (PLACE) is a hook wrapper, which a run has no use for: write a plain method",
    ),
}


@pytest.mark.parametrize(("method", "reason"), MISFITS.values(), ids=MISFITS)
def test_a_hook_that_does_not_fit_is_an_error_before_anything_is_written(
    install: Install, tmp_path: Path, method: str, reason: str
) -> None:
    source = RAISES.split("    @hookimpl")[0] + f"    @hookimpl\n    def {method}\n"
    install("sloppy-tools", "0.1", {"crfl.trackers": {"sloppy": "Raises"}}, source)
    module = tmp_path / "site-packages" / "sloppy_tools.py"
    place = f"{module}:{module.read_text().splitlines().index('    @hookimpl') + 1}"
    sentence = f"tracker 'sloppy' of sloppy-tools 0.1: {reason.replace('PLACE', place)}"
    with pytest.raises(ConfigError, match=re.escape(f"trackers.0.type = 'sloppy': {sentence}")):
        crfl_core.run(SMALL | {"trackers": ["sloppy"]}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (line,) = [line for line in Registry().listing() if line.name == "sloppy"]
    assert line.status == "failed"
    assert line.reason.startswith(sentence)


def test_a_hook_without_its_mark_is_an_error_because_nobody_would_call_it(tmp_path: Path) -> None:
    class Forgetful(Tracker):
        def crfl_round_finished(self, record: RoundRecord) -> None: ...

    with pytest.raises(
        ConfigError, match=r"nobody would call crfl_round_finished \(.*test_hooks\.py:\d+\): mark it with"
    ):
        run(tmp_path, Forgetful)


def test_an_instance_beside_the_config_is_checked_as_well(tmp_path: Path) -> None:
    class Sloppy(Tracker):
        @hookimpl
        def crfl_round_finishd(self) -> None: ...

    message = r"there is no hook 'crfl_round_finishd' \(.*test_hooks\.py:\d+\): did you mean"
    with pytest.raises(PluginError, match=message):
        crfl_core.run(SMALL, out=tmp_path / "run", trackers=[Sloppy()])
    with pytest.raises(ConfigError, match=message):
        crfl_core.run(SMALL | {"trackers": [Sloppy()]}, out=tmp_path / "run", plugins={"sloppy": Sloppy})
    assert not (tmp_path / "run").exists()
