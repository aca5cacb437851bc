"""Cells that share a training: which cell takes it from which other, and how it is copied.

Two configs train the same model, bit for bit, if they differ only in what is asked about it afterwards: threat, votes,
certificates, radii. The first of such cells is trained, and the others start behind its last round. What is copied is a
checkpoint like any other: the run resumes from it, and the core verifies it as always. A cell that keeps its distances
to a run without the attack does not train that run if another cell does, and keeps its models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from crfl_core.config import RunConfig
from crfl_core.records.ledger import Ledger, RunFacts
from crfl_core.runs.results import RunResult
from crfl_core.runs.run_directory import RunDirectory
from crfl_experiments.sweeps.cells import Cell
from crfl_experiments.sweeps.training_key import training_key

Shared = Literal["nothing", "training"]

FACTS = "ledger.json"
ENVIRONMENT = "environment.json"
FREE_FACTS = {"resampled", "test_noise_std", "secret_votes"}
"""Facts of a run that may differ although the rounds are the same."""


@dataclass(frozen=True)
class Plan:
    """A cell, the cell whose training it takes (`source`) and the cell without the attack (`twin`), by name.

    Both are None if the cell trains itself, or needs no twin.
    """

    cell: Cell
    source: str | None = None
    twin: str | None = None

    @property
    def shares(self) -> Shared:
        """What the cell takes from its source."""
        return "nothing" if self.source is None else "training"


def plan_cells(cells: Sequence[Cell]) -> list[Plan]:
    """Decide which cell takes its training from which other, in the order in which they should be started."""
    families: dict[str, list[Cell]] = {}
    for cell in cells:
        families.setdefault(training_key(cell.config), []).append(cell)
    twins = {twin_key(cell): cell.name for cell in cells if keeps_clean_models(cell.config)}

    def plan(cell: Cell, source: str | None) -> Plan:
        twin = twins.get(twin_key(cell)) if cell.config.storage.keep == "distances" else None
        return Plan(cell, source, twin)

    trained = [plan(family[0], None) for family in families.values()]
    others = [plan(cell, family[0].name) for family in families.values() for cell in family[1:]]
    return [*trained, *others]


def keeps_clean_models(config: RunConfig) -> bool:
    """Tell whether other cells can be compared with this one, round by round."""
    return config.attack is None and config.storage.keep == "models"


def twin_key(cell: Cell) -> str:
    """Compute a digest that is equal for cells that differ in their attack and in later questions only."""
    return training_key(cell.config.without_attack())


def copy_training(path: Path, source: RunResult) -> bool:
    """Let a run that was just created continue behind the last round of a finished one; False if it cannot.

    Votes on the same questions are copied as well if they use the same random numbers.
    """
    target = RunDirectory(path)
    with target.locked():
        facts = target.read_facts(FACTS, RunFacts)
        if not trains_alike(facts, source.ledger.facts) or keeps_distances(RunResult(path)) != keeps_distances(source):
            return False
        target.start_rounds(b"")
        for _, records in groupby(source.ledger.rounds, key=lambda record: record.round):
            target.append_rounds(list(records))
        for number in facts.resampled:
            target.write_resampled(number, source.directory.read_resampled(number))
        copy_votes(target, facts, source)
        target.write_json(ENVIRONMENT, source.directory.read_json(ENVIRONMENT))
        target.write_checkpoint(facts.rounds, {"parameters": source.parameters.numpy()}, [source.ledger.clients])
    return True


def trains_alike(facts: RunFacts, source: RunFacts) -> bool:
    """Tell whether two runs play the same rounds, and the source kept every model that the other one needs."""
    same = all(value == getattr(facts, name) for name, value in source if name not in FREE_FACTS)
    return same and set(facts.resampled) <= set(source.resampled)


def keeps_distances(run: RunResult) -> bool:
    """Tell whether the ledger of a run holds its distances to the clean twin."""
    return run.config.storage.keep == "distances"


def copy_votes(target: RunDirectory, facts: RunFacts, source: RunResult) -> None:
    """Copy the votes on those questions that both runs ask."""
    run = RunResult(target.path)
    if vote_seed(run) != vote_seed(source) or vote_seed(run) == "secret":
        return
    # The ledger that training will write when it resumes: the questions follow from it, and need the votes before.
    run.ledger = Ledger(facts, source.ledger.rounds, source.ledger.clients)
    for question in run.inquiry.questions:
        if question.is_voted_on and source.directory.has_votes(question.request):
            digest = question.request.digest
            for name in (f"votes/{digest}.npz", f"resample/models-{digest}.safetensors"):
                if source.directory.has(name):
                    target.write(name, source.directory.read(name))


def vote_seed(run: RunResult) -> int | str:
    """Look up the seed of the votes."""
    own = run.config.seeds.votes
    return run.config.seed if own is None else own
