"""What one model really loses to attackers in every round: `python examples/certified/attacked.py mnist --attackers 5`.

The other side of the certificates. The same data and features, mnist.toml or another file beside it, and one model that
all clients train: rules without a certificate, under attacks in every round. A cell is the accuracy on the test set,
and the last column has the worst of a row. Nothing is promised about attacks that are not in this table.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from crfl_core import run

HERE = Path(__file__).parent
RULES = {
    "fedavg": "{type='fedavg'}",
    "rfa": "{type='rfa'}",
    "krum": "{type='krum', f=%d}",
    "median": "{type='median'}",
}
"""The last step of an aggregation; `%d` is the number of attackers."""

ATTACKS = {
    "none": None,
    "sign-flip": "scale=10.0",
    "inner-product-manipulation": "epsilon=5.0",
    "min-max": "perturbation='unit'",
    "certificate-seeking": "bound='honest'",
}
"""Attacks with their options."""

ONE_MODEL = (
    "rounds=10",
    "training={learning_rate=20.0, steps=10, batch_size=3000, weight_decay=0.0003}",
    "certificates=[]",
    "storage.figures=[]",
)


def accuracy(base: Path, rule: str, attack: str, attackers: int, settings: Sequence[str]) -> float:
    """What the model of a rule is worth after an attack."""
    aggregation = RULES[rule] % attackers if "%d" in RULES[rule] else RULES[rule]
    changes = [*ONE_MODEL, f"aggregation=[{aggregation}]", *settings]
    if (options := ATTACKS[attack]) is not None:
        changes.append(f"attack={{type='{attack}', clients={attackers}, rounds={{first=1}}, {options}}}")
    with tempfile.TemporaryDirectory() as folder:
        return run(base, overrides=changes, out=Path(folder) / "run").metrics.accuracy


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", default="mnist", help="a file here that says which data and features")
    parser.add_argument("--attackers", type=int, default=5)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    chosen = parser.parse_args(arguments)
    settings = [f"partition={{type='iid', clients={chosen.clients}}}", *chosen.set]
    print(f"| rule | {' | '.join(chosen.attacks)} | worst |\n| --- |{' --- |' * (len(chosen.attacks) + 1)}")
    for rule in chosen.rules:
        found = [
            accuracy(HERE / f"{chosen.base}.toml", rule, attack, chosen.attackers, settings)
            for attack in chosen.attacks
        ]
        cells = (f"{share:.3f}".lstrip("0") for share in (*found, min(found)))
        print(f"| `{rule}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
