"""`crfl paper`: the CRFL paper, its figures and the radius of a single point."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.cli import echo
from crfl_core.cli.arguments import JsonOption, QuietOption, SetOption

if TYPE_CHECKING:
    from pydantic import ValidationError

    from crfl_core import CrflError
    from crfl_experiments.commands.radius_calculator import Calculation
    from crfl_experiments.paper import Reproduction

FAILED = 1
INTERRUPTED = 130

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FIGURE]...",
        help="A figure such as mnist/sigma, a dataset, or a figure on all datasets. Without one: all.",
        show_default=False,
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds each point is measured with.")]
Fast = Annotated[bool, typer.Option("--fast", help="Few test samples, and fewer, larger local steps.")]
Authors = Annotated[
    bool, typer.Option("--authors", help="As the authors' code does it, where the paper says something else.")
]
Sound = Annotated[bool, typer.Option(help="Put the same questions to a sound certificate as well.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for runs, pictures and the page.")]
Workers = Annotated[
    int | None, typer.Option(help="Processes, each with one thread; default: one per core.", show_default=False)
]
List = Annotated[bool, typer.Option("--list", help="Only list the figures.")]


def reproduce(
    figures: Names = None,
    seeds: Seeds = 5,
    fast: Fast = False,
    authors: Authors = False,
    sound: Sound = True,
    overrides: SetOption = None,
    out: Out = Path("reproduction"),
    workers: Workers = None,
    listing: List = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the figures of the paper and judge its claims about them.

    One page shows each claim beside the result, and what a sound certificate answers to the same question. The same
    command again resumes. Figures without their data are skipped; the page says how to get them. Exits with 1 if a run
    failed.
    """
    from pydantic_core import to_json

    from crfl_experiments.paper.reproduction import figure_titles
    from crfl_experiments.paper.reproduction import reproduce as run_figures

    if listing:
        known = figure_titles()
        width = max(map(len, known))
        plain = "\n".join(f"{name:<{width}}  {title}" for name, title in known.items())
        echo(to_json(known, indent=2).decode() if json else plain)
        return
    try:
        result = run_figures(
            figures or (),
            seeds=seeds,
            fast=fast,
            authors=authors,
            sound=sound,
            out=out,
            overrides=overrides or (),
            workers=workers,
            quiet=quiet or json,
        )
    except KeyboardInterrupt:
        echo("interrupted: the same command resumes", err=True)
        raise typer.Exit(INTERRUPTED) from None
    echo(to_json(result.to_json(), indent=2).decode() if json else verdict_lines(result, quiet=quiet))
    if result.failures:
        raise typer.Exit(FAILED)


def verdict_lines(result: Reproduction, *, quiet: bool) -> str:
    """Return the verdicts, failed cells and the path of the page.

    Each verdict has a line. With `quiet` the text is the path alone.
    """
    if quiet:
        return str(result.path)
    lines = [
        f"{section.name}: {finding.tested}: {finding.said}"
        for section in result.sections
        for finding in section.findings
    ]
    failed = [f"failed: {name}: {reason}" for name, reason in result.failures.items()]
    return "\n".join([*lines, *failed, f"page: {result.path}"])


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
    """Print the bound of Theorem 2 and the answer of Theorem 1.

    Theorem 2 is about the deltas, Theorem 1 about the vote.
    """
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


paper = typer.Typer(no_args_is_help=True, help="Reproduce the figures and radii of the CRFL paper.")
paper.command()(reproduce)
paper.command()(radius)
