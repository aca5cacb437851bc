"""Replays in memory: a federation with the same data and random draws, and other attackers or none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from crfl_core.records.ledger import ClientColumns, Ledger, RoundRecord
from crfl_core.training import rounds
from crfl_core.training.client_sampling import Participation
from crfl_core.training.ledger_rows import record_round
from crfl_core.training.threats import prepare_attack

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.plugin_api.attack import Attack
    from crfl_core.training.federation import Federation
    from crfl_core.training.rounds import Progress
    from crfl_core.training.session import Session


@dataclass(frozen=True)
class Replay:
    """What a replay ends with: its ledger, and the clipped final model, (P,), or those of all groups, (G, P).

    `kept` are the states after chosen rounds, with the clipped model before noise; of one model, not of groups.
    """

    federation: Federation
    ledger: Ledger
    parameters: Tensor
    kept: Mapping[int, Progress]


def with_attack(federation: Federation, attack: Attack | None) -> Federation:
    """Return the same data, model and random streams with another attack, or none."""
    config = federation.config.model_copy(update={"attack": attack})
    samples = federation.facts.samples
    members = federation.participation.members
    participation = Participation(config, samples, federation.honest, federation.streams, members)
    prepared = prepare_attack(config, federation.data, participation, federation.streams)
    return replace(federation, config=config, participation=participation, prepared=prepared)


def replay(
    session: Session, keep: Collection[int] = (), on_round: Callable[[int], object] = lambda _number: None
) -> Replay:
    """Play all rounds of a session in memory, and write nothing.

    The states after the rounds `keep` are kept; `on_round` is called with the number of every round played.
    """
    federation = replace(session.federation, resampled=tuple(sorted(keep)))
    records: list[RoundRecord] = []
    columns: list[ClientColumns] = []
    kept: dict[int, Progress] = {}
    progress = rounds.initial_progress(federation)
    with session.open_engine():
        for outcomes in rounds.play_rounds(session, progress):
            progress = tuple(outcome.after for outcome in outcomes)
            for outcome in outcomes:
                line, rows = record_round(federation, outcome)
                records.append(line)
                columns.append(rows)
            number = progress[0].number
            if number in keep:
                kept[number] = replace(progress[0], models=outcomes[0].clipped)
            on_round(number)
    models = torch.cat([group.models for group in progress])
    ledger = Ledger(federation.facts, tuple(records), ClientColumns.concatenate(columns))
    return Replay(federation, ledger, models[0] if federation.config.groups is None else models, kept)
