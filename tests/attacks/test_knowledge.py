"""Attackers see what their attack declares, and no more; who sees nothing of the others does not make them wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from crfl_aggregators.trimmed_mean import Median
from torch import Tensor

from crfl_core.extend import Attack, AttackerView, FederatedData, Knowledge, Plugin, PluginFailure, State, Streams
from crfl_core.training import rounds
from crfl_core.training.session import Session
from tests.oracle import federation_of, played, tiny
from tests.training.test_streaming import PLUGINS as ENGINES
from tests.training.test_streaming import before, crowd, held

__all__ = ["before"]

seen: list[AttackerView] = []


class Looking(Attack):
    """Looks at everything that it is shown, and submits the opposite of what it trained."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def craft(self, known: AttackerView, state: State) -> Tensor:
        seen.append(known)
        return -known.own_updates


class Listening(Looking):
    """Sees all updates."""

    knowledge: ClassVar[Knowledge] = "updates"


class Simulating(Looking):
    """Knows what the server will do."""

    knowledge: ClassVar[Knowledge] = "rule"


PLUGINS: dict[str, type[Plugin]] = {"looking": Looking, "listening": Listening, "simulating": Simulating, **ENGINES}


def config(attack: str, **changes: Any) -> dict[str, Any]:
    return tiny(
        dtype="float64",
        attack={"type": attack, "clients": [0, 4, 7], "rounds": [2]} | changes.pop("table", {}),
        **changes,
    )


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@pytest.mark.parametrize(("attack", "others"), [("looking", []), ("listening", [1, 2, 3, 5, 6])])
def test_attackers_are_shown_what_they_declare_to_know(attack: str, others: list[int]) -> None:
    outcomes = played(federation_of(config(attack), PLUGINS))
    (known,) = seen
    assert known.round.clients.ids.tolist() == [0, 4, 7]
    assert known.honest.round.clients.ids.tolist() == others
    assert known.honest.values.shape == (len(others), 650)
    np.testing.assert_allclose(known.honest.values.norm(dim=1), outcomes[1].clients.submitted_norm[others])
    np.testing.assert_allclose(known.own_updates.norm(dim=1), outcomes[1].clients.submitted_norm[[0, 4, 7]])
    np.testing.assert_allclose(known.weights, outcomes[1].clients.weight[[0, 4, 7]])
    assert torch.equal(known.round.start, outcomes[0].parameters)
    with pytest.raises(PluginFailure, match="set knowledge = 'rule' in the class"):
        known.aggregate(known.own_updates)


def test_attackers_draw_from_no_streams_but_their_own() -> None:
    played(federation_of(config("listening"), PLUGINS))
    for streams in (seen[0].round.streams, seen[0].honest.round.streams):
        streams.generator("attack/mine")
        with pytest.raises(ValueError, match="is not drawn here"):
            streams.generator("noise")


CHAINS = [
    ["fedavg"],
    ["median"],
    [{"type": "norm-bound", "bound": 0.1}, {"type": "krum", "f": 2}],
    ["update-cap", "fedavg"],
]


@pytest.mark.parametrize("aggregation", CHAINS, ids=str)
def test_who_knows_the_rule_foresees_the_next_model(aggregation: list[Any]) -> None:
    server = {"clip_norm": 1e9, "noise_std": 0.0}
    outcomes = played(federation_of(config("simulating", aggregation=aggregation, server=server), PLUGINS))
    (known,) = seen
    foreseen = known.round.start + known.aggregate(-known.own_updates)
    torch.testing.assert_close(foreseen, outcomes[1].aggregate, rtol=1e-12, atol=1e-14)


def test_another_rule_can_be_tried_as_well() -> None:
    played(federation_of(config("simulating"), PLUGINS))
    (known,) = seen
    everything = np.concatenate([known.honest.values.numpy(), 9 * known.own_updates.numpy()])
    found = known.aggregate(9 * known.own_updates, Median())
    np.testing.assert_allclose(found, np.median(everything, axis=0), rtol=1e-12, atol=1e-15)


def test_candidates_that_are_not_finite_count_as_they_would_in_the_round() -> None:
    played(federation_of(config("simulating", aggregation=["median"]), PLUGINS))
    (known,) = seen
    expected = np.median(known.honest.values.numpy(), axis=0)
    np.testing.assert_allclose(known.aggregate(known.own_updates * torch.nan), expected, rtol=1e-12, atol=1e-15)


def test_attackers_craft_together_however_clients_are_cut_into_chunks() -> None:
    """One call with all of them, in order; the same aggregate but for rounding."""
    finals = []
    for chunk in (1, 3, 8):
        engine = {"type": "local", "threads": 1, "chunk_clients": chunk}
        finals.append(played(federation_of(config("looking", engine=engine), PLUGINS))[-1].parameters)
    assert [known.round.clients.ids.tolist() for known in seen] == [[0, 4, 7]] * 3
    for final in finals[1:]:
        torch.testing.assert_close(final, finals[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("attack", "most"), [("looking", 14), ("listening", 60)])
def test_only_who_looks_at_the_others_makes_the_server_keep_them(attack: str, most: int, before: int) -> None:
    table = {"type": attack, "clients": [0, 1], "rounds": [1, 2, 3, 4]}
    federation = federation_of(crowd(attack=table), PLUGINS)
    session = Session.of(federation, Path("nowhere"))
    with session.open_engine():
        for _ in rounds.play_rounds(session, rounds.initial_progress(federation)):
            seen.clear()
    assert max(held) - before < most
    assert attack == "looking" or max(held) - before >= 39


def test_a_word_that_is_no_knowledge_is_refused_before_training() -> None:
    class Omniscient(Looking):
        knowledge: ClassVar[Any] = "everything"

    with pytest.raises(PluginFailure, match=r"sets knowledge to 'everything': it is one of 'own', 'updates', 'rule'"):
        federation_of(config("omniscient"), {"omniscient": Omniscient})


def test_nothing_is_believed_about_what_was_shown() -> None:
    """An attack that writes into what it was shown is stopped, the expected weights included."""

    class Writing(Listening):
        what: str

        def craft(self, known: AttackerView, state: State) -> Tensor:
            {"weights": known.weights, "honest": known.honest.values, "own": known.own_updates}[self.what].zero_()
            return known.own_updates

    for what in ("weights", "honest", "own"):
        with pytest.raises(PluginFailure, match=r"craft\(\) \(.*test_knowledge.py:\d+\) changed what it was given"):
            played(federation_of(config("writing", table={"what": what}), {"writing": Writing}))
