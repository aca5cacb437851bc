"""A command for crfl."""

from __future__ import annotations

from typing import Annotated

import typer
from crfl_core.extend import RunArgument

Radius = Annotated[float, typer.Option(min=0.0, help="Radius beyond which predictions have to be certified.")]


def my_plugin(run: RunArgument, radius: Radius = 0.0) -> None:
    """Print which share of the test samples each certificate of a finished RUN guarantees.

    A radius between two points of a certificate's curve counts as the larger one.
    """
    from crfl import load  # brings PyTorch along: imported when the command is called

    for curve in load(run).metrics.curves:
        rates = [rate for at, rate in zip(curve.radii, curve.certified_rate, strict=True) if at >= radius]
        typer.echo(f"{max(rates, default=0.0):.3f}  {curve.certificate}, {curve.level} level, {curve.test_set} samples")
