"""Every certified example, trained with three seeds: `python examples/certified/table.py [--out FOLDER] [NAME ...]`.

Prints one Markdown table, and writes it to FOLDER/table.md: the mean over the seeds of the accuracy on the test set
and of the share that is classified right whatever this number of clients does; in brackets the smallest of the seeds.
A seed decides everything: which samples are reserved, who holds what, and the order of batches. What has been trained
before is only read, and an interrupted training resumes where it was.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from crfl import CrflError, Curve, RunResult, resume, run

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in HERE.glob("*-round*.toml")))
"""The examples: dataset, question, and what is different. The other files are what they share."""


def results(name: str, seeds: Sequence[int], folder: Path, overrides: Sequence[str]) -> Iterator[RunResult]:
    """Return the runs of an example; train those that were not trained before."""
    for seed in seeds:
        path = folder / f"{name}-{seed}"
        if path.exists():
            yield resume(path)
        else:
            settings = (*overrides, f"seed={seed}", "storage.figures=[]")
            yield run(HERE / f"{name}.toml", overrides=settings, out=path)


def answer(result: RunResult) -> Curve:
    """Return the curve about clients on the clean test set."""
    for curve in result.metrics.curves:
        if curve.test_set == "clean" and curve.level == "client":
            return curve
    raise SystemExit(f"{result.path}: nothing was certified against clients: {result.metrics.refused}")


def rows(name: str, runs: Sequence[RunResult]) -> Iterator[str]:
    """Yield a line for each number of attackers."""
    curves = [answer(result) for result in runs]
    clients, accuracy = runs[0].ledger.facts.clients, spread([curve.accuracy for curve in curves])
    for place, radius in enumerate(curves[0].radii):
        certified = spread([curve.certified_accuracy[place] for curve in curves])
        yield f"| {name} | {accuracy} | {radius:g} of {clients} | {certified} |"
    alone = [own.accuracy for result in runs if (own := result.metrics.trusted_baseline) is not None]
    if alone:  # no client touches that model
        own = spread(alone)
        yield f"| {name}: the server alone | {own} | {clients} of {clients} | {own} |"


def spread(shares: Sequence[float]) -> str:
    """Return the mean, and the smallest if there are several.

    >>> spread([0.98]), spread([0.98, 0.99])
    ('.9800', '.9850 [.9800]')
    """
    mean = f"{fmean(shares):.4f}".lstrip("0")
    return mean if len(shares) == 1 else f"{mean} [{min(shares):.4f}]".replace("[0", "[")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, train what is missing, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--out", type=Path, default=Path("runs/certified"), metavar="FOLDER")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    chosen = parser.parse_args(arguments)
    lines = ["| example | accuracy | attackers | certified |", "| --- | --- | --- | --- |"]
    for name in chosen.names:
        try:
            lines += rows(name, list(results(name, chosen.seeds, chosen.out, chosen.set)))
        except CrflError as error:
            print(f"{name}: {error}")  # such as missing files: the others are trained
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
