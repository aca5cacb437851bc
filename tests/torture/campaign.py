"""Faults at random: disturb a command, recover as a person would, compare every bit with an undisturbed run."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random

from tests.torture import children, disks, faults
from tests.torture.comparing import differences, leftovers
from tests.torture.faults import Fault, Stage, Struck, full_disk, in_the_first_second
from tests.torture.scenes import RUN, Scene

AGAIN = (0, 0, 1, 2)
"""How many more faults strike the recovery, each as likely as any other."""

RARELY = 2
"""Processes of their own are slow to start: they come in one of this many turns."""


@dataclass(frozen=True)
class Result:
    """One case: the faults that struck, by kind and phase, and what was wrong in the end."""

    number: int
    scene: str
    struck: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Campaign:
    """The cases of a seed; any of them can be repeated by its number."""

    folder: Path
    scenes: list[Scene]
    seed: int
    mounting: bool

    def case(self, number: int) -> Result:
        """One scene, disturbed once or more often, and then recovered."""
        began, chance = time.monotonic(), Random(f"{self.seed} {number}")
        scene, (name, fault) = self.chosen(number)
        place = self.folder / f"case-{number}"
        place.mkdir()
        with disks.disk(place) if fault is full_disk else contextlib.nullcontext():
            scene.set_up(place)
            struck, problems = self.disturb(scene, place, fault, chance)
            problems = problems or self.recover(scene, place, chance)
            if problems and self.mounting and fault is full_disk:
                shutil.copytree(place, self.folder / f"kept-{number}")
        if not problems:
            shutil.rmtree(place)
        phases = tuple((name, one.phase) for one in struck)
        return Result(number, scene.name, phases, tuple(problems), time.monotonic() - began)

    def chosen(self, number: int) -> tuple[Scene, tuple[str, Fault]]:
        """All kinds of faults in turn, each with another scene than the turn before."""
        kinds = list(faults.kinds(mounting=self.mounting))
        turn, position = divmod(number, len(kinds))
        scene = self.scenes[(self.seed + turn + position) % len(self.scenes)]
        if kinds[position][1] is in_the_first_second and turn % RARELY:
            return scene, kinds[0]
        return scene, kinds[position]

    def disturb(self, scene: Scene, place: Path, fault: Fault, chance: Random) -> tuple[list[Struck], list[str]]:
        """The command and then its recovery, struck one after the other until one of them comes to its end."""
        struck: list[Struck] = []
        arguments, undisturbed = scene.command(place), scene.undisturbed
        for _ in range(1 + chance.choice(AGAIN)):
            others, first = scene.others(place), not struck
            stage = Stage(arguments, place, undisturbed.operations, undisturbed.seconds, first, others)
            found = fault(stage, chance)
            if found is None:
                break
            struck.append(found)
            problems = [*found.problems, *scene.losses(place)]
            if problems:
                return struck, problems
            if scene.has_answer(place):
                break
            arguments = scene.recovery(place, chance)
        return struck, []

    def recover(self, scene: Scene, place: Path, chance: Random) -> list[str]:
        """What is wrong when a person has recovered what a fault left behind."""
        there = scene.has_answer(place)
        arguments = scene.recovery(place, chance)
        ended = children.run(arguments, place)
        if not scene.recovered(place, ended, there):
            return [f"crfl {' '.join(arguments)} ended with {ended.status}: {ended.said[-2_000:]}"]
        verified = children.run(["verify", str(place / RUN)], place)
        problems = [] if verified.status == 0 else [f"crfl verify: {verified.said[-2_000:]}"]
        return [*problems, *differences(place / RUN, scene.ends_with / RUN), *leftovers(place)]

    def results(self, wanted: int, processes: int) -> Iterator[Result]:
        """Cases until at least this many faults have struck."""
        numbers, total = itertools.count(), 0
        with get_context("fork").Pool(processes) as pool:
            pending = deque(pool.apply_async(self.case, (next(numbers),)) for _ in range(2 * processes))
            while pending:
                result = pending.popleft().get()
                yield result
                total += len(result.struck)
                if total < wanted:
                    pending.append(pool.apply_async(self.case, (next(numbers),)))


def table(results: Iterable[Result]) -> str:
    """Faults by kind and phase."""
    counted = Counter(pair for result in results for pair in result.struck)
    kinds = list(dict.fromkeys(kind for kind, _ in sorted(counted)))
    phases = sorted({phase for _, phase in counted})
    width = max(map(len, kinds), default=0)
    lines = [" ".join(["fault".ljust(width), *phases, "all"])]
    for kind in kinds:
        row = [counted[kind, phase] for phase in phases]
        cells = [str(count or "").rjust(len(name)) for count, name in zip(row, phases, strict=True)]
        lines.append(" ".join([kind.ljust(width), *cells, str(sum(row)).rjust(3)]))
    columns = [sum(counted[kind, phase] for kind in kinds) for phase in phases]
    cells = [str(count).rjust(len(name)) for count, name in zip(columns, phases, strict=True)]
    return "\n".join([*lines, " ".join(["all".ljust(width), *cells, str(sum(columns)).rjust(3)])])
