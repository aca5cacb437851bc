"""What suits a dataset: who its clients are, fixed features for a linear model, and a network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from crfl_core.extend import CrflError, PluginError, Registry, Table

UPRIGHT = '{ type = "deskew" }'
SCATTERING = ('{ type = "scattering", angles = 4 }', '{ type = "group-norm", groups = 5 }')
STROKES = '{ type = "whiten", components = 500, floor = 60 }'
CURATED = '{ type = "whiten", on = "curator", components = 500, floor = 20 }'
FEW_STROKES = '{ type = "whiten", components = 60, floor = 20 }'
HANDWRITING = (
    "Fixed features, which no client's data change; whitening is fitted to strokes that are drawn from a seed."
)


@dataclass(frozen=True)
class Recipe:
    """Parts of a config, as TOML. All `features` are fixed before round 1 and give inputs of norm at most 1."""

    features: tuple[str, ...]
    why: str
    network: tuple[str, ...] = ('type = "mlp"', "hidden = [64]")
    owners: int | None = None
    """How many natural owners the data have, each of whom is a client; None: samples are dealt to clients."""
    curator: int | None = None
    """How many samples a trusted curator needs."""


RECIPES = {
    "digits": Recipe(
        (UPRIGHT, *SCATTERING, FEW_STROKES),
        HANDWRITING,
        network=('type = "mlp"', "hidden = [32]"),
    ),
    "mnist": Recipe((UPRIGHT, *SCATTERING, STROKES), HANDWRITING, network=('type = "cnn"',)),
    "emnist": Recipe((UPRIGHT, *SCATTERING, STROKES), HANDWRITING, network=('type = "cnn"',)),
    "fashion-mnist": Recipe(
        (*SCATTERING, CURATED),
        "Fixed features. Whitening is fitted to images of a curator, who is trusted and is no client.",
        network=('type = "cnn"',),
        curator=1000,
    ),
    "loan": Recipe(
        ('{ type = "random-fourier", outputs = 1000 }',),
        "Fixed random features. The range by which columns are scaled is declared to be public: see docs/datasets.md.",
        owners=51,
    ),
}

ANY_DATA = Recipe(
    ('{ type = "unit-ball", radius = 1.0 }',),
    "Inputs of norm at most 1, by x / max(||x||, radius): set the radius to about the median norm of inputs.",
)


def recipe_of(dataset: str) -> Recipe:
    """The recipe for a dataset; one that always works for those that nobody wrote one for."""
    return RECIPES.get(dataset.rpartition(":")[2], ANY_DATA)


When = Literal["one-early", "any", "every"]
ModelKind = Literal["linear", "network"]


class AdviceError(CrflError):
    """There is no advice for these answers; the sentence says why, and which answers there is advice for."""


class Answers(Table):
    """What a person knows about a federation before a config is written."""

    attackers: int | tuple[int, ...] = Field(description="a number of unknown clients, or the ids of known ones")
    clients: int | None = Field(None, description="how many there are; unset: as many as own the data, else 20")
    when: When = Field(description="in a round among the first tenth, in one that nobody knows, or in every round")
    model: ModelKind = Field(description="softmax regression on fixed features, or a neural network")
    dataset: str = Field("digits", description="name of the dataset")

    @property
    def recipe(self) -> Recipe:
        """What suits the dataset."""
        return recipe_of(self.dataset)

    @property
    def total(self) -> int:
        """The number of clients N."""
        return self.recipe.owners or 20 if self.clients is None else self.clients

    @property
    def number(self) -> int:
        """The number of attackers R."""
        return self.attackers if isinstance(self.attackers, int) else len(self.attackers)

    @property
    def outvoted(self) -> bool:
        """Whether attackers are fewer than half of all clients."""
        return 2 * self.number < self.total

    def check(self) -> None:
        """Raises `AdviceError` if the answers contradict each other."""
        owners = self.recipe.owners
        total = self.total
        if owners is not None and total != owners:
            each = f"the data of {self.dataset!r} have {owners} owners, each of whom is a client"
            raise AdviceError(f"--clients: found {total} clients; {each}: write '{self.number} of {owners}'")
        if not 1 <= self.number <= total:
            raise AdviceError(
                f"--clients: found {self.number} of {total}: from 1 to {max(total, 1)} of them may attack"
            )
        if not isinstance(self.attackers, int) and max(self.attackers) >= total:
            strange = max(self.attackers)
            raise AdviceError(
                f"--clients: there is no client {strange}: the ids of {total} clients are 0 to {total - 1}"
            )


def clients_from(text: str) -> tuple[int | tuple[int, ...], int | None]:
    """Who may attack, as a number or as ids with commas between them, and of how many clients, if that is said.

    >>> clients_from("5"), clients_from("5 of 100"), clients_from("0,3,7 of 20"), clients_from("4,")
    ((5, None), (5, 100), ((0, 3, 7), 20), ((4,), None))
    """
    attackers, of, total = text.partition(" of ")
    words = [word.strip() for word in attackers.removesuffix(",").split(",")]
    if not all(map(is_number, [*words, *([total.strip()] if of else [])])):
        raise AdviceError(f"--clients {text!r}: needs a number, such as '5 of 20', or ids, such as '0,3,7 of 20'")
    ids = tuple(dict.fromkeys(map(int, words)))
    return (ids if "," in attackers else ids[0]), (int(total) if of else None)


def is_number(word: str) -> bool:
    """Whether a word is a number of clients that a federation can have."""
    return word.isascii() and word.isdigit() and len(word) <= 7


def check_dataset(name: str) -> None:
    """Raises `AdviceError` if no such dataset is installed, or if its name alone does not say which data it has."""
    try:
        Registry().load("dataset", name).model_validate({})
    except PluginError as error:
        raise AdviceError(f"--dataset {name}: {error}") from error
    except ValidationError as error:
        remedy = "ask without --dataset, and write your table [dataset] into the config"
        raise AdviceError(f"--dataset {name}: it needs options that only you know: {remedy}") from error


GROUPS_PER_ATTACKER = 10
FEWEST_GROUPS = 20
EARLY = 10
ROUNDS = 100
"""The attacked rounds of "one-early", counted from the first, and all rounds."""
MANY_ROUNDS = 1000
"""All rounds of "any"; the drift of one of them falls like one over their number."""

ONE_MODEL = (
    'dtype = "float64" # single precision leaves one assumption "declared"',
    "server = { noise_std = 0.0, clip_norm = 1000.0 } # no noise is needed; the server caps every update",
)
MANY_MODELS = ("server = { noise_std = 0.0, clip_norm = 1000.0 } # neither noise nor clipping is needed",)


@dataclass(frozen=True)
class Way:
    """A certificate, the statement that it makes about a prediction, why it is the one, and what it needs in a config.

    `settings` are lines of TOML at the top level, and `tables` those below them.
    """

    certificate: str
    statement: str
    reason: str
    rounds: int
    settings: tuple[str, ...]
    tables: tuple[str, ...]


def chosen(answers: Answers) -> Way:
    """One linear model if few rounds are attacked, else the vote of groups if honest clients win it.

    Raises `AdviceError` where neither is the case.
    """
    answers.check()
    if answers.model == "linear" and answers.when != "every":
        return forgetting(answers) if answers.when == "one-early" else spreading(answers)
    if answers.outvoted:
        return vote(answers)
    raise AdviceError(
        f"{answers.number} of {answers.total} clients may attack, and half of all outvote the others: assume fewer, or "
        f"that they attack in one round, and train a linear model: --when any --model linear"
    )


def forgetting(answers: Answers) -> Way:
    """One linear model, which forgets what came early."""
    return Way(
        certificate="pathwise-linear",
        statement=f"whatever {who(answers)} submit in the first {EARLY} of {ROUNDS} rounds, it stays the same",
        reason="no step enlarges what an attack has left in a linear model, and weight decay shrinks it",
        rounds=ROUNDS,
        settings=ONE_MODEL,
        tables=(
            "[training]",
            "learning_rate = 3.5 # at most 2 / (1/2 + 2 weight_decay), for inputs of norm 1",
            "steps = 30",
            "weight_decay = 0.001 # a round keeps (1 - 3.5 * 0.001)^30 = 0.9 of what was there",
            "",
            *capped(answers, f"{{ first = 1, every = 1, last = {EARLY} }} # one of them, or all"),
        ),
    )


def spreading(answers: Answers) -> Way:
    """One linear model, on which every round has the same influence."""
    return Way(
        certificate="pathwise-linear",
        statement=f"whatever {who(answers)} submit in one of {MANY_ROUNDS} rounds, it stays the same",
        reason="rates fall so that each round moves the final model as much as any other: by little, as they are many",
        rounds=MANY_ROUNDS,
        settings=ONE_MODEL,
        tables=(
            "[training]",
            'learning_rate = { type = "equal-influence" } # rates like 1/t; more rounds certify more',
            "steps = 1",
            "weight_decay = 0.003",
            "",
            *capped(answers, '"any" # one of them, and nobody knows which'),
        ),
    )


def capped(answers: Answers, rounds: str) -> tuple[str, ...]:
    """Clients that submit what they like in some rounds, up to what the server lets through, and their certificate."""
    return (
        "[threat]",
        f"clients = {listed(answers)}",
        f"rounds = {rounds}",
        'poison = "update" # they may submit anything',
        "",
        "[[certificates]]",
        'type = "pathwise-linear"',
        'levels = ["client"]',
    )


def vote(answers: Answers) -> Way:
    """Groups with a model each: a client reaches one of them."""
    count = min(answers.total, max(FEWEST_GROUPS, GROUPS_PER_ATTACKER * answers.number))
    groups = f"count = {count} # more groups stand more attackers, and each of their models sees less data"
    if answers.recipe.owners is not None:
        count = answers.total
        groups = 'by = "natural" # each owner of data trains a model'
    named = not isinstance(answers.attackers, int)
    covered = "" if answers.when == "every" else ". That is every round, whichever is attacked"
    return Way(
        certificate="group-vote",
        statement=f"whatever {who(answers)} submit in every round, it stays the same",
        reason=f"a client reaches one of {count} models, and the others outvote it{covered}",
        rounds=20,
        settings=MANY_MODELS,
        tables=(
            "[training]",
            f"learning_rate = {4.0 if answers.model == 'linear' else 0.2}",
            "steps = 50",
            "weight_decay = 0.0001",
            "",
            "[groups]",
            groups,
            "",
            *(("[threat]", f"clients = {listed(answers)}", "") if named else ()),
            "[[certificates]]",
            'type = "group-vote"',
            *(('candidates = "named" # only the groups of these clients count',) if named else ()),
        ),
    )


def who(answers: Answers) -> str:
    """The attackers in a sentence: "any 5 of 20 clients", "clients 0 and 3"."""
    if isinstance(answers.attackers, int):
        return f"any {answers.number} of {answers.total} clients"
    *others, last = map(str, answers.attackers)
    return f"clients {', '.join(others)} and {last}" if others else f"client {last}"


def listed(answers: Answers) -> str:
    """The attackers in TOML: their number, or their ids."""
    return str(answers.attackers if isinstance(answers.attackers, int) else list(answers.attackers))


WHEN = {"one-early": "in an early round", "any": "in a round that nobody knows", "every": "in every round"}


def written(answers: Answers, way: Way, name: str) -> str:
    """The TOML of a run that is called `name`; its first lines say what was asked and what will be certified."""
    return "\n".join([*asked(answers, way), *federation(answers, way, name), "", *model(answers), "", *way.tables, ""])


def asked(answers: Answers, way: Way) -> list[str]:
    """The question and its answer, as comments."""
    trained = "softmax regression on fixed features" if answers.model == "linear" else "a neural network"
    return [
        f"# {answers.number} of {answers.total} clients may attack, {WHEN[answers.when]}. What is trained: {trained}.",
        f"# `{way.certificate}` says of a certified prediction: {way.statement}.",
        f"# Why: {way.reason}.",
    ]


def federation(answers: Answers, way: Way, name: str) -> list[str]:
    """Clients, data and server: all that is no table."""
    recipe = answers.recipe
    sizes = sorted({1, answers.number})
    curated = recipe.curator is not None and answers.model == "linear"
    return [
        f"name = {json.dumps(name)}",
        f"rounds = {way.rounds}",
        f"dataset = {{ type = {json.dumps(answers.dataset)} }}",
        f'partition = {{ type = "iid", clients = {answers.total} }} # or yours: docs/plugins.md'
        if recipe.owners is None
        else 'partition = { type = "natural" }',
        *([f"reserve = {{ curator = {recipe.curator} }} # samples that no client holds"] if curated else []),
        *way.settings,
        f"evaluation = {{ every = 0, radii = {sizes} }} # certified accuracy against these numbers of clients",
    ]


def model(answers: Answers) -> list[str]:
    """The model: a linear one with features that suit the data, or a network."""
    recipe = answers.recipe
    if answers.model == "network":
        return ["[model]", *recipe.network]
    maps = [f"    {feature_map}," for feature_map in recipe.features]
    return [f"# {recipe.why}", "[model]", 'type = "softmax"', "bias = false", "features = [", *maps, "]"]


def save(text: str, path: Path) -> None:
    """Write a config. Raises `AdviceError` if the file exists already, cannot be written, or is none of TOML."""
    if path.suffix != ".toml":
        raise AdviceError(f"--out {path}: the config is written as TOML: name a file that ends in .toml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise AdviceError(f"{path} exists already: name another file with --out") from error
    except OSError as error:
        raise AdviceError(f"{path} cannot be written: {error.strerror}") from error
