"""Ledgers that are written down instead of played."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core.extend import Ledger, RoundRecord
from crfl_core.records.ledger import ClientColumns, RunFacts
from tests.certificates.federations import small
from tests.certificates.worlds import federation_of


@cache
def plain_facts() -> RunFacts:
    """The facts of a run in which everything is as the certificates like it."""
    return federation_of(small()).facts


def synthetic_ledger(
    *,
    participants: Sequence[Sequence[int]] = ((0, 1, 2, 3),) * 3,
    samples: Sequence[int] = (40, 40, 40, 40),
    rate: float = 0.5,
    steps: int = 4,
    batch_size: int = 16,
    decay: float = 0.0,
    cap: float = np.inf,
    residual: float | None = None,
    clip_norm: float = 4.0,
    noise_std: float = 0.1,
    start_norm: float = 1.0,
    **facts: Any,
) -> Ledger:
    """A ledger without a run: all clients train alike, weights are shares of samples among a round's participants.

    Unless a `residual` is given, all clients submitted what only attackers submit, ten times what is honest.
    """
    clients = np.concatenate([np.asarray(ids) for ids in participants])
    held = np.asarray(samples)
    numbers = np.concatenate([np.full(len(ids), number) for number, ids in enumerate(participants, start=1)])
    own, total = held[clients], len(clients)
    weights = own / np.array([held[list(participants[number - 1])].sum() for number in numbers])
    sizes = np.minimum(batch_size, own)
    kept = formulas.retention(rate, steps, decay)
    reach = formulas.update_bound(rate, steps, np.hypot(1.0, 1.0), decay)

    def each(value: float, kind: type[Any] = np.float64) -> NDArray[Any]:
        return np.full(total, value, kind)

    columns = ClientColumns(
        round=numbers,
        client=clients,
        group=each(0, np.int64),
        weight=weights,
        weight_bound=weights,
        learning_rate=each(rate),
        steps=each(steps, np.int64),
        honest_rate=each(rate),
        honest_steps=each(steps, np.int64),
        batch_size=sizes,
        last_batch=own - (-(-own // sizes) - 1) * sizes,
        weight_decay=each(decay),
        retention=each(float(kept)),
        update_bound=each(float(reach)),
        cap=each(cap),
        submitted_norm=each(0.1),
        residual_norm=each(min(cap, 10 * float(reach) if residual is None else residual)),
        quarantined=each(0, np.bool_),
        attacking=each(0, np.bool_),
        scale=each(1.0),
        poisoned_share=each(0.0),
        poisoned_samples=each(0, np.int64),
        poisoned_most=each(0, np.int64),
        delta=each(0.0),
        label_flips=each(0, np.int64),
        poisoned_norm=each(0.0),
        spectrum=each(0.0),
        start_gradient=each(0.0),
        batch_factor=each(1.0),
        scaled_batches=each(0, np.int64),
    )
    records = tuple(
        RoundRecord(
            round=number,
            clip_norm=clip_norm,
            noise_std=0.0 if number == len(participants) else noise_std,
            start_norm=start_norm,
            start_operator_norm=start_norm,
            norm_before_clip=start_norm,
            accepted=True,
            depends="fixed" if np.isinf(cap) else "own",
            weights_from="chain",
            participants=len(ids),
            quarantined=0,
        )
        for number, ids in enumerate(participants, start=1)
    )
    changed = {
        "clients": len(samples),
        "rounds": len(participants),
        "samples": tuple(samples),
        "feature_norms": (1.0,) * len(samples),
        "feature_lipschitz": 1.0,
        "test_noise_std": noise_std,
        "resampled": tuple(range(1, len(participants) + 1)),
    }
    return Ledger(plain_facts().model_copy(update=changed | facts), records, columns)
