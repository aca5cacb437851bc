"""`crfl advise`: a few questions, then a config."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from crfl_core.cli import echo

if TYPE_CHECKING:
    from crfl_core.cli.own_data import OwnData

T = TypeVar("T")


class When(StrEnum):
    """When clients may attack."""

    ONE_EARLY = "one-early"
    ANY = "any"
    EVERY = "every"


class Trained(StrEnum):
    """Model to train."""

    LINEAR = "linear"
    NETWORK = "network"


class Spread(StrEnum):
    """Spread of classes over clients."""

    ALIKE = "alike"
    DIFFERENT = "different"


Clients = Annotated[
    str | None,
    typer.Option(
        help="How many of how many clients may attack, such as '5 of 20', or their ids, such as '0,3,7 of 20'.",
        show_default=False,
    ),
]
Moment = Annotated[
    When | None, typer.Option(help="In one early round, in any one round, or in every round.", show_default=False)
]
Model = Annotated[
    Trained | None, typer.Option(help="A linear model on fixed features, or a neural network.", show_default=False)
]
OwnFile = Annotated[
    Path | None,
    typer.Option("--data", help="Your samples: a .csv, .csv.gz, .parquet or .npz file.", show_default=False),
]
Label = Annotated[
    str | None, typer.Option(help="Column or array of the labels; default: label, or y.", show_default=False)
]
Group = Annotated[
    str | None,
    typer.Option(help="Column or array that names the owner of each sample; owners are clients.", show_default=False),
]
Heterogeneity = Annotated[
    Spread | None,
    typer.Option(help="Without --group: whether clients have the same classes; default: alike.", show_default=False),
]
Dataset = Annotated[str | None, typer.Option(help="Name of a dataset; default: digits.", show_default=False)]
Out = Annotated[Path, typer.Option(help="The config to write.")]


def advise(
    clients: Clients = None,
    when: Moment = None,
    model: Model = None,
    data: OwnFile = None,
    label: Label = None,
    group: Group = None,
    heterogeneity: Heterogeneity = None,
    dataset: Dataset = None,
    out: Out = Path("advice.toml"),
) -> None:
    """Answer a few questions; get a config whose certificate fits.

    Which clients may attack, when, and what is trained on which data. What is not given is asked, and answers are
    checked as they are typed.

    Example: crfl advise --data hospitals.csv --label outcome --group site
    """
    from crfl_core.cli.advice import (
        Answers,
        advice_notes,
        check_dataset,
        choose_certificate,
        config_text,
        parse_clients,
        save_config,
    )
    from crfl_core.cli.own_data import AdviceError, read_own_data

    is_asking = None in (clients, when, model)
    if data is not None and dataset is not None:
        raise AdviceError("--data and --dataset: give one of them")
    check_out(out)
    own = None if data is None else read_own_data(data, label, group)
    if is_asking and data is None and dataset is None:
        own = ask_for_data()
    if own is not None:
        echo(f"{own.path}: {own.describe()}{'; ' * bool(own.group)}{own.describe_heterogeneity()}")
    name = dataset or "digits"
    if own is None:
        check_dataset(name)

    def answers_for(text: str) -> Answers:
        attackers, total = parse_clients(text)
        made = Answers(attackers=attackers, clients=total, when="any", model="linear", dataset=name, data=own)
        made.check()
        return made

    if clients is None:
        whose = "Which clients may attack? For example 5 of 20, or the ids 0,3,7 of 20"
        if own is not None and own.owners is not None:
            whose = f"Which of the {own.owners} owners may attack? For example 2, or the ids 0,3"
        answers = ask(whose, answers_for)
    else:
        answers = answers_for(clients)
    if when is None:
        when = ask("When? one-early: in one early round, any: in any one round, every: in every round", choice(When))
    if model is None:
        trained = "What do you train? linear: a linear model on fixed features, network: a neural network"
        model = ask(trained, choice(Trained))
    if heterogeneity is None and is_asking and answers.recipe.owners is None:
        heterogeneity = ask("Do clients have the same classes? alike or different", choice(Spread))
    answers = answers.model_copy(
        update={"when": when.value, "model": model.value, "alike": heterogeneity is not Spread.DIFFERENT}
    )
    way = choose_certificate(answers)
    save_config(config_text(answers, way, out.stem), out)
    echo(f"{out}: {way.certificate}\n\nIt says of a certified prediction: {way.statement}.\nWhy: {way.reason}.")
    for note in advice_notes(answers, way):
        echo(note)
    echo(f"\n  crfl run {out}\n  crfl show runs/{out.stem}")


def check_out(path: Path) -> None:
    """Raise `AdviceError` before any question if the config could not be written."""
    from crfl_core.cli.own_data import AdviceError

    if path.suffix != ".toml":
        raise AdviceError(f"--out {path}: the config is written as TOML: name a file that ends in .toml")
    if path.exists():
        raise AdviceError(f"{path} exists already: name another file with --out")


def ask_for_data() -> OwnData | None:
    """Ask for the user's own data; None for the handwritten digits."""
    from crfl_core.cli.own_data import AdviceError, read_own_data

    def check_file(text: str) -> Path | None:
        if text and not Path(text).is_file():
            raise AdviceError(f"there is no file {text}")
        return Path(text) if text else None

    path = ask(
        "Your data, a .csv, .csv.gz, .parquet or .npz file? Enter for handwritten digits", check_file, default=""
    )
    if path is None:
        return None
    while True:  # a wrong label may only show when the owners are known, so both are asked again
        label = ask("Which column has the labels?", str, default="y" if path.suffix == ".npz" else "label")
        owner = "Which column names the owner of each sample, such as a hospital? Enter if there is none"
        group = ask(owner, str, default="")
        try:
            return read_own_data(path, label, group or None)
        except AdviceError as error:
            echo(f"  {without_option(error)}")


def ask(question: str, check: Callable[[str], T], default: str | None = None) -> T:
    """Ask until the answer passes its check.

    The check raises `CrflError` that says what is wrong.
    """
    from crfl_core.errors import CrflError

    while True:
        text = typer.prompt(question, default=default, show_default=bool(default))
        try:
            return check(text.strip())
        except CrflError as error:
            echo(f"  {without_option(error)}")


def without_option(error: Exception) -> str:
    """Return the text of an error without the option in front.

    The user did not type that option.
    """
    return re.sub(r"^--[a-z]+:? ", "", str(error))


def choice(kind: type[T]) -> Callable[[str], T]:
    """Return a check that accepts the values of an enumeration."""

    def check(text: str) -> T:
        from crfl_core.cli.own_data import AdviceError

        try:
            return kind(text)  # type: ignore[call-arg]
        except ValueError as error:
            values = ", ".join(str(one) for one in kind)  # type: ignore[attr-defined]
            raise AdviceError(f"found {text!r}: answer {values}") from error

    return check
