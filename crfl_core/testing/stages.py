"""What every aggregation stage promises about its mixing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.aggregator import CapStage, FixedStage, Stage
from crfl_core.records.round import ClientUpdates
from crfl_core.testing.comparing import difference
from crfl_core.testing.sample_rounds import above_one, answers, cast_to, every_size, is_constant, of_stage, some_rows
from crfl_core.testing.suite import Case, CheckFailed, promised_by
from crfl_core.training import aggregator_contract as core
from crfl_core.training.aggregation import Staged

ROUNDING = 1e-6


@promised_by(Stage)
def check_mixing_rebuilds_what_is_handed_on(case: Case[Stage]) -> None:
    """`values = mixing @ updates + offset`: the weights behind the stage are those that reach the model."""
    for dtype in (torch.float64, torch.float32):
        for name, updates in every_size(case).items():
            given = cast_to(updates, dtype)
            found = of_stage(case.plugin, given)
            try:
                offset = found.offset if found.pull is None else found.pull * given.round.start
                core.check_identity(case.plugin, found.values, found.mixing, given.values, offset)
            except PluginFailure as error:
                raise CheckFailed(
                    f"values = mixing @ updates + offset in {name}, {dtype}",
                    str(error),
                    "report the matrix that was used, and everything else as `offset`",
                ) from error


@promised_by(Stage)
def check_mixing_only_averages(case: Case[Stage]) -> None:
    """Entries of the mixing are not negative; rows sum to at most 1, or all to the same: a constant server rate."""
    sums = {name: matrix_of(staged).sum(1) for name, _, staged in transformed(case)}
    constant = is_constant([float(one) for rows in sums.values() for one in (rows.min(), rows.max())])
    for name, _, staged in transformed(case):
        least = float(matrix_of(staged).min())
        most = float(sums[name].max())
        if least < 0 or (above_one([most]) and not constant):
            raise CheckFailed(
                f"rows of shares in {name}",
                f"entries from {least:.3g} and rows that sum to {most:.6g}",
                "divide rows by their sum, and report what is added as `offset`",
            )


@promised_by(Stage)
def check_outputs_are_announced(case: Case[Stage]) -> None:
    """At least one update is handed on, and no more than `outputs` says."""
    for name, updates, staged in transformed(case):
        clients = len(updates.values)
        found = len(staged.values)
        most = case.plugin.outputs(clients)
        if not 1 <= found <= most:
            raise CheckFailed(
                f"1 to {most} updates for {clients} clients in {name}",
                f"{found}",
                "override outputs(): later steps are checked against it",
            )


@promised_by(Stage)
def check_order_of_clients_does_not_matter(case: Case[Stage]) -> None:
    """The same clients in another order are mixed in the same way."""
    for name, updates, before in transformed(case):
        order = np.random.default_rng(3).permutation(len(updates.values))
        after = matrix_of(of_stage(case.plugin, some_rows(updates, order)))
        back = after[:, torch.from_numpy(np.argsort(order))]
        if farthest(matrix_of(before), back) > ROUNDING:
            raise CheckFailed(
                f"the same mixtures when {name} is put in another order",
                "others",
                "break ties and draw groups by `round.clients.ids`, not by position",
            )


@promised_by(FixedStage)
def check_mixing_is_the_same_when_asked_again(case: Case[FixedStage]) -> None:
    """A mixing follows from the facts of the round alone: whoever asks again, also after a resume, gets the same."""
    for name, updates, _ in transformed(case):
        facts = updates.round.facts
        first, again = (plugin.mixing(facts) for plugin in (case.plugin, case.fresh()))
        if found := difference((first.matrix, first.offset), (again.matrix, again.offset), "it"):
            raise CheckFailed(
                f"the same mixing in {name}",
                found.replace("it[0]", "the matrix").replace("it[1]", "the offset"),
                "draw from facts.streams.generator('aggregation/...', round_number=facts.number)",
            )


@promised_by(CapStage)
def check_caps_follow_their_clients(case: Case[CapStage]) -> None:
    """Caps are the same when asked again and when clients come in another order."""
    for name, updates, _ in transformed(case):
        clients = updates.round.clients
        order = np.random.default_rng(3).permutation(len(clients))
        caps = case.plugin.caps(clients)
        again = case.fresh().caps(clients.take(order))
        if not torch.equal(caps[torch.from_numpy(order)], again):
            raise CheckFailed(
                f"caps that follow their clients in {name}", "others", "compute them from the clients that are given"
            )


def transformed(case: Case[Stage]) -> Iterator[tuple[str, ClientUpdates, Staged]]:
    """Every situation, and what the stage makes of it."""
    for name, (updates, staged) in case.once(answers).items():
        assert isinstance(staged, Staged)
        yield name, updates, staged


def matrix_of(staged: Staged) -> Tensor:
    """The mixing matrix, (m, n)."""
    return staged.mixing.diag() if staged.mixing.ndim == 1 else staged.mixing


def farthest(one: Tensor, other: Tensor) -> float:
    """How far rows of one matrix are from their nearest in the other, in whatever order they come."""
    if one.shape != other.shape:
        return float("inf")
    distances = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
    return float(torch.maximum(distances.amin(0), distances.amin(1)).max())
