"""`crfl attack`: what certificates promise, against attackers that know where to push."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.cli import arguments, echo, output

if TYPE_CHECKING:
    from rich.table import Table

    from crfl_core.runs.attack import AttackReport

FLIPPED = 2

Clients = Annotated[
    int | None,
    typer.Option(
        "--clients", metavar="R", min=1, help="Malicious clients; unset: as the run's threat.", show_default=False
    ),
]
ReplaysOption = Annotated[
    int, typer.Option("--replays", metavar="K", min=1, help="Replays of training per certificate and level.")
]
CertificateOption = Annotated[
    list[str] | None,
    typer.Option("--certificate", metavar="NAME", help="Attack this certificate only.", show_default=False),
]


def attack(
    run: arguments.RunArgument,
    clients: Clients = None,
    replays: ReplaysOption = 3,
    certificates: CertificateOption = None,
    json: arguments.JsonOption = False,
    trust: arguments.TrustOption = False,
) -> None:
    """Try to refute what RUN certifies, in attacked replays.

    Attackers know data, batches and noise, and push where the certificates have the least slack. Exit with 2 if a
    certified prediction changes.
    """
    output.show_start(quiet=json)
    from crfl_core.runs.attack import attack_certificates
    from crfl_core.runs.results import load

    with output.redirect_plugin_output():
        report = attack_certificates(
            load(run, trust=trust),
            clients=clients,
            replays=replays,
            certificates=certificates,
            trackers=output.progress(quiet=json),
        )
    if json:
        echo(report.model_dump_json(indent=2))
    else:
        show_report(report)
    if report.flipped:
        raise typer.Exit(FLIPPED)


def show_report(report: AttackReport) -> None:
    """Print what was attacked, what could not be, and the verdict."""
    console = output.terminal()
    if report.statements:
        console.print(statement_table(report))
    for name, reason in report.not_attacked.items():
        console.print(f"not attacked: {name}: {reason}", markup=False, soft_wrap=True)
    if report.statements:
        console.print(describe_verdict(report), soft_wrap=True)


def statement_table(report: AttackReport) -> Table:
    """Return one row for each statement that was attacked."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("certificate")
    table.add_column("attack")
    for heading in ("replays", "certified", "flipped", "others changed", "of the bound"):
        table.add_column(heading, justify="right")
    for one in report.statements:
        size = f"{one.clients} clients" if one.clients != 1 else "1 client"
        if one.level != "client":
            size += f", {'share' if one.level == 'sample' else 'distance'} {one.size:.3g}"
        ratio = "" if one.strongest is None else f"{one.strongest:.3f}"
        numbers = (one.replays, one.certified, one.flipped, one.changed)
        what = f"{one.attack}, {size}, {one.rounds}"
        table.add_row(f"{one.certificate} ({one.level})", what, *map(str, numbers), ratio)
    return table


def describe_verdict(report: AttackReport) -> str:
    """Describe the outcome in one sentence.

    >>> from crfl_core.runs.attack import AttackReport
    >>> describe_verdict(AttackReport(statements=(), not_attacked={}))
    '0 certified predictions attacked, 0 flipped'
    """
    sentence = f"{report.certified} certified predictions attacked, {report.flipped} flipped"
    if report.strongest is not None:
        sentence += f"; the strongest attack reached {report.strongest:.3f} of its bound"
    if undecided := sum(one.undecided for one in report.statements):
        sentence += f"; sampled votes leave {undecided} undecided"
    return sentence
