"""Votes that an engine counts are verified, and the same as those counted here."""

from __future__ import annotations

import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_engines.local import Local
from crfl_models.softmax import Softmax
from numpy.typing import NDArray
from pydantic import PrivateAttr
from torch import Tensor

import crfl_core
from crfl_core.certification.voting import count_on_sets
from crfl_core.extend import (
    CountingTask,
    CrflWarning,
    DataFacts,
    Domain,
    Job,
    LinearModel,
    NoisyModels,
    PartialCount,
    PluginFailure,
    Streams,
    open_job,
)
from crfl_core.records.vote_counting import count_votes, split_samples
from tests.oracle import OTHER_ENGINE, POISON, contents, tiny

MODEL = Softmax().build(DataFacts(6, 3, Domain()))
NUMBERS = torch.Generator().manual_seed(0)
FEATURES = torch.randn(1200, 6, generator=NUMBERS)
VOTERS = NoisyModels(torch.randn(1, MODEL.layout.size, generator=NUMBERS), 300, 0.5, Streams(0))
TRAINED = NoisyModels(torch.randn(300, MODEL.layout.size, generator=NUMBERS))
BLOCKS = split_samples(len(FEATURES))
Parts = list[PartialCount]


def counts(voters: NoisyModels, remote: Iterable[Any] = (), features: Tensor = FEATURES) -> NDArray[np.int64]:
    """The votes on one test set, of which others have counted some parts."""
    return count_on_sets(MODEL, voters, {"set": features}, lambda _name, _voters: remote)["set"]


def honest(voters: NoisyModels = VOTERS) -> Parts:
    """The votes as a good engine would count them, each block a part."""
    each = [count_votes(MODEL, voters.chunks(), [FEATURES[block]])[0] for block in BLOCKS]
    return [PartialCount(block, counts) for block, counts in zip(BLOCKS, each, strict=True)]


def moved(part: PartialCount) -> PartialCount:
    """One vote of the first sample for another class: the server cannot see that it is wrong."""
    counts = part.counts.copy()
    most = int(counts[0].argmax())
    counts[0, most] -= 1
    counts[0, most - 1] += 1
    return PartialCount(part.part, counts)


@pytest.mark.parametrize("voters", [VOTERS, TRAINED], ids=["noisy copies", "trained models"])
@pytest.mark.parametrize(
    "chosen",
    [lambda parts: parts, lambda parts: parts[::-1], lambda parts: parts[1:2], lambda _: []],
    ids=["all", "backwards", "one block", "nothing"],
)
def test_votes_are_the_same_on_every_engine(voters: NoisyModels, chosen: Callable[[Parts], Parts]) -> None:
    np.testing.assert_array_equal(counts(voters, chosen(honest(voters))), counts(voters))


def test_samples_are_voted_on_in_blocks_that_do_not_depend_on_who_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[int] = []
    original = LinearModel.vote_counter

    def watched(self: LinearModel, parameters: Tensor) -> Callable[[Tensor], Tensor]:
        counts = original(self, parameters)

        def counted(x: Tensor) -> Tensor:
            shapes.append(len(x))
            return counts(x)

        return counted

    monkeypatch.setattr(LinearModel, "vote_counter", watched)
    counts(NoisyModels(TRAINED.models[:8]))
    assert shapes == [512, 512, 176]


def test_no_models_and_no_samples_make_an_empty_table() -> None:
    assert counts(VOTERS, features=FEATURES[:0]).shape == (0, 3)


def test_a_moved_vote_is_noticed_and_everything_is_counted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "choice", lambda found: found[1])
    parts = honest()
    with pytest.warns(CrflWarning, match="other votes on test samples from 512 on"):
        counted = counts(VOTERS, [parts[0], moved(parts[1]), parts[2]])
    np.testing.assert_array_equal(counted, counts(VOTERS))


def test_any_block_may_be_looked_at() -> None:
    """Over many counts, every block that an engine has counted is counted again."""
    few, asked = NoisyModels(TRAINED.models[:2]), set[int]()
    parts = honest(few)
    for lied in range(3):
        lying = [moved(part) if number == lied else part for number, part in enumerate(parts)]
        for _ in range(60):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(warnings, "warn", lambda *_, lied=lied, **__: asked.add(lied))
                counts(few, lying)
    assert asked == {0, 1, 2}  # fails once in 10^10


def changed(part: PartialCount, counts: NDArray[Any]) -> PartialCount:
    return PartialCount(part.part, counts)


FAULTS: dict[str, tuple[Callable[[Parts], Iterable[Any]], str]] = {
    "yields arrays": (lambda parts: [parts[0].counts], "must yield PartialCount, found ndarray"),
    "counts twice": (lambda parts: [parts[0], parts[0]], "whole blocks of samples, each once, found slice(0, 512"),
    "cuts blocks": (lambda parts: [PartialCount(slice(0, 100), parts[0].counts[:100])], "whole blocks of samples"),
    "counts backwards": (
        lambda parts: [PartialCount(slice(511, None, -1), parts[0].counts)],
        "whole blocks of samples",
    ),
    "counts others": (lambda parts: [PartialCount(slice(5000, 5512), parts[0].counts)], "whole blocks of samples"),
    "loses votes": (lambda parts: [changed(parts[0], parts[0].counts // 2)], "one vote of each of the 300 models"),
    "owes votes": (
        lambda parts: [changed(parts[0], parts[0].counts + np.array([[400, 0, -400]]))],
        "one vote of each of the 300 models",
    ),
    "counts shares": (lambda parts: [changed(parts[0], parts[0].counts / 1.0)], "votes as whole numbers"),
    "counts too few samples": (lambda parts: [changed(parts[0], parts[0].counts[:9])], "votes as whole numbers"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_votes_is_refused(fault: str) -> None:
    spoil, message = FAULTS[fault]
    with pytest.raises(PluginFailure, match=re.escape(message)):
        counts(VOTERS, spoil(honest()))


class Counting(Local):
    """Counts votes with a job that was rebuilt from its text, and remembers the sets."""

    _rebuilt: Job | None = PrivateAttr(default=None)

    def open(self, job: Job) -> None:
        super().open(job)
        self._rebuilt = open_job(job.specification)

    def count_votes(self, task: CountingTask) -> Iterator[PartialCount]:
        assert self._rebuilt is not None
        ASKED.append((task.test_set, len(task.voters)))
        for block in reversed(task.blocks):
            yield self._rebuilt.count_votes(task, block)


class Raising(Counting):
    """Cannot count."""

    def count_votes(self, task: CountingTask) -> Iterator[PartialCount]:
        raise RuntimeError("no abacus")


ASKED: list[tuple[str, int]] = []
SETTINGS = tiny(
    rounds=2,
    dataset={"type": "synthetic", "train_samples": 300, "test_samples": 600, "features": 12, "classes": 4},
    attack=POISON,
    certificates=[
        {"type": "pathwise-smoothed", "method": "monte-carlo"},
        {"type": "tail", "continuations": 20, "selection": 10},
    ],
)


@pytest.mark.parametrize("seeds", [{}, {"votes": "secret"}], ids=["open", "secret"])
def test_a_run_whose_engine_counts_is_the_run_of_one_that_does_not(tmp_path: Path, seeds: dict[str, Any]) -> None:
    """Noisy copies and continuations, on both test sets. Processes that count get the seed of secret votes."""
    ASKED.clear()
    local = crfl_core.run(SETTINGS, out=tmp_path / "here")
    apart = crfl_core.run(
        SETTINGS | {"engine": {"type": "counting", "threads": 1}, "seeds": seeds},
        out=tmp_path / "there",
        plugins={"counting": Counting},
    )
    sets = {name for name, _ in ASKED}
    assert sets == {"clean", "backdoored"}
    assert {number for _, number in ASKED} == {64, 100, 20, 10}
    one, two = contents(local.path), contents(apart.path)
    if not seeds:
        assert [name for name in one if one[name] != two[name]] == OTHER_ENGINE
    else:
        assert (apart.path / "model.safetensors").read_bytes() == one["model.safetensors"]


def test_an_engine_that_cannot_count_says_so(tmp_path: Path) -> None:
    config = SETTINGS | {"engine": {"type": "raising"}}
    with pytest.raises(PluginFailure, match=r"engine: .*raising.* failed: RuntimeError: no abacus"):
        crfl_core.run(config, out=tmp_path / "run", plugins={"raising": Raising})


def test_votes_of_a_question_afterwards_are_counted_here(tmp_path: Path) -> None:
    """The user who asks may have neither the engine nor its machines."""
    config = SETTINGS | {"engine": {"type": "counting", "threads": 1}}
    run = crfl_core.run(config, out=tmp_path / "run", plugins={"counting": Counting})
    ASKED.clear()
    answer = crfl_core.certify(run, ["votes.models=80"])
    assert answer.needs == "votes"
    assert ASKED == []
