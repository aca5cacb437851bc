"""What every aggregation stage promises about its mixing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from crfl_core.federation.chain import call_stage
from crfl_core.kinds.aggregator import Stage
from crfl_core.testing.comparing import difference
from crfl_core.testing.sample_rounds import answers, cast_to, every_size, some_rows, tolerance
from crfl_core.testing.suite import Case, CheckFailed, Skipped, promised_by
from crfl_core.updates import ClientUpdates, StageResult

ROUNDING = 1e-6


@promised_by(Stage)
def check_mixing_rebuilds_what_is_handed_on(case: Case[Stage]) -> None:
    """`values = mixing @ updates + offset`: the weights behind the stage are those that reach the model."""
    for dtype in (torch.float64, torch.float32):
        for name, updates in every_size(case).items():
            given = cast_to(updates, dtype)
            staged = call_stage(case.plugin, given, {})
            rebuilt = staged.mix(given.values)
            if staged.offset is not None:
                rebuilt = rebuilt + staged.offset
            gap = float((rebuilt - staged.values).abs().max())
            if gap > tolerance(given.values):
                raise CheckFailed(
                    f"values = mixing @ updates + offset in {name}, {dtype}",
                    f"that it misses by {gap:.3g}",
                    "report the matrix that was used, and everything else as `offset`",
                )


@promised_by(Stage)
def check_mixing_only_averages(case: Case[Stage]) -> None:
    """Entries of the mixing are not negative, and rows sum to at most 1."""
    for name, _, staged in transformed(case):
        matrix = staged.matrix
        least, most = float(matrix.min()), float(matrix.sum(1).max())
        if least < 0 or most > 1 + ROUNDING:
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
        found, most = len(staged.values), case.plugin.outputs(clients)
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
        after = call_stage(case.plugin, some_rows(updates, order), {}).matrix
        back = after[:, torch.from_numpy(np.argsort(order))]
        if farthest(before.matrix, back) > ROUNDING:
            raise CheckFailed(
                f"the same mixtures when {name} is put in another order",
                "others",
                "break ties and draw groups by `round.clients.ids`, not by position",
            )


@promised_by(Stage)
def check_fixed_mixing_does_not_look_at_updates(case: Case[Stage]) -> None:
    """If a stage is "fixed", mixing and offset are the same whatever is submitted."""
    if case.plugin.depends != "fixed":
        raise Skipped(f"it depends on {case.plugin.depends!r}")
    for name, updates, one in transformed(case):
        for others in changed(updates):
            other = call_stage(case.plugin, others, {})
            if found := difference((one.matrix, one.offset), (other.matrix, other.offset), "it"):
                raise CheckFailed(
                    f"mixing and offset of {name} to be the same for other updates",
                    found.replace("it[0]", "the mixing").replace("it[1]", "the offset"),
                    "declare depends = 'own' or 'all'",
                )


@promised_by(Stage)
def check_own_factors_depend_on_nothing_else(case: Case[Stage]) -> None:
    """If a stage is "own", a client's factor in [0, 1], cap and offset stay when others submit something else."""
    if case.plugin.depends != "own":
        raise Skipped(f"it depends on {case.plugin.depends!r}")
    for name, updates, before in transformed(case):
        factors = diagonal(before, name)
        some = {0, len(updates.values) // 2, len(updates.values) - 1}
        for client, others in itertools.product(some, changed(updates)):
            others.values[client] = updates.values[client]
            after = call_stage(case.plugin, others, {})
            gap = abs(float(diagonal(after, name)[client] - factors[client]))
            if gap > ROUNDING or difference(row_of(before, client), row_of(after, client)):
                raise CheckFailed(
                    f"what becomes of an update in {name} to depend on nothing but this update",
                    f"a factor that changes by {gap:.3g}, or another cap or offset, when others submit something else",
                    "declare depends = 'all', or do not compare clients",
                )


@promised_by(Stage)
def check_caps_are_kept(case: Case[Stage]) -> None:
    """Behind a reported cap no residual `u + (1 - retention) w` is longer, and shorter ones pass unchanged."""
    seen = False
    for name, updates, staged in transformed(case):
        if staged.cap is None:
            continue
        seen, factors = True, diagonal(staged, name)
        pull = torch.outer(torch.from_numpy(1.0 - updates.round.clients.retention), updates.round.start)
        before, after = ((values + pull).norm(dim=1) for values in (updates.values, staged.values))
        if bool((after > staged.cap * (1 + ROUNDING)).any()):
            raise CheckFailed(
                f"residuals within the cap in {name}",
                f"one of {float(after.max()):.4g} over a cap of {float(staged.cap.min()):.4g}",
                "report the cap that is enforced, or none",
            )
        if bool(((before < staged.cap * (1 - ROUNDING)) & (factors < 1)).any()):
            raise CheckFailed(
                f"updates within the cap to pass unchanged in {name}",
                "one that is shrunk",
                "certificates count on honest updates passing: use min(1, cap / norm)",
            )
    if not seen:
        raise Skipped("it reports no cap")


def transformed(case: Case[Stage]) -> Iterator[tuple[str, ClientUpdates, StageResult]]:
    """Every situation, and what the stage makes of it."""
    for name, (updates, staged) in case.once(answers).items():
        assert isinstance(staged, StageResult)
        yield name, updates, staged


def diagonal(staged: StageResult, situation: str) -> Tensor:
    """The factors of an "own" stage, which mixes nobody with anybody else."""
    matrix = staged.matrix
    if matrix.shape[0] != matrix.shape[1] or bool((matrix - torch.diag(matrix.diagonal())).any()):
        raise CheckFailed(
            f"a diagonal mixing in {situation}",
            "one that mixes clients",
            "an 'own' stage multiplies each update by a factor: report these as mixing of shape (n,)",
        )
    return matrix.diagonal()


def row_of(staged: StageResult, client: int) -> tuple[object, ...]:
    """Cap and offset of one client; none is an offset of zero."""
    offset = torch.zeros_like(staged.values) if staged.offset is None else staged.offset
    return None if staged.cap is None else staged.cap[client], offset[client]


def changed(updates: ClientUpdates) -> Iterator[ClientUpdates]:
    """The same round with other updates of everybody: somewhere else, much shorter, much longer."""
    for factor, shift in ((-3.0, 0.5), (1e-3, 0.0), (1e3, 0.0)):
        other = cast_to(updates, updates.values.dtype)
        other.values.mul_(factor).add_(shift)
        yield other


def farthest(one: Tensor, other: Tensor) -> float:
    """How far rows of one matrix are from their nearest in the other, in whatever order they come."""
    if one.shape != other.shape:
        return float("inf")
    distances = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
    return float(torch.maximum(distances.amin(0), distances.amin(1)).max())
