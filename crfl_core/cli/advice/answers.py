"""The three questions: which clients may attack, when, and what is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError

from crfl_core.cli.advice.recipes import Recipe, recipe_of
from crfl_core.extend import CrflError, PluginError, Registry, Table

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
