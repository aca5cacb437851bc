"""`crfl divergence`: what is left of an attack in the end, by the paper's Theorem 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.cli.arguments import JsonOption, RunArgument, TrustOption

if TYPE_CHECKING:
    from crfl_experiments.commands.leftover import Leftover

SHOWN = 12
"""About so many rounds are printed."""

Deltas = Annotated[
    list[float] | None,
    typer.Option(
        "--delta",
        min=0.0,
        help="What an attacker moves its samples by; once, or once for each. Default: what was measured.",
        show_default=False,
    ),
]


def divergence(run: RunArgument, delta: Deltas = None, json: JsonOption = False, trust: TrustOption = False) -> None:
    """Show the KL divergence that the attack of RUN adds, what every later round leaves of it, and what votes tolerate.

    These are Theorems 2 and 1 of the CRFL paper: a reproduction, not a proof.
    """
    from dataclasses import asdict

    from pydantic_core import to_json

    from crfl_core.runs.results import load
    from crfl_experiments.commands.leftover import leftover

    found = leftover(load(run, trust=trust), delta or ())
    if json:
        shares = {name: found.covered(name) for name in found.budgets}
        typer.echo(to_json({**asdict(found), "covered": shares}, indent=2, inf_nan_mode="strings").decode())
        return
    for line in told(found):
        typer.echo(line)


def told(found: Leftover) -> list[str]:
    """Some rounds, the budget of every test set, and who is covered."""
    last = len(found.by_round)
    later = range(min(found.attacked), last + 1)
    shown = sorted({*later[:: max(1, len(later) // SHOWN)], *found.attacked, last})
    moved = ", ".join(f"{one:g}" for one in dict.fromkeys(found.deltas))
    lines = [f"{'round':>5} {'divergence':>14}"]
    for number in shown:
        note = f"   attacked, samples moved by {moved}" if number in found.attacked else ""
        lines.append(f"{number:>5} {found.by_round[number - 1]:>14.6g}{note}")
    lines.append("")
    for name, budgets in found.budgets.items():
        middle = sorted(budgets)[len(budgets) // 2]
        largest = max(budgets)
        lines.append(
            f"{name}: votes tolerate {middle:.4g} in the middle and {largest:.4g} at most; {found.covered(name):.1%} "
            f"of {len(budgets)} samples tolerate the {found.final:.4g} that is left (reproduction, not a proof)"
        )
    return lines
