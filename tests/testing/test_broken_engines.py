"""Engines and trackers that are broken in one way each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from crfl_engines.local import Local

from crfl_core.extend import (
    Engine,
    LocalUpdates,
    Plugin,
    Round,
    RoundRecord,
    RunContext,
    Tracker,
    TrainingTask,
    hookimpl,
)
from tests.testing.support import assert_fails, checks_of


class Lazy(Local):
    """Trains only the first client."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        assert self._job is not None
        yield self._job.train(task, slice(0, 1))


class Single(Local):
    """Trains from the first model only."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        yield from super().train(replace(task, starts=task.starts[:1]))


class Tampering(Local):
    """Improves the updates."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        for trained in super().train(task):
            yield replace(trained, updates=1.01 * trained.updates)


class Forgetful(Local):
    """Loses on the way what attackers remember."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        yield from super().train(replace(task, attack_state=None))


class Impatient(Local):
    """Cannot be closed before its work is done."""

    def close(self) -> None:
        super().close()
        raise ConnectionError("still working")


class Fragile(Tracker):
    """Stumbles over rounds without figures."""

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        assert record.loss is not None, "no loss"


class Pessimistic(Tracker):
    """Stumbles when a run fails."""

    @hookimpl
    def crfl_run_failed(self, run: RunContext, error: BaseException) -> None:
        raise KeyError("summary")


class Beginner(Tracker):
    """Does not expect a run that goes on."""

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        (run.path / "mine").mkdir()


class Helpful(Tracker):
    """Improves the model on the way."""

    @hookimpl
    def crfl_round_started(self, current: Round) -> None:
        current.start.mul_(0.5).add_(0.01)


class Sneaky(Tracker):
    """Fades the training data through NumPy, which no tensor notices."""

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        run.features.numpy()[:] *= 0.5


BROKEN: dict[str, list[tuple[Plugin, str]]] = {
    "every_client_is_trained_once": [(Lazy(), "client 1 in round 1"), (Single(), "from all 3 models, found 1")],
    "training_is_that_of_the_job": [
        (Tampering(), "return the answer as it is"),
        (Forgetful(), "hand task and part on as they are"),
    ],
    "closing_early_is_fine": [(Impatient(), "ConnectionError")],
    "a_run_is_watched_without_trouble": [(Fragile(), "failed in crfl_round_finished: AssertionError: no loss")],
    "survives_a_failed_run": [(Pessimistic(), "failed in crfl_run_failed: KeyError: 'summary'")],
    "survives_a_resumed_run": [(Beginner(), "failed in crfl_run_started: FileExistsError")],
    "results_stay_the_same": [
        (Helpful(), "crfl_round_started"),
        (Helpful(), "changed what it was given: work on a copy"),
        (Sneaky(), "change nothing that a hook is handed"),
    ],
}
EXAMPLES = [(check, plugin, word) for check, examples in BROKEN.items() for plugin, word in examples]


@pytest.mark.parametrize(
    ("check", "plugin", "word"), EXAMPLES, ids=[type(plugin).__name__ for _, plugin, _ in EXAMPLES]
)
def test_a_broken_engine_or_tracker_is_told_what_to_fix(check: str, plugin: Plugin, word: str) -> None:
    assert_fails(plugin, check, word)


def test_every_check_has_a_plugin_that_fails_it() -> None:
    assert set(BROKEN) == checks_of(Engine, Tracker)


def test_a_tracker_without_hooks_is_told_that_it_watches_nothing() -> None:
    class Blind(Tracker):
        """Watches nothing."""

    assert_fails(Blind(), "hooks_exist", "mark its methods with @hookimpl")
