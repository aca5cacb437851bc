"""What is disturbed: commands that write to run directories, what they start from, and what they must end with."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from crfl_core import dump_config, load_config
from tests.oracle import tiny
from tests.torture import children
from tests.torture.children import Ended, Plan
from tests.torture.comparing import differences, leftovers

RUN, ANSWER = "run", "more"
ASKED = ("certificates.tail.continuations=20", "votes.models=24")

PHASES = (
    (("run.previous", "run.discarded", ".replaced"), "replacing"),
    ((".new-",), "creating"),
    (("resample/models", "resample/.models"), "continuations"),
    (("votes",), "votes"),
    (("what-if",), "saving an answer"),
    (("certificates", "audit", "metrics", "figures", "manifest"), "certificates"),
    (("rounds", "checkpoint", "resample", "environment", "clients", "model", "lock"), "training"),
)
"""What a command is doing, by the files that it is at; the first one counts."""


@dataclass(frozen=True)
class Scene:
    """A command at the place where it is disturbed.

    `begins_with` is what is copied to the place first, and `before` the run in it that is to be replaced.
    `ends_with` is the place as an undisturbed command leaves it.
    """

    name: str
    arguments: tuple[str, ...]
    ends_with: Path
    begins_with: Path | None = None
    before: Path | None = None
    rivals: tuple[tuple[str, ...], ...] = ()
    undisturbed: Ended = field(default_factory=lambda: Ended(0, "", (), 0.0))

    def set_up(self, place: Path) -> None:
        """Everything as it is before the command."""
        if self.begins_with is not None:
            shutil.copytree(self.begins_with, place, dirs_exist_ok=True)

    def command(self, place: Path) -> list[str]:
        """The arguments of `crfl`."""
        return at(place, self.arguments)

    def recovery(self, place: Path, chance: Random) -> list[str]:
        """What a person does after something went wrong: the same again, or `crfl run RUN`."""
        state = state_of(place / RUN)
        if self.arguments[0] == "certify":
            return self.command(place)
        if state == "finished" and not self.is_old(place / RUN):
            return ["run", str(place / RUN), "--quiet"]
        if state in ("training", "trained") and chance.random() < 0.5:
            return ["run", str(place / RUN), "--quiet"]
        return self.command(place)

    def others(self, place: Path) -> list[list[str]]:
        """What another process may do at the same time without changing how it all must end."""
        return [at(place, arguments) for arguments in (self.arguments, *self.rivals)]

    def recovered(self, place: Path, ended: Ended, there: bool) -> bool:
        """Whether the recovery did what it should; an answer that was `there` before is refused as such."""
        if self.arguments[0] == "certify" and there:
            return ended.status == 2 and "exists: choose another name" in ended.said
        return ended.status == 0

    def has_answer(self, place: Path) -> bool:
        """Whether an answer to a question is there."""
        return (place / RUN / "what-if" / ANSWER).exists()

    def is_old(self, run: Path) -> bool:
        """Whether a run is the one that is to be replaced."""
        return (
            self.before is not None and (run / "config.toml").read_bytes() == (self.before / "config.toml").read_bytes()
        )

    def losses(self, place: Path) -> list[str]:
        """Whether something was lost for good: a run that is not replaced yet must be whole somewhere."""
        if self.before is None or (state_of(place / RUN) == "finished" and not self.is_old(place / RUN)):
            return []
        kept = place / "run.previous"
        where = kept if kept.exists() else place / RUN
        return [f"the old run: {text}" for text in differences(where, self.before)]


def at(place: Path, arguments: Sequence[str]) -> list[str]:
    """Arguments for a place."""
    return [argument.replace("PLACE", str(place)) for argument in arguments]


def phase(operation: str) -> str:
    """What a command is doing when it comes to an operation on files."""
    return next((name for parts, name in PHASES if any(part in operation for part in parts)), "training")


def state_of(run: Path) -> str:
    """How far a run has come, as far as one can read it; empty if there is none."""
    try:
        return str(json.loads((run / "status.json").read_text())["state"])
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError):
        return "damaged"


def config(seed: int) -> str:
    """A run with all phases in a fraction of a second: an attack, exact and drawn votes, continuations, a figure."""
    settings = tiny(
        seed=seed,
        partition={"type": "iid", "clients": 4},
        dataset={"type": "digits", "train_samples": 200, "test_samples": 30},
        model={"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
        server={"clip_norm": 4.0, "noise_std": 0.05},
        attack={"type": "model-replacement", "clients": [0], "rounds": [2], "poisoned_per_batch": 2},
        votes={"models": 32, "selection_models": 8},
        certificates=["paper", "pathwise-linear", {"type": "tail", "continuations": 24, "selection": 8}],
        storage={"checkpoint_seconds": 0, "figures": ["svg"]},
    )
    return dump_config(load_config(settings).config)


def build(folder: Path) -> list[Scene]:
    """All scenes, with what they start from and end with, made by commands that nothing disturbs."""
    configs = {name: folder / f"{name}.toml" for name in ("new", "old")}
    for seed, file in enumerate(configs.values(), start=1):
        file.write_text(config(seed))
    warm_up(configs["new"], folder)
    for name, file in configs.items():
        made(["run", str(file), "--out", str(folder / name / RUN), "--quiet"], folder / name)
    new, old = folder / "new", folder / "old"
    answered = Path(shutil.copytree(new, folder / "answered"))
    asked = [part for override in ASKED for part in ("--set", override)]
    made(["certify", str(answered / RUN), *asked, "--save", ANSWER], answered)
    command = ("run", str(configs["new"]), "--out", f"PLACE/{RUN}", "--quiet")
    resume = ("run", f"PLACE/{RUN}", "--quiet")
    rivals = (resume, (*command, "--force"))
    run = measured(Scene("run", command, new, rivals=rivals), folder / "measured")
    scenes = [
        Scene("run --force", (*command, "--force"), new, begins_with=old, before=old / RUN, rivals=rivals[:1]),
        Scene("certify --save", ("certify", f"PLACE/{RUN}", *asked, "--save", ANSWER), answered, begins_with=new),
    ]
    for number, moment in enumerate(("clients-00000003", "votes/", "certificates/"), start=1):
        stopped = stopped_at(run, folder / f"stopped-{number}", moment)
        scenes.append(Scene("resume", resume, new, begins_with=stopped, rivals=rivals[1:]))
    return [run, *(measured(scene, folder / "measured") for scene in scenes)]


def warm_up(file: Path, folder: Path) -> None:
    """Import in this process whatever a command needs, so that children need not."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for arguments in (["run", str(file), "--out", str(folder / "warm")], ["verify", str(folder / "warm")]):
            if status := children.ended_with(arguments):
                raise RuntimeError(f"crfl {' '.join(arguments)} ended with {status}")


def made(arguments: Sequence[str], place: Path) -> Ended:
    """A command that must succeed."""
    ended = children.run(arguments, place)
    if ended.status != 0:
        raise RuntimeError(f"crfl {' '.join(arguments)} ended with {ended.status}: {ended.said}")
    return ended


def stopped_at(scene: Scene, place: Path, moment: str) -> Path:
    """A run that was killed at its first operation on such a file."""
    operations = scene.undisturbed.operations
    number = next(at for at, operation in enumerate(operations, start=1) if moment in operation)
    plan = Plan(number, lambda watch: os.kill(os.getpid(), signal.SIGKILL))
    ended = children.run(scene.command(place), place, plan)
    assert ended.status == -signal.SIGKILL
    return place


def measured(scene: Scene, place: Path) -> Scene:
    """The scene with what it does and how long it takes; it must end as it should."""
    place.mkdir()
    scene.set_up(place)
    ended = made(scene.command(place), place)
    found = [*differences(place / RUN, scene.ends_with / RUN), *leftovers(place)]
    if found:
        raise RuntimeError(f"{scene.name}: not even undisturbed is it the same twice: {', '.join(found)}")
    shutil.rmtree(place)
    return replace(scene, undisturbed=ended)
