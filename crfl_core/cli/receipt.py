"""`crfl receipt`: a small file that stands for a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import echo
from crfl_core.cli.arguments import RunArgument

Out = Annotated[
    Path | None, typer.Option("--out", help="Where to write; default: RUN.receipt.json.", show_default=False)
]


def receipt(run: RunArgument, out: Out = None) -> None:
    """Write the digests of a finished run to a file.

    They are those of config, data, model, ledger and certificates; the versions are recorded too.
    `crfl verify RUN --receipt FILE` tells whether a directory is the run of a receipt.
    """
    from crfl_core.errors import StoreError
    from crfl_core.files.atomic_files import write_output_file
    from crfl_core.runs.run_directory import RunDirectory
    from crfl_core.runs.verification import build_receipt, check_run

    directory = RunDirectory(run)
    content = build_receipt(directory)
    if problems := check_run(directory).problems:
        raise StoreError(problems[0])
    target = out or Path(f"{run.resolve()}.receipt.json")
    write_output_file(target, json.dumps(content, indent=2).encode() + b"\n")
    echo(str(target))
