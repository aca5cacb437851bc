"""`crfl paper`: the CRFL paper, its figures and the radius of a single point."""

from __future__ import annotations

import typer

from crfl_experiments.commands.radius import radius
from crfl_experiments.commands.reproduce import reproduce

paper = typer.Typer(no_args_is_help=True, help="Reproduce the figures and radii of the CRFL paper.")
paper.command()(reproduce)
paper.command()(radius)
