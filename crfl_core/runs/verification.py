"""Verification of runs: files as they were written, files that come out again, and receipts.

A receipt is a small JSON statement about a finished run: the digests of its files and data, and the versions that took
part. Whether a directory is the run of a receipt shows by comparing the two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from crfl_core.errors import DataError, StoreError
from crfl_core.files.bounded_reading import MOST_TEXT_BYTES, read_regular_file
from crfl_core.records.ledger import RunFacts
from crfl_core.runs.run_directory import CONFIG, ENVIRONMENT, LEDGER, ROUNDS, VOTE_SEED, RunDirectory

RECEIPT_VERSION = 1

SECRET_VOTE_FILES = ("votes/", "certificates/", "audit.json", "metrics.json")
"""Files that depend on the seed of the votes."""

BIT_VERSIONS = ("crfl", "torch", "numpy", "threads")
"""Entries of environment.json on which the bits of a run depend."""

MOST_NAMED = 5
"""Files that a message names before it counts the others."""


@dataclass(frozen=True)
class Findings:
    """Result of a verification: files compared, problems, and remarks that a person should read."""

    files: int
    problems: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def check_run(directory: RunDirectory) -> Findings:
    """Compare every file of a run with its digest, and read it.

    The run is left as it is.
    """
    if directory.state == "finished":
        return check_finished_run(directory)
    problems = []
    names = list(directory.digests)
    if directory.state == "training":
        from crfl_core.runs.checkpoints import read_checkpoint  # imports torch

        problems += collect_errors(lambda: read_checkpoint(directory))
        names = [ENVIRONMENT, *(name for name in directory.digests if name != ROUNDS)]
    for name in names:
        problems += collect_errors(reader(directory, name))
    unique = tuple(dict.fromkeys(problems))
    return Findings(len(directory.digests), unique, (f"the run is not finished: {directory.state}",))


def check_finished_run(directory: RunDirectory) -> Findings:
    """Check a finished run, and the answers that were saved beside it."""
    problems = collect_errors(lambda: directory.digests)
    if problems:  # not even the list can be trusted
        return Findings(0, tuple(problems))
    for name in directory.digests:
        problems += collect_errors(reader(directory, name))
    if not problems:
        problems += collect_errors(directory.read_ledger)
    count = len(directory.digests)
    for answer in directory.list_saved_answers():
        found = check_saved_answer(answer, directory.status["manifest"])
        count += found.files
        problems += found.problems
    return Findings(count, tuple(problems), tuple(foreign_files_remark(directory)))


def check_saved_answer(answer: RunDirectory, run: str) -> Findings:
    """Check the files of an answer to a what-if question.

    It must be about the run with the manifest `run`.
    """
    problems = collect_errors(lambda: answer.digests)
    if problems:
        return Findings(0, tuple(problems))
    for name in answer.digests:
        problems += collect_errors(reader(answer, name))
    if answer.is_complete and answer.manifest.get("run") != run:
        problems.append(f"{answer.path}: is about another run: remove it")
    return Findings(0 if problems else len(answer.digests), tuple(problems))


def reader(directory: RunDirectory, name: str) -> Callable[[], object]:
    """Return a function that reads a file by its known type."""
    if name == ENVIRONMENT:
        return lambda: directory.read_sealed(name)
    readers: dict[str, Callable[[str], Any]] = {
        ".safetensors": directory.read_tensors,
        ".npz": directory.read_arrays,
        ".json": directory.read_json,
    }
    return lambda: readers.get(Path(name).suffix, directory.read)(name)


def collect_errors(read: Callable[[], object]) -> list[str]:
    """Read something, and return the error message in a list.

    The list is empty if no error occurs.
    """
    try:
        read()
    except StoreError as error:
        return [str(error)]
    return []


def foreign_files_remark(directory: RunDirectory) -> Iterator[str]:
    """Name the files here that do not belong to the run."""
    files = directory.list_foreign_files(directory.digests)
    if files:
        more = f" and {len(files) - MOST_NAMED} more" if len(files) > MOST_NAMED else ""
        yield f"not of the run, and not compared: {', '.join(files[:MOST_NAMED])}{more}"


def recompute_run(directory: RunDirectory, *, trust: bool = False) -> Findings:
    """Train again as the config says, and compare every file.

    The new run is in a temporary folder. All bits of a file must be the same. Raises `CrflError` if the config needs
    `trust`, by the rules of `resume`.
    """
    from crfl_core.plugin_loading.registry import Registry
    from crfl_core.runs.run import load_runnable_config, run  # imports torch

    load_runnable_config(directory, Registry(), trust=trust)
    with TemporaryDirectory(prefix="crfl-") as scratch, same_thread_count(directory):
        again = RunDirectory(run(directory.path / CONFIG, out=Path(scratch, "run")).path)
        has_secret_seed = directory.has(VOTE_SEED)
        names = [name for name in again.digests if name != ENVIRONMENT]
        remarks = []
        if has_secret_seed:
            names = [name for name in names if not name.startswith(SECRET_VOTE_FILES)]
            remarks.append("votes were drawn with a secret seed: they and what follows from them are not compared")
        different = [name for name in names if not is_same_file(directory, again, name)]
        if different:
            remarks += environment_differences(directory, again)
    problems = [f"{directory.path / name}: differs when the run is repeated" for name in different]
    return Findings(len(names), tuple(problems), tuple(remarks))


@contextmanager
def same_thread_count(directory: RunDirectory) -> Iterator[None]:
    """Use as many threads as the run had, if it says so.

    Sums of several threads round differently from those of one.
    """
    import torch

    before = torch.get_num_threads()
    recorded = directory.read_json(ENVIRONMENT).get("threads")
    torch.set_num_threads(recorded or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_same_file(one: RunDirectory, other: RunDirectory, name: str) -> bool:
    """Return whether two runs hold the same file.

    Tensors are compared by themselves, because the notes beside them name versions.
    """
    if not one.has(name):
        return False
    if not name.endswith(".safetensors"):
        return one.read(name) == other.read(name)
    left = one.read_tensors(name)
    right = other.read_tensors(name)
    return left.keys() == right.keys() and all(
        (left[key].dtype, left[key].shape, left[key].tobytes())
        == (right[key].dtype, right[key].shape, right[key].tobytes())
        for key in left
    )


def environment_differences(before: RunDirectory, now: RunDirectory) -> Iterator[str]:
    """Describe in what two runs differ on which bits depend."""
    old = before.read_json(ENVIRONMENT)
    new = now.read_json(ENVIRONMENT)
    for name in BIT_VERSIONS:
        if old.get(name) != new.get(name):
            yield f"the run had {name} {old.get(name)}, here it is {new.get(name)}, which gives other bits"


def build_receipt(directory: RunDirectory) -> dict[str, Any]:
    """Build the receipt of a finished run, as plain data for JSON."""
    if not directory.is_complete:
        raise StoreError(f"{directory.path}: has no manifest: finish it with `crfl run {directory.path}`")
    facts = directory.read_facts(LEDGER, RunFacts)
    environment = directory.read_sealed(ENVIRONMENT)
    return {
        "receipt": RECEIPT_VERSION,
        "run": directory.path.resolve().name,
        "manifest": directory.status["manifest"],
        "files": directory.digests,
        "data": {name: found.model_dump() for name, found in facts.test_sets.items()},
        "versions": {name: value for name, value in environment.items() if name not in ("from_round", "origins")},
    }


def read_receipt(path: Path) -> dict[str, Any]:
    """Read a receipt from its file."""
    try:
        receipt = json.loads(read_regular_file(path, MOST_TEXT_BYTES))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not a receipt: not valid JSON: {error}") from error
    is_receipt = isinstance(receipt, dict) and receipt.get("receipt") == RECEIPT_VERSION
    if not is_receipt or not isinstance(receipt.get("files"), dict):
        raise DataError(
            f"{path}: is not a receipt of this version, {RECEIPT_VERSION}: write one with `crfl receipt RUN`"
        )
    return dict(receipt)


def check_receipt(directory: RunDirectory, path: Path) -> None:
    """Raise `StoreError` unless a run is that of a receipt.

    The run's files already fit its own manifest.
    """
    receipt = read_receipt(path)
    if receipt.get("manifest") == directory.status.get("manifest"):
        return
    files = receipt["files"]
    now = directory.digests
    different = sorted(name for name in {*files, *now} if files.get(name) != now.get(name))
    named = f": {', '.join(different[:MOST_NAMED])} differ" if different else ""
    raise StoreError(
        f"{directory.path}: is complete in itself but not the run of {path}{named}: it is another run, or forged"
    )
