"""Files of runs that were damaged in every way: the right answer or a `CrflError`, no other exception or number.

`CRFL_FUZZ_SEED=7 CRFL_FUZZ_TIMES=10 pytest tests/runs/test_fuzz.py` tries other damages, and ten times as many.
"""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crfl_core
from crfl_core import CrflError
from crfl_core.runs.checkpoints import read_checkpoint
from crfl_core.runs.run_directory import RunDirectory
from crfl_core.runs.verification import check_run
from tests.oracle import contents, sealed, tiny
from tests.runs import runs
from tests.runs.fuzzing import FORGED, MEANT, Mutation, damaged_bytes

SEED = int(os.environ.get("CRFL_FUZZ_SEED", "0"))
TIMES = int(os.environ.get("CRFL_FUZZ_TIMES", "1"))

CONFIG = tiny(
    dtype="float64",
    rounds=3,
    dataset={"type": "digits", "train_samples": 120, "test_samples": 12},
    partition={"type": "iid", "clients": 4},
    training={"learning_rate": 0.05, "steps": 2, "batch_size": 16},
    model={"type": "softmax", "features": ["unit-ball"]},
    votes={"models": 16},
    certificates=["paper", "pathwise-linear", {"type": "tail", "continuations": 10, "selection": 5}],
    storage={"figures": [], "checkpoint_seconds": 0},
)
RECORDS = ("status.json", "manifest.json")
FOR_PEOPLE = ("certificates/", "resample/round-")
"""Files that no command reads to answer, but for `crfl verify`, people, and new continuations."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with votes and continuations."""
    return crfl_core.run(CONFIG, out=tmp_path_factory.mktemp("fuzz") / "run").path


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped before its last round was over."""
    return runs.interrupted(tmp_path_factory.mktemp("fuzz") / "interrupted", CONFIG)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Odd numbers may overflow, which warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def damages(run: Path, cases: int, name: str, meant: Mapping[str, Mutation] = MEANT) -> Iterator[str]:
    """Every file of a run in turn, with another damage each time, which is gone again afterwards. What was done."""
    files = sorted(file for file in run.rglob("*") if file.is_file() and file.name != ".lock")
    kept = {file: file.read_bytes() for file in files}
    for case in range(cases * TIMES):
        dice = random.Random(f"{name} {SEED} {case}")
        file = files[case % len(files)]
        mutation = meant.get(file.suffix, damaged_bytes) if dice.random() < 0.7 else damaged_bytes
        altered = kept[file]
        while altered == kept[file]:
            altered = mutation(kept[file], dice)
        file.write_bytes(altered)
        yield f"{file.relative_to(run)}, case {case} of seed {SEED}"
        for path, content in kept.items():
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)


def outcome(what: str, read: Callable[[], Any]) -> Any:
    """What a user reads, or the error if it is one for people; any other is named with what was done."""
    try:
        return read()
    except CrflError as error:
        return error
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


def answers(run: Path) -> tuple[bytes, ...]:
    """Whatever people ask of a finished run, as bytes."""
    result = crfl_core.load(run, trust=True)
    found = [result.metrics.model_dump_json().encode(), repr(result.audits).encode()]
    prediction = crfl_core.predict(result, np.zeros((2, 64)))
    for certified in (*result.certified, *prediction.certified):
        found += [np.asarray(part).tobytes() for part in vars(certified.guarantee).values() if part is not None]
    return (*found, prediction.classes.tobytes())


def test_a_damaged_file_of_a_finished_run_gives_the_right_answer_or_an_error(finished: Path) -> None:
    expected, refused, cases = answers(finished), 0, 0
    for what in damages(finished, 1_500, "finished"):
        cases += 1
        if what.startswith(FOR_PEOPLE):
            assert outcome(what, lambda: check_run(RunDirectory(finished)).problems), what
            continue
        found = outcome(what, lambda: answers(finished))
        assert isinstance(found, CrflError) or found == expected, what
        refused += isinstance(found, CrflError)
    assert cases >= 1_500
    assert refused > 0.6 * cases


def test_a_forged_file_of_a_finished_run_is_read_or_refused_in_a_sentence(finished: Path) -> None:
    """With a manifest that fits, nothing but sense protects the readers: types, shapes, counts, ranges."""
    refused = 0
    for what in damages(finished, 300, "forged", FORGED):
        if not what.startswith(RECORDS):
            sealed(finished)
        refused += isinstance(outcome(what, lambda: answers(finished)), CrflError)
    assert refused > 100


def state_of(run: Path) -> list[Any]:
    """Everything with which an interrupted run would be resumed."""
    directory = RunDirectory(run)
    if directory.state != "training":
        directory.read_ledger()
    directory.read("config.toml")
    saved = read_checkpoint(directory)
    if saved is None:
        return []
    tensors = [(name, array.tobytes()) for name, array in sorted(saved.tensors.items())]
    columns = [column.tobytes() for part in saved.clients for column in vars(part).values()]
    return [saved.round, tensors, saved.records, columns]


def test_a_damaged_file_of_an_interrupted_run_is_noticed_before_it_is_resumed(interrupted: Path) -> None:
    expected, cases = state_of(interrupted), 0
    for what in damages(interrupted, 500, "interrupted"):
        cases += 1
        found = outcome(what, lambda: state_of(interrupted))
        assert isinstance(found, CrflError) or found == expected, what
    assert cases >= 500


def test_a_forged_file_of_an_interrupted_run_is_read_or_refused_in_a_sentence(interrupted: Path) -> None:
    for what in damages(interrupted, 200, "forged", FORGED):
        outcome(what, lambda: state_of(interrupted))


def test_a_damaged_run_that_is_resumed_ends_like_one_that_was_not(
    interrupted: Path, finished: Path, tmp_path: Path
) -> None:
    """Where a damage does no harm, the end is the same; where it does, nothing is resumed."""
    whole, ended = contents(finished), 0
    for number, what in enumerate(damages(interrupted, 24, "resumed")):
        run = Path(shutil.copytree(interrupted, tmp_path / str(number)))
        found = outcome(what, lambda path=run: crfl_core.resume(path))  # type: ignore[misc]
        if not isinstance(found, CrflError):
            assert contents(run) == whole, what
            ended += 1
        shutil.rmtree(run)
    assert ended < 24 * TIMES
