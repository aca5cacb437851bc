"""What `crfl run --dry-run` says beside what runs take: seconds of every phase, peak memory and disk.

Every estimate and every run has a process of its own. Seconds are those of the processor on one thread, so that other
programs on the machine do not count.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.timing import report

EXAMPLES = Path(__file__).parents[1] / "examples"
PHASES = ("data", "training", "votes", "continuations", "certificates")
SHORT = 0.3
"""Seconds below which a phase is not compared by itself."""
CASES: dict[str, tuple[str | None, list[str]]] = {
    "digits, the default": (None, []),
    "MNIST, shortened": (
        str(EXAMPLES / "mnist.toml"),
        ["rounds=10", "attack.rounds=[8]", "dataset.train_samples=10000", "dataset.test_samples=1000"],
    ),
    "10 groups": (None, ["groups.count=10", "certificates=group-vote", "rounds=40"]),
    "100 continuations": (
        None,
        ["certificates=tail", "certificates.0.continuations=100", "rounds=30", "attack.rounds=[10]"],
    ),
    "Gram products (krum, 200 clients)": (
        None,
        ["partition.clients=200", "aggregation=krum", "aggregation.0.f=10", "certificates=paper"],
    ),
    "median of 400 x 112,510": (
        None,
        [
            "rounds=2",
            "attack=none",
            "partition.clients=400",
            "model=mlp",
            "model.hidden=[1500]",
            "model.features=[]",
            "training.steps=1",
            "aggregation=median",
            "server.cap_updates=false",
            "certificates=paper",
            "votes.models=20",
        ],
    ),
    "CNN": (
        None,
        ["model=cnn", "model.features=[]", "rounds=10", "attack.rounds=[5]", "certificates=paper", "votes.models=200"],
    ),
}


def main() -> None:
    for name, case in CASES.items():
        with TemporaryDirectory() as folder:
            guessed, found = (child(what, folder, *case) for what in ("estimate", "measure"))
        for phase in PHASES:
            if found[phase] > SHORT:
                compare(f"{name}: {phase}", guessed[phase], found[phase], "s")
        all_guessed, all_found = (sum(each[phase] for phase in PHASES) for each in (guessed, found))
        compare(f"{name}: all seconds", all_guessed, all_found, "s")
        for what, unit in (("memory", "MB"), ("disk", "MB")):
            compare(f"{name}: {what}", guessed[what] / 1e6, found[what] / 1e6, unit)


def compare(name: str, guessed: float, found: float, unit: str) -> None:
    """One line with both numbers and their ratio."""
    report(name, guessed / found, "0.5 to 2", detail=f"{guessed:.2f} / {found:.2f} {unit}")


def child(what: str, folder: str, config: str | None, overrides: list[str]) -> dict[str, float]:
    """The numbers that a process of its own finds."""
    asked = json.dumps([what, str(Path(folder, "run")), config, overrides])
    command = [sys.executable, "-m", "benchmarks.estimates", asked]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def answer(what: str, path: str, config: str | None, overrides: list[str]) -> dict[str, float]:
    """What is asked of a child."""
    import torch

    torch.set_num_threads(1)
    return {"estimate": guess, "measure": run}[what](Path(path), config, overrides)


def guess(path: Path, config: str | None, overrides: list[str]) -> dict[str, float]:
    """The estimate."""
    from crfl_core import load_config
    from crfl_core.reporting import estimate, trial
    from crfl_core.runs import run as execution

    trial.clock = time.process_time
    loaded = load_config(config, overrides=overrides).config
    started = time.process_time()
    session = execution.prepare(loaded, path, [])
    found = estimate.estimated(session, time.process_time() - started)
    return {**found.seconds._asdict(), "memory": found.memory, "disk": found.disk}


def run(path: Path, config: str | None, overrides: list[str]) -> dict[str, float]:
    """The truth: the same run, with a clock at the door of every phase."""
    import crfl_core
    from crfl_core.runs import run as execution
    from crfl_core.runs.stored_votes import Voter

    spent = dict.fromkeys(("build", "train", "certify", "voter", "continued"), 0.0)

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            started = time.process_time()
            try:
                return work(*arguments, **options)
            finally:
                spent[name] += time.process_time() - started

        return call

    for owner, name, member in (
        (execution, "build", "prepare"),
        (execution, "train", "train"),
        (execution, "certify", "certify"),
        (Voter, "voter", "__call__"),
        (Voter, "continued", "_continued"),
    ):
        setattr(owner, member, timed(name, getattr(owner, member)))
    crfl_core.run(config, overrides=overrides, out=path)
    return {
        "data": spent["build"],
        "training": spent["train"],
        "votes": spent["voter"] - spent["continued"],
        "continuations": spent["continued"],
        "certificates": spent["certify"] - spent["voter"],
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        "disk": float(sum(file.stat().st_size for file in path.rglob("*") if file.is_file())),
    }


if __name__ == "__main__":
    print(json.dumps(answer(*json.loads(sys.argv[1]))))
