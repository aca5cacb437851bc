"""Which certificate answers a question, and why."""

from __future__ import annotations

from dataclasses import dataclass

from crfl_core.cli.advice.answers import AdviceError, Answers

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
