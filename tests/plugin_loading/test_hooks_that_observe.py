"""Hooks that are told what happens in a run: when they are called, and what they are shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from crfl_aggregators.trimmed_mean import Median

import crfl_core
from crfl_core import RunResult
from crfl_core.extend import (
    CertificateResult,
    ClientRows,
    PluginFailure,
    Round,
    RoundRecord,
    RunContext,
    RunError,
    Tracker,
    hookimpl,
)
from tests.plugin_loading.watched_runs import SMALL, run


def test_crfl_progress_tells_how_far_feature_maps_are_unless_they_are_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    class Listening(Tracker):
        @hookimpl
        def crfl_progress(self, phase: str, done: int, total: int) -> None:
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


def test_crfl_progress_tells_how_far_votes_and_continuations_are(tmp_path: Path) -> None:
    told: dict[str, list[tuple[int, int]]] = {}

    class Listening(Tracker):
        @hookimpl
        def crfl_progress(self, phase: str, done: int, total: int) -> None:
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


def test_crfl_round_finished_shows_what_the_server_knows_of_each_client(tmp_path: Path) -> None:
    seen: list[ClientRows] = []

    class Watch(Tracker):
        @hookimpl
        def crfl_round_finished(self, clients: ClientRows) -> None:
            seen.append(clients)

    ledger = run(tmp_path, Watch).ledger
    assert [len(clients) for clients in seen] == [5, 5, 5]
    for number, clients in enumerate(seen, 1):
        of_round = ledger.clients.of_round(number)
        for name, column in vars(clients).items():
            np.testing.assert_array_equal(column, getattr(of_round, name))
    told = {"attacking", "scale", "delta", "label_flips", *(name for name in vars(of_round) if "poison" in name)}
    assert not told & set(vars(seen[0]))


def test_crfl_round_finished_refuses_a_tracker_that_changes_the_rows_of_clients(tmp_path: Path) -> None:
    class Meddles(Tracker):
        @hookimpl
        def crfl_round_finished(self, clients: ClientRows) -> None:
            clients.weight[:] = 0.0

    with pytest.raises(PluginFailure, match="changed what it was given: work on a copy"):
        run(tmp_path, Meddles)


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
