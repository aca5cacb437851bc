"""Settings of a certified example, compared on samples that are kept for nothing else: those of `reserve.validation`.

    python examples/certified/search.py examples/certified/mnist-every-round.toml --clients 9 \\
        --try training.weight_decay=1e-4,3e-4,1e-3 --try training.learning_rate=10,20

trains every combination, and prints accuracy and certified accuracy on the validation set, in the end the best.
The test set is not looked at: all but one of its samples are left away. How each example was found stands in it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from crfl import CrflError, Curve, run

UNSEEN = ("dataset.test_samples=1", "evaluation.every=0", "storage.figures=[]")
"""No test samples, and no measurements on the way."""


class Found(NamedTuple):
    """What came of one combination on the validation set."""

    certified: float
    accuracy: float
    seconds: float
    settings: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.certified:9.4f} {self.accuracy:9.4f} {self.seconds:8.1f}  {'  '.join(self.settings)}"


def combinations(options: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield every combination of the values of all options, as overrides; commas in brackets separate no values.

    >>> list(combinations(["training.steps=10,20", "rounds=3"]))
    [('training.steps=10', 'rounds=3'), ('training.steps=20', 'rounds=3')]
    """
    choices = []
    for option in options:
        key, values = option.split("=", 1)
        choices.append([f"{key}={value}" for value in split(values)])
    yield from product(*choices)


def split(values: str) -> list[str]:
    """Split values at the commas outside of brackets.

    >>> split("1,[2,3],{ a = 4 }")
    ['1', '[2,3]', '{ a = 4 }']
    """
    parts, depth = [""], 0
    for sign in values:
        depth += (sign in "[{") - (sign in "]}")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


class Question(NamedTuple):
    """Attack that shall change nothing: malicious clients, and the norm of a trigger if `backdoor` is asked."""

    clients: int
    trigger: float | None

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the settings that ask it."""
        if self.trigger is None:
            return (f"evaluation.radii=[{self.clients}]",)
        threat = f"threat={{clients={self.clients}, rounds=[1]}}"
        return (f"evaluation.radii=[{self.trigger}]", 'certificates="backdoor"', threat)

    def read(self, curves: Sequence[Curve]) -> tuple[float, float]:
        """Return the certified accuracy and the accuracy on the validation set."""
        level = "client" if self.trigger is None else "backdoor"
        radius = self.clients if self.trigger is None else self.trigger
        for curve in curves:
            if curve.test_set == "validation" and curve.level == level:
                certified = dict(zip(curve.radii, curve.certified_accuracy, strict=True))
                return certified[radius], curve.accuracy
        raise SystemExit("nothing was certified on a validation set: set reserve.validation and ask for clients")


def search(
    config: Path, question: Question, options: Sequence[str], fixed: Sequence[str], folder: Path
) -> Iterator[Found]:
    """Train every combination and read off what is certified of the validation set against this number of clients."""
    for settings in combinations(options):
        started = time.process_time()
        overrides = (*UNSEEN, *question.overrides, *fixed, *settings)
        result = run(config, overrides=overrides, out=folder / "run", force=True)
        yield Found(*question.read(result.metrics.curves), time.process_time() - started, settings)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--clients", type=int, required=True, help="attackers that shall change nothing")
    parser.add_argument("--trigger", type=float, help="norm of a trigger that these clients use together")
    parser.add_argument("--try", dest="options", action="append", default=[], metavar="KEY=VALUE,VALUE")
    parser.add_argument("--set", dest="fixed", action="append", default=[], metavar="KEY=VALUE")
    chosen = parser.parse_args(arguments)
    print("certified  accuracy  seconds  settings")
    best: Found | None = None
    question = Question(chosen.clients, chosen.trigger)
    with tempfile.TemporaryDirectory() as folder:
        try:
            for one in search(chosen.config, question, chosen.options, chosen.fixed, Path(folder)):
                best = max(best or one, one)
                print(one, flush=True)
        except CrflError as error:
            raise SystemExit(str(error)) from None
    print(f"best:\n{best}")


if __name__ == "__main__":
    main()
