"""Every certified example, trained with three seeds: `python examples/certified/table.py [--out FOLDER] [NAME ...]`.

Prints one Markdown table, and writes it to FOLDER/table.md: the mean over the seeds of the accuracy on the test set
and of the share that is classified right whatever this number of clients does, by prediction and collectively; in
brackets the smallest of the seeds.
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
NAMES = tuple(sorted(path.stem for pattern in ("*-round*", "*-backdoor") for path in HERE.glob(f"{pattern}.toml")))
"""The examples: dataset, question, and what is different. The other files are what they share."""
HEADING = ("example", "accuracy", "attackers", "certified", "collective")
TRIGGERED = (0, 1, 3, 5)
"""Numbers of malicious clients beside which triggers are listed."""


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


def rows(name: str, runs: Sequence[RunResult]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of attackers, and one for the server alone."""
    clients = runs[0].ledger.facts.clients
    accuracy = spread([result.metrics.accuracy for result in runs])
    yield from ((name, accuracy, *cells) for cells in (trigger_rows(runs) or client_rows(runs)))
    alone = [own.accuracy for result in runs if (own := result.metrics.trusted_baseline) is not None]
    if alone:  # no client touches that model
        own = spread(alone)
        yield f"{name}: the server alone", own, f"{clients} of {clients}", own, ""


def client_rows(runs: Sequence[RunResult]) -> list[tuple[str, str, str]]:
    """Return attackers, certified accuracy and collective certified accuracy for each number of attackers."""
    curves = [answer(result) for result in runs]
    clients = runs[0].ledger.facts.clients
    found = []
    for place, radius in enumerate(curves[0].radii):
        certified = spread([curve.certified_accuracy[place] for curve in curves])
        together = [shares[radius] for result in runs if radius in (shares := collective(result))]
        found.append((f"{radius:g} of {clients}", certified, spread(together) if len(together) == len(runs) else ""))
    return found


def collective(result: RunResult) -> dict[float, float]:
    """Return the collective certified accuracy on the clean test set, by number of clients."""
    shares: dict[float, float] = {}
    for curve in result.metrics.collective:
        if curve.test_set == "clean":
            pairs = zip(curve.clients, curve.collective_accuracy, strict=True)
            shares |= {float(clients): share for clients, share in pairs if share is not None}
    return shares


def trigger_rows(runs: Sequence[RunResult]) -> list[tuple[str, str, str]]:
    """Return attackers with the norm of their trigger, and certified accuracy; nothing for other certificates."""
    curves = [curve for result in runs for curve in result.metrics.curves if curve.by_clients]
    curves = [curve for curve in curves if curve.test_set == "clean"]
    clients = runs[0].ledger.facts.clients
    return [
        (f"{number} of {clients}, trigger {norm:g}", spread([curve.by_clients[number][place] for curve in curves]), "")
        for number in TRIGGERED
        for place, norm in enumerate(curves[0].radii if curves else ())
        if number < len(curves[0].by_clients)
    ]


def as_line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


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
    lines = [as_line(HEADING), as_line(["---"] * len(HEADING))]
    for name in chosen.names:
        try:
            lines += map(as_line, rows(name, list(results(name, chosen.seeds, chosen.out, chosen.set))))
        except CrflError as error:
            print(f"{name}: {error}")  # such as missing files: the others are trained
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
