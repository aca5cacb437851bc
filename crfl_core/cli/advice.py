"""Advice of `crfl advise`: from three answers about a federation to a certificate, and to a config that computes it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from crfl_core.cli.own_data import ALIKE_BELOW, DIFFERENT_ABOVE, AdviceError, OwnData
from crfl_core.extend import PluginError, Registry, Table

UPRIGHT = '{ type = "deskew" }'
SCATTERING = ('{ type = "scattering", angles = 4 }', '{ type = "group-norm", groups = 5 }')
STROKES = '{ type = "whiten", components = 500, floor = 60 }'
CURATED = '{ type = "whiten", on = "curator", components = 500, floor = 20 }'
FEATURES_FOR_STROKES = 500
"""Pixels from which images have enough directions to whiten 500 of them."""
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
    """Number of natural owners of the data, each of whom is a client; None: samples are dealt to clients."""
    curator: int | None = None
    """Number of samples that a trusted curator needs."""
    scaling: str | None = None
    """Scaling of the dataset that follows from no sample; None: that of the dataset."""


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
        "Fixed features. Whitening is fitted to images of a curator, who is trusted and is not a client.",
        network=('type = "cnn"',),
        curator=1000,
    ),
    "loan": Recipe(
        ('{ type = "random-fourier", outputs = 1000 }',),
        "Fixed random features. The ranges by which columns are scaled are declared.",
        owners=51,
        scaling="unit-range",
    ),
}

ANY_DATA = Recipe(
    ('{ type = "unit-ball", radius = 1.0 }',),
    "Inputs of norm at most 1, by x / max(||x||, radius): set the radius to about the median norm of inputs.",
)


def recipe_for(data: OwnData) -> Recipe:
    """Return the recipe for the user's own data.

    It has features for images, or for columns of a table.
    """
    if data.image_shape is not None:
        whitening = STROKES if data.features >= FEATURES_FOR_STROKES else FEW_STROKES
        why = "Fixed features for images, which no client's data change; whitening is fitted to strokes from a seed."
        return Recipe((*SCATTERING, whitening), why, network=('type = "cnn"',), owners=data.owners)
    longest = data.longest_distance or math.sqrt(data.features)  # inputs without names are within [0, 1], too
    bandwidth = f"{longest / 2:.2g}"
    return Recipe(
        (f'{{ type = "random-fourier", outputs = 500, bandwidth = {bandwidth} }}',),
        "Fixed random features for columns within [0, 1]; the bandwidth is half of the longest distance between rows.",
        network=('type = "mlp"', "hidden = [32]"),
        owners=data.owners,
    )


def find_recipe(dataset: str) -> Recipe:
    """Return the recipe for a dataset.

    If the dataset has none, return one that works for any data.
    """
    return RECIPES.get(dataset.rpartition(":")[2], ANY_DATA)


When = Literal["one-early", "any", "every"]
ModelKind = Literal["linear", "network"]


class Answers(Table):
    """Answers of the user about a federation, before a config is written."""

    attackers: int | tuple[int, ...] = Field(description="a number of unknown clients, or the ids of known ones")
    clients: int | None = Field(None, description="how many there are; unset: as many as own the data, else 20")
    when: When = Field(description="in a round among the first tenth, in any one round, or in every round")
    model: ModelKind = Field(description="softmax regression on fixed features, or a neural network")
    dataset: str = Field("digits", description="name of the dataset")
    data: OwnData | None = Field(None, description="the user's own data, in place of a dataset")
    alike: bool = Field(True, description="whether data that are dealt to clients have the same classes everywhere")

    @property
    def recipe(self) -> Recipe:
        """Return what suits the data."""
        return find_recipe(self.dataset) if self.data is None else recipe_for(self.data)

    @property
    def data_name(self) -> str:
        """Return the name of the dataset, or of the user's file."""
        return self.dataset if self.data is None else self.data.path

    @property
    def total(self) -> int:
        """Return the number of clients, N."""
        return self.recipe.owners or 20 if self.clients is None else self.clients

    @property
    def number(self) -> int:
        """Return the number of attackers, R."""
        return self.attackers if isinstance(self.attackers, int) else len(self.attackers)

    @property
    def has_label_skew(self) -> bool:
        """Return whether the classes differ between clients.

        The answer says so, or the owners' labels where the data have owners.
        """
        if self.recipe.owners is None:
            return not self.alike
        return self.data is not None and (self.data.heterogeneity or 0.0) >= ALIKE_BELOW

    @property
    def is_honest_majority(self) -> bool:
        """Return whether attackers are fewer than half of all clients."""
        return 2 * self.number < self.total

    def check(self) -> None:
        """Raise `AdviceError` if the answers contradict each other."""
        owners = self.recipe.owners
        total = self.total
        if owners is not None and total != owners:
            each = f"the data of {self.data_name!r} have {owners} owners, each of whom is a client"
            raise AdviceError(f"--clients: found {total} clients; {each}: write '{self.number} of {owners}'")
        if not 1 <= self.number <= total:
            raise AdviceError(
                f"--clients: found {self.number} of {total}: from 1 to {max(total, 1)} of them may attack"
            )
        if not isinstance(self.attackers, int) and max(self.attackers) >= total:
            unknown = max(self.attackers)
            raise AdviceError(
                f"--clients: there is no client {unknown}: the ids of {total} clients are 0 to {total - 1}"
            )


def parse_clients(text: str) -> tuple[int | tuple[int, ...], int | None]:
    """Parse the attackers and the number of clients.

    The attackers are a number, or ids with commas between them. The number of clients is None if it is not given.

    >>> parse_clients("5"), parse_clients("5 of 100"), parse_clients("0,3,7 of 20"), parse_clients("4,")
    ((5, None), (5, 100), ((0, 3, 7), 20), ((4,), None))
    """
    attackers, of, total = text.partition(" of ")
    words = [word.strip() for word in attackers.removesuffix(",").split(",")]
    if not all(map(is_number, [*words, *([total.strip()] if of else [])])):
        raise AdviceError(f"--clients {text!r}: needs a number, such as '5 of 20', or ids, such as '0,3,7 of 20'")
    ids = tuple(dict.fromkeys(map(int, words)))
    return (ids if "," in attackers else ids[0]), (int(total) if of else None)


def is_number(word: str) -> bool:
    """Return whether a word is a possible number of clients."""
    return word.isascii() and word.isdigit() and len(word) <= 7


def check_dataset(name: str) -> None:
    """Raise `AdviceError` unless a dataset is installed and needs no options."""
    try:
        Registry().load("dataset", name).model_validate({})
    except PluginError as error:
        raise AdviceError(f"--dataset {name}: {error}") from error
    except ValidationError as error:
        remedy = "ask without --dataset, and write your table [dataset] into the config"
        raise AdviceError(f"--dataset {name}: it needs options that only you know: {remedy}") from error


GROUPS_PER_ATTACKER = 10
FEWEST_GROUPS = 20
EARLY_ROUNDS = 10
ONE_EARLY_ROUNDS = 100
"""The attacked rounds of "one-early", counted from the first, and all rounds."""
ANY_ROUNDS = 1000
"""All rounds of "any"; the drift of one of them falls like one over their number."""

ONE_MODEL_SETTINGS = (
    'dtype = "float64" # single precision leaves one assumption "declared"',
    "server = { noise_std = 0.0, clip_norm = 1000.0 } # no noise is needed; the server caps every update",
)
BALANCED = "class_balance = true # each class of a client weighs the same: models of few classes vote better"
GROUPS_SETTINGS = ("server = { noise_std = 0.0, clip_norm = 1000.0 } # neither noise nor clipping is needed",)


@dataclass(frozen=True)
class Advice:
    """A certificate, its statement about a prediction, the reason to choose it, and what it needs in a config.

    `settings` are lines of TOML at the top level, and `tables` those below them.
    """

    certificate: str
    statement: str
    reason: str
    rounds: int
    settings: tuple[str, ...]
    tables: tuple[str, ...]
    groups: int = 1


def choose_certificate(answers: Answers) -> Advice:
    """Choose the certificate that fits the answers.

    It is one linear model if few rounds are attacked, else the vote of groups if honest clients win it. Raises
    `AdviceError` where neither is the case.
    """
    answers.check()
    if answers.model == "linear" and answers.when != "every":
        if answers.when == "one-early":
            return advise_early_rounds(answers)
        return advise_any_round(answers)
    if answers.is_honest_majority:
        return advise_group_vote(answers)
    raise AdviceError(
        f"{answers.number} of {answers.total} clients may attack, and half of all outvote the others: assume fewer, or "
        f"that they attack in one round, and train a linear model: --when any --model linear"
    )


def advise_early_rounds(answers: Answers) -> Advice:
    """Advise one linear model, which forgets early rounds."""
    rounds = f"the first {EARLY_ROUNDS} of {ONE_EARLY_ROUNDS} rounds"
    return Advice(
        certificate="pathwise-linear",
        statement=f"whatever {attackers_text(answers)} in {rounds}, it stays the same",
        reason="no step enlarges what an attack has left in a linear model, and weight decay shrinks it",
        rounds=ONE_EARLY_ROUNDS,
        settings=ONE_MODEL_SETTINGS,
        tables=(
            "[training]",
            "learning_rate = 3.5 # at most 2 / (1/2 + 2 weight_decay), for inputs of norm 1",
            "steps = 30",
            "weight_decay = 0.001 # a round keeps (1 - 3.5 * 0.001)^30 = 0.9 of what was there",
            "",
            *threat_tables(answers, f"{{ first = 1, every = 1, last = {EARLY_ROUNDS} }} # one of them, or all"),
        ),
    )


def advise_any_round(answers: Answers) -> Advice:
    """Advise one linear model, on which every round has the same influence."""
    return Advice(
        certificate="pathwise-linear",
        statement=f"whatever {attackers_text(answers)} in one of {ANY_ROUNDS} rounds, it stays the same",
        reason="rates fall so that each round moves the final model as much as any other: by little, as they are many",
        rounds=ANY_ROUNDS,
        settings=ONE_MODEL_SETTINGS,
        tables=(
            "[training]",
            'learning_rate = { type = "equal-influence" } # rates like 1/t; more rounds certify more',
            "steps = 1",
            "weight_decay = 0.003",
            "",
            *threat_tables(answers, '"any" # any one of them'),
        ),
    )


def threat_tables(answers: Answers, rounds: str) -> tuple[str, ...]:
    """Return the tables of a threat and of its certificate.

    The threat is arbitrary updates below the server's cap.
    """
    return (
        "[threat]",
        f"clients = {attackers_toml(answers)}",
        f"rounds = {rounds}",
        'poison = "update" # they may submit anything',
        "",
        "[[certificates]]",
        'type = "pathwise-linear"',
        'levels = ["client"]',
    )


def advise_group_vote(answers: Answers) -> Advice:
    """Advise groups with a model each: a client reaches one of them."""
    count = min(answers.total, max(FEWEST_GROUPS, GROUPS_PER_ATTACKER * answers.number))
    groups = f"count = {count} # more groups stand more attackers, and each of their models sees less data"
    owners = answers.recipe.owners
    if owners is not None and owners < 2 * count:  # fewer than two owners in a group
        count = answers.total
        groups = 'by = "natural" # each owner of data trains a model'
    named = not isinstance(answers.attackers, int)
    covered = "" if answers.when == "every" else ". That is every round, whichever is attacked"
    return Advice(
        certificate="group-vote",
        statement=f"whatever {attackers_text(answers)} in every round, it stays the same",
        reason=f"a client reaches one of {count} models, and the others outvote it{covered}",
        rounds=20,
        settings=GROUPS_SETTINGS,
        tables=(
            "[training]",
            f"learning_rate = {4.0 if answers.model == 'linear' else 0.2}",
            "steps = 50",
            "weight_decay = 0.0001",
            *((BALANCED,) if answers.has_label_skew else ()),
            "",
            "[groups]",
            groups,
            "",
            "[threat]",
            f"clients = {attackers_toml(answers)} # how many the first line of the result speaks of",
            "",
            "[[certificates]]",
            'type = "group-vote"',
            *(('candidates = "named" # only the groups of these clients count',) if named else ()),
        ),
        groups=count,
    )


def advice_notes(answers: Answers, way: Advice) -> list[str]:
    """Return what else to know.

    The notes are about groups and aggregation, and about the baseline of trusted data.
    """
    data = answers.data
    notes = []
    each = answers.total / way.groups
    if way.groups == 1:
        notes.append(
            "Aggregation: fedavg behind the server's cap on updates, whose weights no attacker can change: a rule that "
            "looks at updates would cost the proof."
        )
    elif each == 1:
        notes.append(
            f"Groups: {way.groups}, one for each client. Aggregation: fedavg; in a group of one client every rule "
            "gives the same model, so a robust one is idle."
        )
    else:
        notes.append(
            f"Groups: {way.groups}, of about {each:.3g} clients. Aggregation: fedavg; a group with one attacker counts "
            "as lost whatever rule it has, so a robust one does not enlarge the proof."
        )
    if way.groups > 1 and data is not None and (data.heterogeneity or 0.0) > DIFFERENT_ABOVE:
        notes.append(
            "Owners differ much, and a model of few of them predicts for others badly: try fewer groups, `[groups] "
            "count = ...`, of which attackers must reach less than half."
        )
    if answers.has_label_skew and way.groups > 1:
        notes.append(
            "Label skew: clients hold other classes, so the config sets training.class_balance, by which every class "
            "that a client holds weighs the same in its loss."
        )
    notes.append(
        "Baseline: a model of samples that you trust alone holds against any number of attackers. With `--set "
        "reserve.root=100 --set certificates=[]` a run sets some aside and says what the server reaches alone. Groups "
        "may start at that model and shrink toward it: model.start = 'reserve' and training.toward_start."
    )
    return notes


def attackers_text(answers: Answers) -> str:
    """Return which clients submit.

    Examples are "any 5 of 20 clients submit" and "client 3 submits".
    """
    verb = "submits" if answers.number == 1 else "submit"
    if isinstance(answers.attackers, int):
        return f"any {answers.number} of {answers.total} clients {verb}"
    *others, last = map(str, answers.attackers)
    return f"clients {', '.join(others)} and {last} {verb}" if others else f"client {last} {verb}"


def attackers_toml(answers: Answers) -> str:
    """Return the attackers in TOML: their number, or their ids."""
    return str(answers.attackers if isinstance(answers.attackers, int) else list(answers.attackers))


WHEN_TEXTS = {"one-early": "in an early round", "any": "in any one round", "every": "in every round"}


def config_text(answers: Answers, way: Advice, name: str) -> str:
    """Return the TOML of a run called `name`.

    Its first lines say what was asked and what will be certified.
    """
    return "\n".join(
        [
            *question_comments(answers, way),
            *federation_lines(answers, way, name),
            "",
            *([*answers.data.lines, ""] if answers.data is not None else []),
            *model_lines(answers),
            "",
            *way.tables,
            "",
        ]
    )


def question_comments(answers: Answers, way: Advice) -> list[str]:
    """Return the question and its answer, as comments."""
    trained = "softmax regression on fixed features" if answers.model == "linear" else "a neural network"
    when = WHEN_TEXTS[answers.when]
    return [
        f"# {answers.number} of {answers.total} clients may attack, {when}. What is trained: {trained}.",
        f"# `{way.certificate}` says of a certified prediction: {way.statement}.",
        f"# Why: {way.reason}.",
    ]


def federation_lines(answers: Answers, way: Advice, name: str) -> list[str]:
    """Return the lines about clients, data and server, outside of tables."""
    recipe = answers.recipe
    sizes = sorted({1, answers.number})
    curated = recipe.curator is not None and answers.model == "linear"
    scaling = "" if recipe.scaling is None else f", scaling = {json.dumps(recipe.scaling)}"
    return [
        f"name = {json.dumps(name)}",
        f"rounds = {way.rounds}",
        *([f"dataset = {{ type = {json.dumps(answers.dataset)}{scaling} }}"] if answers.data is None else []),
        partition_line(answers),
        *([f"reserve = {{ curator = {recipe.curator} }} # samples that no client holds"] if curated else []),
        *way.settings,
        f"evaluation = {{ every = 0, radii = {sizes} }} # certified accuracy against these numbers of clients",
    ]


def partition_line(answers: Answers) -> str:
    """Return the line that says which client holds which samples."""
    if answers.recipe.owners is not None:
        return 'partition = { type = "natural" }'
    if answers.alike:
        return f'partition = {{ type = "iid", clients = {answers.total} }} # or yours: crfl plugins --kind partitioner'
    return f'partition = {{ type = "dirichlet", clients = {answers.total}, alpha = 0.3 }} # clients with other classes'


def model_lines(answers: Answers) -> list[str]:
    """Return the table of the model.

    It is a linear one with features that suit the data, or a network.
    """
    recipe = answers.recipe
    if answers.model == "network":
        return ["[model]", *recipe.network]
    maps = [f"    {feature_map}," for feature_map in recipe.features]
    return [f"# {recipe.why}", "[model]", 'type = "softmax"', "bias = false", "features = [", *maps, "]"]


def save_config(text: str, path: Path) -> None:
    """Write a config to a new file.

    Raises `AdviceError` if the file exists, cannot be written, or is not a TOML file.
    """
    if path.suffix != ".toml":
        raise AdviceError(f"--out {path}: the config is written as TOML: name a file that ends in .toml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise AdviceError(f"{path} exists already: name another file with --out") from error
    except OSError as error:
        raise AdviceError(f"{path} cannot be written: {error.strerror}") from error
