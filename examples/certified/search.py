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


def search(config: Path, clients: int, options: Sequence[str], fixed: Sequence[str], folder: Path) -> Iterator[Found]:
    """Train every combination and read off what is certified of the validation set against this number of clients."""
    for settings in combinations(options):
        started = time.process_time()
        overrides = (*UNSEEN, f"evaluation.radii=[{clients}]", *fixed, *settings)
        result = run(config, overrides=overrides, out=folder / "run", force=True)
        curve = validation(result.metrics.curves)
        certified = dict(zip(curve.radii, curve.certified_accuracy, strict=True))
        yield Found(certified[clients], curve.accuracy, time.process_time() - started, settings)


def validation(curves: Sequence[Curve]) -> Curve:
    """Return the answer about clients on the validation set."""
    found = [curve for curve in curves if curve.test_set == "validation" and curve.level == "client"]
    if not found:
        raise SystemExit("nothing was certified on a validation set: set reserve.validation and ask for clients")
    return found[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--clients", type=int, required=True, help="attackers that shall change nothing")
    parser.add_argument("--try", dest="options", action="append", default=[], metavar="KEY=VALUE,VALUE")
    parser.add_argument("--set", dest="fixed", action="append", default=[], metavar="KEY=VALUE")
    chosen = parser.parse_args(arguments)
    print("certified  accuracy  seconds  settings")
    best: Found | None = None
    with tempfile.TemporaryDirectory() as folder:
        try:
            for one in search(chosen.config, chosen.clients, chosen.options, chosen.fixed, Path(folder)):
                best = max(best or one, one)
                print(one, flush=True)
        except CrflError as error:
            raise SystemExit(str(error)) from None
    print(f"best:\n{best}")


if __name__ == "__main__":
    main()
