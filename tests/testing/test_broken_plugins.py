"""What all kinds have in common: each check fails for a plugin that is broken in this way, and says what to fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.trimmed_mean import Median
from pydantic import ConfigDict, Field, field_serializer

from crfl_core.extend import Clients, Plugin, RoundRecord, hookimpl
from tests.testing.prints_at_import import Chatty
from tests.testing.support import assert_fails, checks_of, verdict


class FromTheFuture(FedAvg):
    """Needs an API that does not exist yet."""

    api_version: ClassVar[int] = 99


class Undocumented(FedAvg):
    """Has an option without a description."""

    strength: float = 1.0


class NoDocstring(FedAvg):
    pass


class OneWay(FedAvg):
    """Writes another option than it was given."""

    f: int = Field(1, description="clients")

    @field_serializer("f")
    def _write(self, value: int) -> int:
        return value + 1


class Unspeakable(FedAvg):
    """Has an option that JSON cannot express."""

    function: Callable[[float], float] | None = Field(None, description="applied to the weights")


class Malleable(FedAvg):
    """Lets its options be changed."""

    model_config = ConfigDict(frozen=False)


class Misspelt(Median):
    """Has a hook that crfl never calls."""

    @hookimpl
    def crfl_round_finshed(self, record: RoundRecord) -> None: ...


class Unmarked(FedAvg):
    """Has a hook that is not marked."""

    def crfl_round_finished(self, record: RoundRecord) -> None: ...


class Moody(FedAvg):
    """Draws from the global generator."""

    def weights(self, clients: Clients) -> torch.Tensor:
        drawn = torch.rand(len(clients), dtype=torch.float64)
        return drawn / drawn.sum()


class Talkative(FedAvg):
    """Prints while it works."""

    def weights(self, clients: Clients) -> torch.Tensor:
        print("aggregating")
        return super().weights(clients)


BROKEN: dict[str, list[tuple[Plugin, str]]] = {
    "loads_class": [(FromTheFuture(), "needs plugin API 99")],
    "documents_options": [(Undocumented(), "none for strength"), (NoDocstring(), "none on NoDocstring")],
    "options_survive_a_config_file": [(OneWay(), "serialisers that invert their validators")],
    "options_have_a_json_schema": [(Unspeakable(), "WithJsonSchema")],
    "freezes_options": [(Malleable(), "frozen = False")],
    "hooks_exist": [(Misspelt(), "crfl_round_finshed"), (Unmarked(), "crfl_round_finished without it")],
    "answers_are_repeatable": [(Moody(), "the answer.update differs")],
    "keeps_global_state": [(Talkative(), "'aggregating"), (Moody(), "the random generator of torch")],
    "importing_has_no_side_effects": [(Chatty(), "'thank you for choosing")],
}
EXAMPLES = [(check, plugin, word) for check, examples in BROKEN.items() for plugin, word in examples]


@pytest.mark.parametrize(
    ("check", "plugin", "word"), EXAMPLES, ids=[type(plugin).__name__ for _, plugin, _ in EXAMPLES]
)
def test_a_broken_plugin_is_told_what_to_fix(check: str, plugin: Plugin, word: str) -> None:
    assert_fails(plugin, check, word)


def test_every_check_has_a_plugin_that_fails_it() -> None:
    assert set(BROKEN) == checks_of(Plugin)


def test_a_class_without_a_file_cannot_be_imported_again() -> None:
    made: Any = type("Made", (FedAvg,), {"__doc__": "Made in memory.", "__module__": "nowhere"})
    assert verdict(made(), "importing_has_no_side_effects") == ("skipped", "its class was not imported from a file")
