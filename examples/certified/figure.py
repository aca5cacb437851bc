"""What is certified against attackers in every round, and what attacks leave of rules without a certificate.

    python examples/certified/figure.py

reads what table.py and attacked.py have measured, runs/certified, and draws docs/certificates/every-round.svg. Lines
are lower bounds: whatever that many clients do, at least this share of the test images is classified right. Marks are
upper bounds: an attack has been found that leaves no more.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from attacked import measured
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from crfl import RunResult, load

HERE = Path(__file__).parent
CERTIFIED = {
    "mnist-every-round": ("vote of 20 clients", "#0b4f8a", "-"),
    "mnist-every-round-100": ("vote of 100", "#2f80c3", "-"),
    "mnist-every-round-1000": ("vote of 1,000", "#85b8e0", "-"),
    "mnist-every-round-subsets": ("random subsets of 1,000 (Cao et al. 2021)", "#8a6d3b", "--"),
    "mnist-every-round-ball": ("one model of 1,000, ball rule", "#3d8b4f", "-"),
    "mnist-every-round-spectrum": ("one model of 1,000, spectrum rule", "#93c9a0", "-"),
}
"""Examples with the label, colour and dashes of their lines."""

ATTACKED = {
    "fedavg": ("FedAvg", "#b3261e", "o"),
    "rfa": ("RFA", "#d9822b", "s"),
    "krum": ("Krum", "#7b3fa0", "^"),
    "median": ("median", "#5f6368", "D"),
}
"""Rules with the label, colour and sign of their marks."""


def certified_shares(result: RunResult) -> NDArray[np.float64]:
    """Return the share of the test set that stays right against 0, 1, 2, ... clients, up to half of all."""
    (clean,) = (one for one in result.certified if one.test_set == "clean" and one.level == "client")
    right = clean.guarantee.prediction == clean.labels
    numbers = np.arange(result.ledger.facts.clients // 2 + 1)
    return np.array([(right & (clean.guarantee.radius >= number)).mean() for number in numbers])


def draw_certified(axes: Axes, folder: Path) -> None:
    """Draw a line for each example that was trained: the mean over its seeds."""
    for name, (label, colour, dashes) in CERTIFIED.items():
        shares = [certified_shares(load(path)) for path in sorted(folder.glob(f"{name}-[0-9]"))]
        if shares:
            mean = np.mean(shares, axis=0)
            attackers = np.arange(len(mean)) / (2 * (len(mean) - 1))
            shown = mean > 0
            axes.step(attackers[shown], mean[shown], dashes, where="post", color=colour, label=label)


def draw_attacked(axes: Axes, folder: Path) -> None:
    """Draw a mark for each rule and number of attackers: the accuracy that the worst attack left."""
    worst: dict[str, dict[float, float]] = defaultdict(dict)
    for case, share in measured(folder / "attacked.csv").items():
        attackers = 0.0 if case.attack == "none" else case.attackers / case.clients
        worst[case.rule][attackers] = min(share, worst[case.rule].get(attackers, 1.0))
    for rule, (label, colour, sign) in ATTACKED.items():
        if points := sorted(worst[rule].items()):
            axes.plot(*zip(*points, strict=True), sign, color=colour, label=f"{label}, attacked", alpha=0.8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/certified"), metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "docs" / "certificates" / "every-round.svg")
    chosen = parser.parse_args(arguments)
    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    axes = figure.subplots()
    draw_certified(axes, chosen.runs)
    draw_attacked(axes, chosen.runs)
    axes.set(xlabel="clients that attack in every round", ylabel="test images classified right", ylim=(0.0, 1.0))
    axes.set_xlim(-0.005, 0.5)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right upper", frameon=False, title="lines: certified; marks: what attacks left")
    with mpl.rc_context({"svg.hashsalt": "crfl", "svg.fonttype": "none"}):  # the same bytes for the same numbers
        figure.savefig(chosen.out, metadata={"Date": None} if chosen.out.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
