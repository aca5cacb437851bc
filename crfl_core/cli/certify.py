"""`crfl certify`: other questions to a finished run."""

from __future__ import annotations

from typing import Annotated

import typer

from crfl_core.cli import arguments, output

QuestionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Ask with another setting of threat, votes, certificates or evaluation.radii, e.g. threat.clients=3.",
        show_default=False,
    ),
]
Save = Annotated[
    str | None, typer.Option("--save", metavar="NAME", help="Also write RUN/what-if/NAME/.", show_default=False)
]


def certify(
    run: arguments.RunArgument,
    overrides: QuestionOption = None,
    save: Save = None,
    trust: arguments.TrustOption = False,
) -> None:
    """Certify a finished RUN again with other settings of threat, votes or certificates; nothing is trained again."""
    from crfl_core import api

    with output.plugins_at_work():
        result = api.certify(api.load(run, trust=trust), overrides or (), save=save)
    output.show_what_if(result)
