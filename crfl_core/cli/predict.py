"""`crfl predict`: classes and certificates for new inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import arguments, echo, output

Data = Annotated[
    Path,
    typer.Argument(
        help="New inputs: an npz file with one in each row of `x`, or a CSV file for a run trained on CSV.",
        show_default=False,
    ),
]
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

    Prints CSV or JSON, a row for every row of DATA: names of classes, and certified radii.
    """
    from crfl_core.errors import DataError
    from crfl_core.files.atomic_files import write_output_file
    from crfl_core.reporting.csv_files import prediction_csv, prediction_json
    from crfl_core.runs.predict import predict as predict_inputs
    from crfl_core.runs.results import load

    result = load(run, trust=trust)
    try:
        with output.redirect_plugin_output():
            prediction = predict_inputs(result, data, scaled=scaled)
    except DataError as error:
        raise error if str(error).startswith(str(data)) else DataError(f"{data}: {error}") from error
    text = (prediction_json if json else prediction_csv)(prediction)
    if out is None:
        echo(text.decode(), nl=False)
        return
    write_output_file(out, text)
