"""What a run needs is counted before it is allocated, and what cannot fit is refused with the key to lower."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crfl_core
from crfl_core import load_config, resource_limits
from crfl_core.extend import ConfigError
from crfl_core.runs.resource_needs import (
    RunSizes,
    VotingLoad,
    check_config,
    count_needs,
    loads_of_config,
    total_bytes,
)
from tests.oracle import tiny

HERE = Path("runs/none")
TAIL = {"type": "tail", "continuations": 10**9}
KRUM = load_config(tiny(aggregation="krum")).config
SAMPLE = RunSizes(rounds=10, clients=100, participants=100, parameters=1000, samples=5000, tests=500, itemsize=4)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets what is left of memory."""

    def leave(left: int) -> None:
        monkeypatch.setattr(resource_limits, "free_memory", lambda: resource_limits.Headroom(left, "as the test says"))

    return leave


SYNTHETIC = {"type": "synthetic", "train_samples": 200, "test_samples": 20, "classes": 3, "features": 5}
IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "rounds": ({"rounds": 10**9}, r"^rounds: .*memory.*ledger of 1,000,000,000 rounds of 8 clients.*: lower rounds$"),
    "clients": (
        {"partition": {"type": "iid", "clients": 10**9}},
        r"^partition\.clients: .*memory.*4 rounds of 1,000,000,000 clients.*: lower partition\.clients$",
    ),
    "continuations": (
        {"certificates": [TAIL]},
        r"^certificates\.0\.continuations: .*1,000,000,060 continuations.*: lower certificates\.0\.continuations$",
    ),
    "groups": (
        {"groups": {"by": "subsets", "count": 10**9, "size": 4}, "certificates": [{"type": "ensemble"}]},
        r"^groups\.count: .*ledger of 4 rounds of 4,000,000,000 clients.*: lower groups\.count$",
    ),
    "features": (
        {"dataset": SYNTHETIC | {"features": 10**12}},
        r"^dataset\.features: .*memory.* 220 samples of 1,000,000,000,000 inputs.*: lower dataset\.features$",
    ),
    "classes": (
        {"dataset": SYNTHETIC | {"classes": 10**12}},
        r"^dataset\.classes: .*memory.* votes on 20 samples of 1,000,000,000,000 classes.*: lower dataset\.classes$",
    ),
    "test samples": (
        {"dataset": SYNTHETIC | {"test_samples": 10**12}},
        r"^dataset\.test_samples: .*memory.* 1,000,000,000,000 certified samples.*: lower dataset\.test_samples$",
    ),
    "votes": (
        {"votes": {"models": 10**12}},
        r"votes\.models = 1000000000000: must be less than or equal to 100000000",
    ),
    "steps": (
        {"training": {"learning_rate": 0.1, "steps": 10**12}},
        r"^training\.steps: .*memory.* the samples of 1,000,000,000,000 steps.*: lower training\.steps$",
    ),
    "outputs of a feature map": (
        {"model": {"type": "softmax", "features": {"type": "random-fourier", "outputs": 10**12}}},
        r"^model\.features: .*memory.* 1,000,000,000,000 features of .* samples.*: lower model\.features$",
    ),
    "attacked rounds": (
        {"attack": {"type": "sign-flip", "clients": [0], "rounds": {"first": 1, "last": 10**12}}},
        r"^attack\.rounds: found round 1000000000000, but rounds are 1\.\.4: set attack\.rounds, more rounds, or",
    ),
    "assumed rounds": (
        {"threat": {"rounds": {"first": 1, "last": 10**30}}},
        r"^threat\.rounds: found \[1, 2, 3, 4, 1000000000000000000000000000000\], but rounds are 1\.\.4$",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_be_is_refused_at_once(case: str, tmp_path: Path, little_memory: Callable[[int], None]) -> None:
    """By the run itself, however it is started, and before anything is written."""
    changes, message = IMPOSSIBLE[case]
    little_memory(8 * 10**9)
    started = time.process_time()
    with pytest.raises(ConfigError, match=message.replace("^", r"^(the mapping given to crfl_core: )?", 1)):
        crfl_core.run(tiny(**changes), out=tmp_path / "run")
    assert time.process_time() - started < 2
    assert not any(tmp_path.iterdir())


def test_sizes_that_only_data_and_model_tell_are_refused_before_features_are_made(
    tmp_path: Path, little_memory: Callable[[int], None]
) -> None:
    """420 samples x 50,000 features of 4 bytes are 84 MB."""
    config = tiny(model={"type": "softmax", "features": {"type": "random-fourier", "outputs": 50_000}})
    little_memory(60 * 10**6)
    with pytest.raises(
        ConfigError,
        match=r"of it for .*, and 60\.0 MB are left \(as the test says\): lower ",
    ):
        crfl_core.run(config, out=tmp_path / "run")
    assert not any(tmp_path.iterdir())


def test_a_rule_that_compares_all_updates_needs_them_all() -> None:
    mean, median = (load_config(tiny(aggregation=rule)).config for rule in ("fedavg", "median"))
    rows = 100 * 1000 * 4
    more = total_bytes(count_needs(median, SAMPLE, []).memory) - total_bytes(count_needs(mean, SAMPLE, []).memory)
    assert more >= rows  # the copies that a rule makes depend on the rule


def test_a_full_disk_is_told_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_limits, "free_disk", lambda _: resource_limits.Headroom(1000, "free disk at /here"))
    with pytest.raises(ConfigError, match=r"needs about .* on disk, .* and 1\.0 kB are left \(free disk at /here\)"):
        check_config(load_config(tiny()).config, HERE)


def test_where_nothing_is_known_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_limits, "free_memory", lambda: None)
    monkeypatch.setattr(resource_limits, "free_disk", lambda _: None)
    check_config(load_config(tiny(rounds=10**6)).config, HERE)


@given(
    factor=st.integers(2, 1000),
    name=st.sampled_from(["rounds", "participants", "parameters", "samples", "tests", "groups"]),
)
def test_more_of_anything_never_needs_less(factor: int, name: str) -> None:
    loads = [VotingLoad(100, "votes.models"), VotingLoad(50, "certificates.0.continuations", 5)]
    small = replace(SAMPLE, maps=True, features=10, inputs=10)
    large = replace(small, **{name: getattr(small, name) * factor})
    for less, more in zip(count_needs(KRUM, small, loads), count_needs(KRUM, large, loads), strict=True):
        assert total_bytes(less) <= total_bytes(more) * (1 + 1e-9)


def test_equal_requests_for_votes_count_once() -> None:
    config = load_config(tiny(certificates=[{"type": "paper"}, {"type": "paper", "name": "again"}])).config
    assert [*loads_of_config(config)] == [VotingLoad(164, "votes.selection_models")]


def test_continuations_start_at_the_last_attacked_round() -> None:
    config = load_config(tiny(certificates=[{"type": "tail", "continuations": 30, "selection": 5}])).config
    assert [*loads_of_config(config)] == [VotingLoad(35, "certificates.0.continuations", 2)]
