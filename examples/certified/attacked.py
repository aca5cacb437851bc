"""What one model really loses to attackers in every round: `python examples/certified/attacked.py mnist`.

The other side of the certificates. The same data and features, mnist.toml or another file beside it, and one model that
all clients train: rules without a certificate, under attacks in every round. A cell is the accuracy on the test set,
and the last column has the worst of a row. Nothing is promised about attacks that are not in this table. What was
measured before is read from FOLDER/attacked.csv, and the rest is added to it.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from crfl import run

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
    "sign-flip": "rounds={first=1}, scale=10.0",
    "inner-product-manipulation": "rounds={first=1}, epsilon=5.0",
    "min-max": "rounds={first=1}, perturbation='unit'",
    "certificate-seeking": "rounds={first=2}, bound='honest'",
}
"""Attacks with their options. The last one begins when there are predictions to change."""

ONE_MODEL = (
    "rounds=10",
    "training={learning_rate=40.0, steps=5, batch_size=3000, weight_decay=0.0003}",
    "certificates=[]",
    "storage.figures=[]",
)


class Case(NamedTuple):
    """A rule under attack by that many clients, or Krum that expects that many."""

    base: str
    rule: str
    attack: str
    attackers: int
    clients: int


def accuracy(case: Case, settings: Sequence[str]) -> float:
    """Return the accuracy of a rule's model after an attack."""
    rule = RULES[case.rule]
    changes = [*ONE_MODEL, f"partition={{type='iid', clients={case.clients}}}"]
    changes.append(f"aggregation=[{rule % case.attackers if '%d' in rule else rule}]")
    if (options := ATTACKS[case.attack]) is not None:
        changes.append(f"attack={{type='{case.attack}', clients={case.attackers}, {options}}}")
    with tempfile.TemporaryDirectory() as folder:
        path = HERE / f"{case.base}.toml"
        return run(path, overrides=[*changes, *settings], out=Path(folder) / "run").metrics.accuracy


def measured(file: Path) -> dict[Case, float]:
    """Read the measurements that a file already has; none if there is no file."""
    if not file.exists():
        return {}
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [list(row.values()) for row in csv.DictReader(lines)]
    return {Case(*row[:3], int(row[3]), int(row[4])): float(row[5]) for row in rows}


def write(file: Path, found: dict[Case, float]) -> None:
    """Write all measurements, one per line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow((*Case._fields, "accuracy"))
        writer.writerows((*case, share) for case, share in found.items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, train what is missing, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", default="mnist", help="a file here that says which data and features")
    parser.add_argument("--attackers", nargs="+", type=int, default=[1, 5, 8])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--out", type=Path, default=Path("runs/certified"), metavar="FOLDER")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    chosen = parser.parse_args(arguments)
    found = measured(chosen.out / "attacked.csv")
    print(f"| rule | attackers | {' | '.join(chosen.attacks)} | worst |\n| --- |{' --- |' * (len(chosen.attacks) + 2)}")
    for rule in chosen.rules:
        for attackers in chosen.attackers:
            # Without an attack, only a rule that is told their number trains otherwise for another one.
            absent = attackers if "%d" in RULES[rule] else 0
            numbers = [absent if attack == "none" else attackers for attack in chosen.attacks]
            cases = [
                Case(chosen.base, rule, attack, number, chosen.clients)
                for attack, number in zip(chosen.attacks, numbers, strict=True)
            ]
            for case in cases:
                if case not in found:
                    found[case] = accuracy(case, chosen.set)
                    write(chosen.out / "attacked.csv", found)
            shares = [found[case] for case in cases]
            cells = (f"{share:.3f}".lstrip("0") for share in (*shares, min(shares)))
            print(f"| `{rule}` | {attackers} of {chosen.clients} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
