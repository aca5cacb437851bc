"""Whether the files of a run are those that it wrote, and those that it would write again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from crfl_core.errors import StoreError
from crfl_core.runs.run_directory import RunDirectory

PERSONAL = ("crfl.json", "environment.json")
"""Files that say who made a run, and with what: another installation writes others."""

SECRET = ("votes/", "certificates/", "audit.json", "metrics.json")
"""What depends on the votes."""

SEED = "votes/seed.json"
VERSIONS = ("crfl", "torch", "numpy", "threads")
"""Bits are promised where these are the same."""


@dataclass(frozen=True)
class Findings:
    """What was found out about a run: how many files were compared, what is wrong, and what a person should know."""

    files: int
    problems: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def check(directory: RunDirectory) -> Findings:
    """Compare every file of a run with its digest, and read it. The run is left as it is."""
    if directory.state == "finished":
        return check_finished(directory)
    from crfl_core.runs.checkpoints import read_checkpoint  # imports torch

    problems = tuple(tried(lambda: read_checkpoint(directory))) if directory.state == "training" else ()
    names = [name for name in directory.digests if name != "rounds.jsonl" or directory.state != "training"]
    problems += tuple(problem for name in names for problem in tried(reader(directory, name)))
    return Findings(
        len(directory.digests), tuple(dict.fromkeys(problems)), (f"the run is not finished: {directory.state}",)
    )


def check_finished(directory: RunDirectory) -> Findings:
    """A finished run, and the answers that were saved beside it."""
    files = list(tried(lambda: directory.digests))
    if files:  # not even the list can be trusted
        return Findings(0, tuple(files))
    problems = [problem for name in directory.digests for problem in tried(reader(directory, name))]
    problems += [] if problems else tried(directory.read_ledger)
    count = len(directory.digests)
    remarks = list(strangers(directory))
    for answer in directory.saved_answers():
        found = check_answer(answer, directory.status["manifest"])
        count = count + found.files
        problems = problems + list(found.problems)
    return Findings(count, tuple(problems), tuple(remarks))


def check_answer(answer: RunDirectory, run: str) -> Findings:
    """The answer to a what-if question: its files, and that it is about this run."""
    problems = tried(lambda: answer.digests)
    if not problems:
        problems = [problem for name in answer.digests for problem in tried(reader(answer, name))]
        if answer.is_sealed and answer.manifest.get("run") != run:
            problems.append(f"{answer.path}: is about another run: remove it")
    return Findings(len(answer.digests) if not problems else 0, tuple(problems))


def reader(directory: RunDirectory, name: str) -> Callable[[], object]:
    """Reads a file as far as one can without knowing what it is for."""
    readers: dict[str, Callable[[str], Any]] = {
        ".safetensors": directory.read_tensors,
        ".npz": directory.read_arrays,
        ".json": directory.read_json,
    }
    return lambda: readers.get(Path(name).suffix, directory.read)(name)


def tried(read: Callable[[], object]) -> list[str]:
    """What is wrong with something that is read; empty if nothing is."""
    try:
        read()
    except StoreError as error:
        return [str(error)]
    return []


def strangers(directory: RunDirectory) -> Iterator[str]:
    """Files in the directory that are not of the run."""
    files = directory.others(directory.digests)
    if files:
        named = ", ".join(files[:5]) + (f" and {len(files) - 5} more" if len(files) > 5 else "")
        yield f"not of the run, and not compared: {named}"


def recompute(directory: RunDirectory) -> Findings:
    """Train again as the config says, somewhere else, and compare the bits of every file."""
    from crfl_core import run

    with TemporaryDirectory(prefix="crfl-") as scratch, threads_of(directory):
        again = RunDirectory(run(directory.path / "config.toml", out=Path(scratch, "run")).path)
        secret = directory.has(SEED)
        names = [name for name in again.digests if name not in PERSONAL]
        names = [name for name in names if not (secret and name.startswith(SECRET))]
        different = [name for name in names if not same(directory, again, name)]
        remarks = (
            ["votes were drawn with a secret seed: they and what follows from them are not compared"] if secret else []
        )
        remarks += list(changes(directory, again)) if different else []
    problems = [f"{directory.path / name}: another one comes out when the run is repeated" for name in different]
    return Findings(len(names), tuple(problems), tuple(remarks))


@contextmanager
def threads_of(directory: RunDirectory) -> Iterator[None]:
    """As many threads as the run had, if that is known: sums of several round otherwise than those of one."""
    import torch

    before = torch.get_num_threads()
    recorded = directory.read_json("environment.json").get("threads")
    torch.set_num_threads(recorded or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def same(one: RunDirectory, other: RunDirectory, name: str) -> bool:
    """Whether two runs hold the same file. Tensors are compared by themselves: notes beside them name versions."""
    if not one.has(name):
        return False
    if not name.endswith(".safetensors"):
        return one.read(name) == other.read(name)
    mine = one.read_tensors(name)
    yours = other.read_tensors(name)
    return mine.keys() == yours.keys() and all(
        (mine[key].dtype, mine[key].shape, mine[key].tobytes())
        == (yours[key].dtype, yours[key].shape, yours[key].tobytes())
        for key in mine
    )


def changes(before: RunDirectory, now: RunDirectory) -> Iterator[str]:
    """In what the two runs differ on which bits depend."""
    old, new = (directory.read_json("environment.json") for directory in (before, now))
    for name in VERSIONS:
        if old.get(name) != new.get(name):
            yield f"the run had {name} {old.get(name)}, here it is {new.get(name)}, which gives other bits"
