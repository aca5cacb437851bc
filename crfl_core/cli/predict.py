"""`crfl predict`: classes and certificates for new inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import arguments

Data = Annotated[Path, typer.Argument(help="npz file with the inputs in `x`, one per row.", show_default=False)]
Out = Annotated[
    Path | None, typer.Option("--out", help="Write the CSV here instead of printing it.", show_default=False)
]
Scaled = Annotated[bool, typer.Option("--scaled", help="Inputs are already scaled as the dataset's `scaling` would.")]


def predict(run: arguments.Run, data: Data, out: Out = None, scaled: Scaled = False) -> None:
    """Predict the class of every row of DATA, with what each certificate says about it, as CSV."""
    from crfl_core import api
    from crfl_core.report.files import prediction_csv

    prediction = api.predict(api.load(run), read_inputs(data), scaled=scaled)
    text = prediction_csv(prediction.classes, prediction.certified)
    if out is None:
        typer.echo(text.decode(), nl=False)
    else:
        out.write_bytes(text)


def read_inputs(path: Path):  # type: ignore[no-untyped-def]  # numpy is imported late
    """The array `x` of an npz file, or the array of an npy file."""
    import numpy as np

    from crfl_core.errors import DataError

    try:
        loaded = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as npz or npy: {error}") from error
    if isinstance(loaded, np.ndarray):
        return loaded
    if "x" not in loaded:
        raise DataError(
            f"{path}: has no array `x`, found {', '.join(loaded) or 'none'}: save it with np.savez(file, x=inputs)"
        )
    return loaded["x"]
