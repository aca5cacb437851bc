"""`crfl receipt`: a small file that stands for a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from crfl_core.extend import RunArgument

Sign = Annotated[
    Path | None,
    typer.Option(
        "--sign", metavar="KEY", help="Sign with this Ed25519 private key, PEM or OpenSSH.", show_default=False
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Where to write; default: RUN.receipt.json.", show_default=False)
]


def receipt(run: RunArgument, sign: Sign = None, out: Out = None) -> None:
    """Write the digests of config, data, model, ledger and certificates of a finished RUN, and its versions, to a file.

    `crfl verify RUN --receipt FILE` says whether a directory is the run of a receipt.
    """
    from crfl_core.cli import run_checks as checking
    from crfl_core.cli.receipts import signed_part
    from crfl_core.errors import StoreError
    from crfl_core.extend import DataError
    from crfl_core.runs.receipts import receipt_of
    from crfl_core.runs.run_directory import RunDirectory

    directory = RunDirectory(run)
    content = receipt_of(directory)
    if problems := checking.check(directory).problems:
        raise StoreError(problems[0])
    if sign is not None:
        from crfl_core.cli import signing

        content["signature"] = signing.sign(sign, signed_part(content))
    target = out or Path(f"{run.resolve()}.receipt.json")
    try:
        target.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"{target}: cannot be written: {error.strerror}: choose another --out") from error
    typer.echo(str(target))
