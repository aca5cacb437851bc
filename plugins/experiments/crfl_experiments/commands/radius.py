"""`crfl paper radius`: a calculator for a single point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.cli import echo
from crfl_core.cli.arguments import JsonOption

if TYPE_CHECKING:
    from pydantic import ValidationError

    from crfl_core import CrflError
    from crfl_experiments.commands.radius_calculator import Calculation


def radius(
    p_a: Annotated[float, typer.Option(help="Lower bound on the probability of the first class.")],
    p_b: Annotated[float, typer.Option(help="Upper bound on the probability of any other.")],
    noise_std: Annotated[float, typer.Option(help="Noise of the server and at test time, sigma.")],
    clip_norm: Annotated[float, typer.Option(help="Clip norm in the attacked round, rho.")],
    weight: Annotated[float, typer.Option(help="Aggregation weight of an attacker, p.")],
    learning_rate: Annotated[float, typer.Option(help="Local learning rate, eta.")],
    steps: Annotated[int, typer.Option(help="Local steps, tau.")],
    poison_ratio: Annotated[float, typer.Option(help="Poisoned share of a batch, q/n.")],
    scale: Annotated[float, typer.Option(help="Factor on a malicious update, gamma.")] = 1.0,
    attackers: Annotated[int, typer.Option(help="Attackers, all alike, R.")] = 1,
    rounds_after: Annotated[int, typer.Option(help="Rounds after the attacked one.")] = 0,
    input_norm: Annotated[float, typer.Option(help="Bound on the norm of all inputs, bias included, B.")] = 1.0,
    start_norm: Annotated[
        float | None, typer.Option(help="Spectral norm of the broadcast weights; default: the clip norm.")
    ] = None,
    delta: Annotated[
        list[float] | None,
        typer.Option(
            help="What an attacker moves its samples by; once, or once for each attacker. Shows the paper's Theorems 1 "
            "and 2."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Calculate the feature radius of one prediction, and each term."""
    from pydantic import ValidationError

    from crfl_experiments.commands import radius_calculator

    given = {**locals(), "deltas": tuple(delta or ())}
    try:
        point = radius_calculator.Point.model_validate(
            {name: given[name] for name in radius_calculator.Point.model_fields}
        )
    except ValidationError as error:
        raise point_error(error) from error
    result = radius_calculator.radius(point)
    if json:
        from pydantic_core import to_json

        echo(to_json(result, indent=2, inf_nan_mode="strings").decode())
        return
    for term in result.terms:
        echo(f"{term.symbol:<12} {term.value:>14.8g}   {term.meaning}")
    echo()
    for rule, value in result.radii.items():
        echo(f"radius {value:>18.8g}   {rule}")
    if result.divergence:
        show_divergence(result)


def show_divergence(result: Calculation) -> None:
    """Print what Theorem 2 says of the deltas, and Theorem 1 of the vote."""
    first = result.divergence[0]
    last = result.divergence[-1]
    eps = {t.symbol: t.value for t in result.terms}["eps"]
    said = "the vote has no majority" if result.covered is None else "covered" if result.covered else "not covered"
    echo()
    echo(f"KL attacked  {first:>12.8g}   divergence that these deltas add in the attacked round (Theorem 2)")
    echo(f"KL final     {last:>12.8g}   what {len(result.divergence) - 1} later rounds leave of it")
    echo(f"eps - KL     {eps - last:>12.8g}   {said} by Theorem 1 (reproduction, not a proof)")


def point_error(error: ValidationError) -> CrflError:
    """Build an error with a sentence for every invalid value."""
    from crfl_core import CrflError

    sentences = []
    for detail in error.errors():
        should = detail["msg"].replace("Input should", "must")
        where = f"{detail['loc'][0]} = {detail['input']}" if detail["loc"] else "delta"
        sentences.append(f"{where}: {should}")
    return CrflError("\n".join(sentences))
