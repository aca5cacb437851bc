"""What goes wrong: signals, full disks, half-written files, two writers, clocks that jump, terminals."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.torture import children, disks
from tests.torture.children import Ended, Plan, Watch
from tests.torture.scenes import phase

STATUS = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
HIDDEN, VISIBLE = "\x1b[?25l", "\x1b[?25h"
DECADES = 10 * 365.25 * 86_400
LARGEST = 45_000
"""Bytes of the largest file that a run here writes."""

PAGES, INODES = 50, 40
"""About what the files of a run here take of a disk."""


@dataclass(frozen=True)
class Stage:
    """A command where it is disturbed, and what another process may do there meanwhile.

    `operations` and `seconds` are those of the scene's own command; of a recovery, which is not `planned`, they are a
    guess.
    """

    arguments: Sequence[str]
    place: Path
    operations: Sequence[str]
    seconds: float
    planned: bool
    others: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Struck:
    """A fault that came: in which phase, and what was wrong with how the command took it."""

    phase: str
    problems: tuple[str, ...] = ()


Fault = Callable[[Stage, Random], Struck | None]
"""Disturbs a command; None if it came to its end before."""


def at_operation(number: signal.Signals) -> Fault:
    """A signal before one of the operations on files, each as likely as any other."""

    def strike(stage: Stage, chance: Random) -> Struck | None:
        plan = Plan(any_operation(stage, chance), lambda watch: os.kill(os.getpid(), number))
        return judged(children.run(stage.arguments, stage.place, plan), number)

    return strike


def at_moment(number: signal.Signals) -> Fault:
    """A signal at a moment, each as likely as any other."""

    def strike(stage: Stage, chance: Random) -> Struck | None:
        child = children.start(stage.arguments, stage.place)
        time.sleep(chance.uniform(0.0, stage.seconds))
        child.send(number)
        ended = child.wait()
        began = len(ended.operations)
        struck = judged(ended, number)
        if struck and not struck.problems and stage.planned and 0 < began < len(stage.operations):
            return Struck(phase(stage.operations[began]))  # on its way to the next operation
        return struck

    return strike


def half_written(stage: Stage, chance: Random) -> Struck | None:
    """Cut the power: what was not synchronised is missing, or zeros."""

    def cut(watch: Watch) -> None:
        watch.tear(chance)
        os.kill(os.getpid(), signal.SIGKILL)

    plan = Plan(any_operation(stage, chance), cut)
    return judged(children.run(stage.arguments, stage.place, plan), signal.SIGKILL)


def largest_file(stage: Stage, chance: Random) -> Struck | None:
    """The operating system lets no file grow beyond some bytes."""

    def limit() -> None:
        size = chance.randrange(LARGEST)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return refused(children.run(stage.arguments, stage.place, Plan(first=limit)), "File too large")


def full_disk(stage: Stage, chance: Random) -> Struck | None:
    """Fill the disk; then make room."""
    if chance.random() < 0.7:
        disks.leave(stage.place, pages=int(PAGES * chance.random() ** 2))
    else:
        disks.leave(stage.place, files=int(INODES * chance.random() ** 2))
    ended = children.run(stage.arguments, stage.place)
    disks.leave(stage.place)
    return refused(ended, "No space left on device", "(free disk at")


def two_writers(stage: Stage, chance: Random) -> Struck | None:
    """One command halts at an operation until another one has ended, then it goes on, or dies."""
    plan = Plan(any_operation(stage, chance), lambda watch: os.kill(os.getpid(), signal.SIGSTOP))
    first = children.start(stage.arguments, stage.place, plan)
    if not first.wait_for_stop():
        return ended_well(first.wait())
    other = children.run(chance.choice(stage.others), stage.place)
    dies = chance.random() < 0.3
    first.send(signal.SIGKILL if dies else signal.SIGCONT)
    ended = first.wait()
    problems = [*other.complaints, *ended.complaints]
    problems += [f"the second one ended with {other.status}: {other.said}"] if other.status not in (0, 2) else []
    expected = (-signal.SIGKILL,) if dies else (0, 2)
    problems += [f"the first one ended with {ended.status}: {ended.said}"] if ended.status not in expected else []
    return Struck(phase(ended.operations[plan.operation - 1]), tuple(problems))


def jumping_clock(stage: Stage, chance: Random) -> Struck | None:
    """Let clocks jump by decades at every reading, and files be of any age; often kill as well."""

    def jump() -> None:
        for name in ("time", "monotonic", "perf_counter"):
            setattr(time, name, lambda: chance.uniform(-DECADES, DECADES))
            setattr(time, f"{name}_ns", lambda: int(chance.uniform(-DECADES, DECADES) * 1e9))

    kills = chance.random() < 0.7
    operation = any_operation(stage, chance) if kills else 0
    plan = Plan(operation, lambda watch: os.kill(os.getpid(), signal.SIGKILL), jump)
    ended = children.run(stage.arguments, stage.place, plan)
    for file in stage.place.rglob("*"):
        age = time.time() + chance.uniform(-DECADES, DECADES)
        os.utime(file, (age, age))
    if kills:
        return judged(ended, signal.SIGKILL)
    problems = ended.complaints or ([] if ended.status == 0 else [f"ended with {ended.status}: {ended.said}"])
    return Struck("all of it", tuple(problems))


def in_a_terminal(stage: Stage, chance: Random) -> Struck | None:
    """End a command that draws a progress bar: the terminal must be as it was."""
    number = chance.choice([signal.SIGTERM, signal.SIGINT])
    arguments = [argument for argument in stage.arguments if argument != "--quiet"]
    plan = Plan(any_operation(stage, chance), lambda watch: os.kill(os.getpid(), number))
    child = children.start(arguments, stage.place, plan, terminal=True)
    terminal = os.dup(child.said)
    before = termios.tcgetattr(terminal)
    ended = child.wait()
    struck = judged(ended, number)
    same = termios.tcgetattr(terminal) == before and ended.said.rfind(HIDDEN) <= ended.said.rfind(VISIBLE)
    os.close(terminal)
    if struck is not None and not same:
        return Struck(struck.phase, (*struck.problems, f"the terminal is not as it was: {ended.said[-300:]!r}"))
    return struck


def in_the_first_second(stage: Stage, chance: Random) -> Struck | None:
    """A process of its own, ended while it still imports: nothing forked, nothing prepared."""
    number = chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    command = [sys.executable, "-m", "crfl_core", *stage.arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        time.sleep(chance.uniform(0.0, 1.0))
        process.send_signal(number)
        said, _ = process.communicate()
    # Before Python has set up its own handling of a signal, or where it ends by it, the status is the signal.
    if process.returncode in (STATUS[number], -number):
        return Struck("starting")
    if process.returncode == 1 and "crfl_core/cli" not in said:  # Python itself was still starting
        return Struck("starting")
    return Struck("starting", (f"{number.name} ended it with {process.returncode}: {said[-2_000:]}",))


def any_operation(stage: Stage, chance: Random) -> int:
    """The number of an operation on files: each as likely as any other, or one of a phase, each of which is."""
    numbers = range(1, 1 + len(stage.operations))
    if chance.random() < 0.5:
        return chance.choice(numbers)
    phases = [phase(operation) for operation in stage.operations]
    chosen = chance.choice(sorted(set(phases)))
    return chance.choice([number for number, own in zip(numbers, phases, strict=True) if own == chosen])


def judged(ended: Ended, number: signal.Signals) -> Struck | None:
    """Whether a signal came before the end, and whether the command ended as it should."""
    if ended.status == STATUS[number] or (ended.status == -number and not ended.operations):
        return Struck(last_phase(ended), tuple(ended.complaints))  # a child has no handlers yet when it is forked
    return ended_well(ended)


def refused(ended: Ended, *reasons: str) -> Struck | None:
    """Whether the operating system refused something, which must be said in a sentence."""
    if ended.status == 2 and any(reason in ended.said for reason in reasons) and not ended.complaints:
        return Struck(last_phase(ended))
    return ended_well(ended)


def ended_well(ended: Ended) -> Struck | None:
    """None for a command that came to its end before anything struck it."""
    return None if ended.status == 0 else Struck("?", (f"ended with {ended.status}: {ended.said[-2_000:]}",))


def last_phase(ended: Ended) -> str:
    """What a command was doing at the last operation that it came to, but for cleaning up."""
    done = [operation for operation in ended.operations if not operation.startswith(children.CLEANING)]
    return phase(done[-1]) if done else "starting"


def kinds(*, mounting: bool) -> Iterator[tuple[str, Fault]]:
    """Every kind of fault by its name."""
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        yield f"{number.name} at a file operation", at_operation(number)
        yield f"{number.name} at any moment", at_moment(number)
    yield "SIGINT, SIGTERM, SIGKILL in the first second", in_the_first_second
    yield "power cut, files half-written", half_written
    yield ("disk full", full_disk) if mounting else ("file too large", largest_file)
    yield "file too large", largest_file
    yield "two writers", two_writers
    yield "clock jumps", jumping_clock
    yield "SIGTERM, SIGINT in a terminal", in_a_terminal
