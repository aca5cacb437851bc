"""`crfl predict`: classes and certificates for new inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from zipfile import BadZipFile

import typer

from crfl_core.cli import arguments, echo, output

Data = Annotated[Path, typer.Argument(help="npz file with the inputs in `x`, one per row.", show_default=False)]
Out = Annotated[
    Path | None, typer.Option("--out", help="Write the answer here instead of printing it.", show_default=False)
]
Scaled = Annotated[bool, typer.Option("--scaled", help="Inputs are already scaled as the dataset's `scaling` would.")]


def predict(
    run: arguments.RunArgument,
    data: Data,
    out: Out = None,
    scaled: Scaled = False,
    json: arguments.JsonOption = False,
    trust: arguments.TrustOption = False,
) -> None:
    """Predict classes of new data, each with its certificates.

    Prints CSV or JSON, a row for every row of DATA.
    """
    from crfl_core.errors import DataError
    from crfl_core.files.atomic_files import write_output_file
    from crfl_core.reporting.csv_files import prediction_csv, prediction_json
    from crfl_core.runs.predict import predict as predict_inputs
    from crfl_core.runs.results import load

    result = load(run, trust=trust)
    try:
        with output.redirect_plugin_output():
            prediction = predict_inputs(result, read_inputs(data), scaled=scaled)
    except DataError as error:
        raise DataError(f"{data}: {error}") from error
    text = (prediction_json if json else prediction_csv)(prediction.classes, prediction.certified)
    if out is None:
        echo(text.decode(), nl=False)
        return
    write_output_file(out, text)


def read_inputs(path: Path):  # type: ignore[no-untyped-def]  # numpy is imported late
    """Read the array `x` of an npz file, or the array of an npy file."""
    import numpy as np

    from crfl_core.errors import DataError

    remedy = "save it with np.savez(file, x=inputs)"
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            if "x" in loaded:
                return loaded["x"]
            raise DataError(f"has no array `x`, found {', '.join(loaded) or 'none'}: {remedy}")
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}") from error
    except (ValueError, EOFError, BadZipFile) as error:
        raise DataError(f"is not an npz or npy file of plain numbers: {remedy}") from error
