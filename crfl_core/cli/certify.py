"""`crfl certify`: other questions to a finished run."""

from __future__ import annotations

from typing import Annotated

import typer

from crfl_core.cli import arguments, completion, output

QuestionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Ask with another setting of threat, votes, certificates or evaluation.radii, e.g. threat.clients=3.",
        show_default=False,
        autocompletion=completion.settings,
    ),
]
Save = Annotated[
    str | None, typer.Option("--save", metavar="NAME", help="Also write RUN/what-if/NAME/.", show_default=False)
]
AnyRound = Annotated[bool, typer.Option("--any-round", help="Attacks in any one round.")]
AtMost = Annotated[
    int | None,
    typer.Option(
        "--rounds-at-most", metavar="K", min=1, help="Attacks in at most K unknown rounds.", show_default=False
    ),
]
EveryRound = Annotated[bool, typer.Option("--every-round", help="Attacks in every round.")]


def certify(
    run: arguments.RunArgument,
    overrides: QuestionOption = None,
    any_round: AnyRound = False,
    rounds_at_most: AtMost = None,
    every_round: EveryRound = False,
    save: Save = None,
    full: arguments.FullOption = False,
    json: arguments.JsonOption = False,
    trust: arguments.TrustOption = False,
) -> None:
    """Certify a finished run for another threat, without training.

    Settings of threat, votes and certificates can change. Three clients in any one round:

    crfl certify RUN --set threat.clients=3 --any-round
    """
    output.show_start(quiet=json)
    from crfl_core.runs import certify
    from crfl_core.runs.results import load

    asked: list[certify.Attacked] = [] if rounds_at_most is None else [rounds_at_most]
    if any_round:
        asked.append("any")
    if every_round:
        asked.append("every")
    if len(asked) > 1:
        raise typer.BadParameter("give one of --any-round, --rounds-at-most and --every-round")
    with output.redirect_plugin_output():
        result = certify.certify(
            load(run, trust=trust),
            overrides or (),
            rounds=asked[0] if asked else None,
            save=save,
            trackers=output.progress(quiet=json),
        )
    output.show_what_if(result, full=full, json=json)
    output.exit_if_refused(result.curves, result.refused)
