"""Certified accuracy on MNIST: the paper's certificate beside each sound one. Prints tables for docs/certificates.md.

    crfl data fetch mnist
    python examples/mnist_table.py [DIRECTORY OF THE RUNS]

Two trainings of 100 rounds and 100 continuations of each: about half an hour on one core. An interrupted training goes
on where it was, and a finished one is only read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from crfl import RunResult, certify, resume, run
from crfl_core.extend import CertificateResult

HERE = Path(__file__).parent
VOTES = "continuations=80, selection=20"
ALL = (
    "certificates=[{type='paper'}, {type='pathwise-linear'}, {type='pathwise-smoothed'}, "
    f"{{type='tail', {VOTES}}}, {{type='postprocess', {VOTES}}}]"
)
# What the paper certifies: one client changes features and no labels, and is compared with one that scales, too.
PAPERS_QUESTION = [
    ALL,
    "dtype='float64'",
    "dataset.test_samples=10000",
    "threat.poison='features'",
    "threat.clean_world='scaled'",
]

RADII = {"feature": (0.1, 0.5, 1.0, 2.0, 5.0), "sample": (0.05, 0.2, 1.0), "client": (1, 2, 5, 10)}


def trained(config: Path, directory: Path, overrides: list[str]) -> RunResult:
    """Return the run of a config; train it if it was not trained before."""
    path = directory / config.stem
    return resume(path) if path.exists() else run(config, overrides=overrides, out=path)


def table(first: str, rows: Iterable[tuple[str, CertificateResult]], level: str) -> str:
    """Certified accuracy at several sizes of one level on the clean test set, as Markdown."""
    sizes = RADII[level]
    lines = [
        f"| {first} | accuracy | {' | '.join(f'{size:g}' for size in sizes)} |",
        f"| --- | --- | {' | '.join('---' for _ in sizes)} |",
    ]
    for name, one in rows:
        if one.level == level and one.test_set == "clean":
            right = one.guarantee.prediction == one.labels
            shares = [right.mean(), *((right & (one.guarantee.radius >= size)).mean() for size in sizes)]
            lines.append(f"| {name} | {' | '.join(f'{share:.3f}' for share in shares)} |")
    return "\n".join(lines)


def by_certificate(result: RunResult) -> Iterator[tuple[str, CertificateResult]]:
    """Return a row per certificate: its answer about the attack that ran."""
    return ((f"`{one.certificate}`", one) for one in result.certified)


def by_round(result: RunResult) -> Iterator[tuple[str, CertificateResult]]:
    """Return the answer of `pathwise-linear` for attacks in other rounds, without training."""
    for attacked in (10, 50, 80, 90):
        settings = [f"threat.rounds=[{attacked}]", "certificates={type='pathwise-linear', levels=['client']}"]
        yield from ((str(attacked), one) for one in certify(result, settings).certified)


def main(directory: Path) -> None:
    """Train what is missing and print."""
    paper = trained(HERE / "mnist.toml", directory, PAPERS_QUESTION)
    print(f"the paper's settings, feature level\n\n{table('certificate', by_certificate(paper), 'feature')}\n")
    ours = trained(HERE / "mnist-certified.toml", directory, [])
    for level in RADII:
        print(f"settings for certificates, {level} level\n\n{table('certificate', by_certificate(ours), level)}\n")
    print(f"and if another round is attacked, client level\n\n{table('round', by_round(ours), 'client')}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/mnist-table"))
