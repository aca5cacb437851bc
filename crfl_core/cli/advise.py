"""`crfl advise`: three questions, then a config."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import echo


class When(StrEnum):
    """When clients may attack."""

    ONE_EARLY = "one-early"
    ANY = "any"
    EVERY = "every"


class Trained(StrEnum):
    """What is trained."""

    LINEAR = "linear"
    NETWORK = "network"


Clients = Annotated[
    str,
    typer.Option(
        prompt="Which clients may attack? For example 5 of 20, or the ids 0,3,7 of 20",
        help="How many of how many clients may attack, such as '5 of 20', or their ids, such as '0,3,7 of 20'.",
    ),
]
Moment = Annotated[
    When,
    typer.Option(
        prompt="When? In one early round, in any one round, or in every round",
        help="In one early round, in any one round, or in every round.",
    ),
]
Model = Annotated[
    Trained,
    typer.Option(
        prompt="What do you train? A linear model on fixed features, or a neural network",
        help="A linear model on fixed features, or a neural network.",
    ),
]
Dataset = Annotated[str, typer.Option(help="Name of the dataset.")]
Out = Annotated[Path, typer.Option(help="The config to write.")]


def advise(
    clients: Clients,
    when: Moment,
    model: Model,
    dataset: Dataset = "digits",
    out: Out = Path("advice.toml"),
) -> None:
    """Answer three questions; get a config whose certificate fits.

    The questions: which clients may attack, when, and what is trained.
    """
    from crfl_core.cli.advice import Answers, check_dataset, choose_certificate, config_text, parse_clients, save_config

    attackers, total = parse_clients(clients)
    check_dataset(dataset)
    answers = Answers(attackers=attackers, clients=total, when=when.value, model=model.value, dataset=dataset)
    way = choose_certificate(answers)
    save_config(config_text(answers, way, out.stem), out)
    echo(f"{out}: {way.certificate}\n\nIt says of a certified prediction: {way.statement}.\nWhy: {way.reason}.")
    echo(f"\n  crfl run {out}\n  crfl show runs/{out.stem}")
