"""`crfl verify`: whether the files of a run are those that it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.cli import echo
from crfl_core.cli.arguments import JsonOption, RunArgument, TrustOption

if TYPE_CHECKING:
    from crfl_core.runs.verification import Findings

NOT_AS_WRITTEN = 2
SUCCESS = {
    "written": "files match their recorded digests",
    "repeated": "files come out the same when the run is repeated",
}
RECEIPT_FITS = "this is the run of the receipt"

Recompute = Annotated[bool, typer.Option("--recompute", help="Also train again, and compare the bits of every file.")]
ReceiptFile = Annotated[Path | None, typer.Option("--receipt", help="Also compare with this receipt.")]


def verify(
    run: RunArgument,
    recompute: Recompute = False,
    receipt: ReceiptFile = None,
    json: JsonOption = False,
    trust: TrustOption = False,
) -> None:
    """Compare every file of a run with its recorded digest.

    Exit 2 if one is missing or changed.

    Without a receipt this finds damage, not forgery: a person who can write to RUN can write a list that fits.
    """
    from crfl_core.runs.run_directory import RunDirectory
    from crfl_core.runs.verification import check_receipt, check_run, recompute_run

    directory = RunDirectory(run)
    found = {"written": check_run(directory)}
    remarks: list[str] = []
    if receipt is not None and not list_problems(found):
        check_receipt(directory, receipt)
        remarks.append(RECEIPT_FITS)
    if recompute and not list_problems(found):
        found["repeated"] = recompute_run(directory, trust=trust)
    if json:
        from pydantic_core import to_json

        echo(to_json(found | ({"receipt": remarks} if remarks else {}), indent=2).decode())
    else:
        print_findings(found, remarks)
    if list_problems(found):
        raise typer.Exit(NOT_AS_WRITTEN)


def list_problems(found: dict[str, Findings]) -> list[str]:
    """List everything that is wrong."""
    return [problem for findings in found.values() for problem in findings.problems]


def print_findings(found: dict[str, Findings], receipt: list[str]) -> None:
    """Print findings as sentences.

    They are of the files, of the receipt, and of the repeated run.
    """
    for name, findings in found.items():
        for remark in findings.remarks:
            echo(remark)
        for problem in findings.problems:
            echo(f"error: {problem}", err=True)
        if not findings.problems:
            echo(f"{findings.files} {SUCCESS[name]}")
        if name == "written":
            for remark in receipt:
                echo(remark)
