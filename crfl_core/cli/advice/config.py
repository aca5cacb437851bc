"""The config that is written for an answer: a file that people read and change."""

from __future__ import annotations

import json
from pathlib import Path

from crfl_core.cli.advice.answers import AdviceError, Answers
from crfl_core.cli.advice.choice import Way

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
