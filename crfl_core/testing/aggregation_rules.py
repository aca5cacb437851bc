"""Checks of aggregation rules: their weights and their breakdown."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.aggregator import Aggregator, LinearAggregator
from crfl_core.records.round import ClientUpdates, RuleResult
from crfl_core.testing.sample_rounds import (
    UPDATE_BOUND,
    WEIGHT_TOLERANCE,
    cast_to,
    clients_of,
    every_size,
    exceeds_one,
    gaussian,
    is_constant,
    ordinary_round,
    round_of,
    round_size,
    run_rule,
    run_situations,
    select_clients,
)
from crfl_core.testing.suite import Case, CheckFailed, Skipped, check_for
from crfl_core.training import aggregator_contract as core


@check_for(Aggregator)
def check_weights_are_not_negative(case: Case[Aggregator]) -> None:
    """No client enters with a negative weight, in no coordinate, unless the rule declares `signed_weights`."""
    if case.plugin.signed_weights:
        raise Skipped("its weights are signed")
    for name, _, aggregate in rule_results(case):
        for what, weights in ask_weights(aggregate).items():
            if float(weights.min()) < 0:
                raise CheckFailed(
                    f"{what} of at least 0 in {name}",
                    f"{float(weights.min()):.3g}",
                    "report p_i >= 0; what does not come from the clients is the offset; or set signed_weights = True",
                )


@check_for(Aggregator)
def check_weights_sum_to_at_most_one(case: Case[Aggregator]) -> None:
    """Together the clients enter with weight 1 or less in every coordinate, or with that of a constant server rate."""
    skip_if_measured_by_the_server(case)
    totals = {name: float(per_parameter(aggregate).abs().sum(0).max()) for name, _, aggregate in rule_results(case)}
    if exceeds_one(totals.values()) and not is_constant([*totals.values(), *totals_of_few(case)]):
        name = max(totals, key=lambda name: totals[name])
        raise CheckFailed(
            f"weights that sum to at most 1 in {name}, or to the same in every round",
            f"{totals[name]:.6g}",
            "divide by their sum: the server's step is 1",
        )


def totals_of_few(case: Case[Aggregator]) -> list[float]:
    """Return the sums of the weights when fewer clients are left."""
    all_clients = ordinary_round(case)
    few = (select_clients(all_clients, np.arange(left)) for left in (len(all_clients.values) // 2, 2, 1))
    return [float(per_parameter(run_rule(case.plugin, updates)).abs().sum(0).max()) for updates in few]


@check_for(Aggregator)
def check_weights_rebuild_the_aggregate(case: Case[Aggregator]) -> None:
    """`update = sum_i p_i u_i + offset`: the weights in the radius are those that reached the model."""
    for dtype in (torch.float64, torch.float32):
        for name, updates in every_size(case).items():
            given = cast_to(updates, dtype)
            try:
                core.check_weights(case.plugin, run_rule(case.plugin, given), given.values)
            except PluginFailure as error:
                raise CheckFailed(
                    f"update = sum_i p_i u_i + offset in {name}, {dtype}",
                    str(error),
                    "report the weights that were used, everything else as `offset`; a rule with a weight per "
                    "coordinate reports them through `full_weights`",
                ) from error


@check_for(Aggregator)
def check_order_of_clients_does_not_matter(case: Case[Aggregator]) -> None:
    """The same clients in another order get the same weights and give the same aggregate."""
    for name, updates, before in rule_results(case):
        order = np.random.default_rng(3).permutation(len(updates.values))
        after = run_rule(case.plugin, select_clients(updates, order))
        moved = float((after.weights - before.weights[torch.from_numpy(order)]).abs().max())
        gap = float((after.update - before.update).abs().max())
        if moved > WEIGHT_TOLERANCE or gap > WEIGHT_TOLERANCE * max(1.0, float(updates.values.abs().max())):
            raise CheckFailed(
                f"weights that follow their clients when {name} is put in another order",
                f"weights that change by {moved:.3g} and an update that changes by {gap:.3g}",
                "break ties and draw groups by `round.clients.ids`, not by position",
            )


@check_for(Aggregator)
def check_respects_agreement(case: Case[Aggregator]) -> None:
    """Identical updates give a share of themselves, between none and all of it, and an offset; zeros give zero.

    A rule without weights, such as a vote of signs, only has to move no parameter the other way.
    """
    skip_if_measured_by_the_server(case)
    count = case.once(round_size)
    same = 0.1 * gaussian(1, 6)
    update = torch.from_numpy(same[0])
    agreed = run_rule(case.plugin, round_of(np.tile(same, (count, 1))))
    weighs = bool(agreed.weights.any())
    most = max(1.0, float(per_parameter(agreed).sum(0).max()))
    found = agreed.update - agreed.offset if weighs and agreed.offset is not None else agreed.update
    share = float(found @ update / (update @ update))
    aside = float((found - share * update).norm() / update.norm())
    if not weighs and bool((found * update < 0).any()):
        raise CheckFailed(
            "no parameter moved against what all clients agree on", f"{found.tolist()} for {update.tolist()}", "turn it"
        )
    if weighs and (aside > WEIGHT_TOLERANCE or not -WEIGHT_TOLERANCE <= share <= most + WEIGHT_TOLERANCE):
        raise CheckFailed(
            f"between 0 and {most:g} times the update that all clients agree on",
            f"{share:.6g} times it, and {aside:.3g} times its length in another direction",
            "aggregate nothing but what clients submitted, and report what else is added as `offset`",
        )
    nothing = run_rule(case.plugin, round_of(np.zeros((count, 6)))).update
    if bool(nothing.any()):
        raise CheckFailed(
            "zero for zero updates", f"an update of norm {float(nothing.norm()):.3g}", "add noise in a stage, if at all"
        )


@check_for(Aggregator)
def check_full_weights_agree_with_weights(case: Case[Aggregator]) -> None:
    """Where a rule has a weight per coordinate, `weights` holds the largest one of each client."""
    seen = False
    for name, updates, aggregate in rule_results(case):
        if aggregate.full_weights is None:
            continue
        seen = True
        full = aggregate.full_weights()
        if full.shape != updates.values.shape:
            raise CheckFailed(
                f"full_weights() of shape {tuple(updates.values.shape)}", f"{tuple(full.shape)}", "return (n, P)"
            )
        gap = float((full.abs().amax(1).double() - aggregate.weights.double().abs()).abs().max())
        if gap > WEIGHT_TOLERANCE:
            raise CheckFailed(
                f"weights = full_weights().abs().amax(1) in {name}",
                f"a difference of {gap:.3g}",
                "report each client's largest weight: a smaller one would overstate the radius",
            )
    if not seen:
        raise Skipped("it has one weight per client")


@check_for(Aggregator)
def check_notes_are_numbers(case: Case[Aggregator]) -> None:
    """Notes for the ledger are finite numbers under names."""
    try:
        run_rule(case.plugin, ordinary_round(case))
    except PluginFailure as error:
        raise CheckFailed("finite numbers as notes", str(error), "convert them with float(...)") from error


@check_for(LinearAggregator)
def check_fixes_weights(case: Case[LinearAggregator]) -> None:
    """The weights follow from facts about the clients alone, one per participant, in double precision."""
    clients = clients_of(case.once(round_size))
    weights = case.plugin.weights(clients)
    if weights.shape != (len(clients),) or weights.dtype != torch.float64:
        raise CheckFailed(
            f"{len(clients)} weights in float64", f"{tuple(weights.shape)} in {weights.dtype}", "return (n,), float64"
        )
    for plugin in (case.plugin, case.fresh()):
        if not torch.equal(plugin.weights(clients), weights):
            raise CheckFailed(
                "the same weights whenever they are asked for",
                "others",
                "compute them from the clients that are given, and remember nothing",
            )


@check_for(Aggregator)
def check_breakdown_grows_with_attackers(case: Case[Aggregator]) -> None:
    """The drift that a rule admits starts at 0, never falls with more attackers or longer honest updates."""
    aggregate = run_rule(case.plugin, honest_round(case))
    clients = clients_of(case.once(round_size))
    drifts, longer = (case.plugin.breakdown(clients, aggregate, bound) for bound in (UPDATE_BOUND, 2 * UPDATE_BOUND))
    if drifts is None or longer is None:
        raise Skipped("it knows nothing about its breakdown")
    wrong = ""
    if drifts.ndim != 1 or not len(drifts) or np.isnan(drifts).any():
        wrong = f"{drifts!r}"
    elif drifts[0] != 0:
        wrong = f"{drifts[0]:g} for no attacker"
    elif (np.diff(drifts[np.isfinite(drifts)]) < 0).any() or np.isfinite(drifts[np.isinf(drifts).cumsum() > 0]).any():
        wrong = f"a drift that falls: {drifts.round(3).tolist()}"
    elif (longer[: len(drifts)] < drifts[: len(longer)]).any():
        wrong = "a smaller drift for longer honest updates"
    if wrong:
        raise CheckFailed(
            "0 for no attacker, then more and more, infinite from where the rule breaks down",
            wrong,
            "return one entry for 0, 1, 2, ... attackers",
        )


@check_for(Aggregator)
def check_respects_breakdown(case: Case[Aggregator]) -> None:
    """No attack that is tried moves the aggregate farther than `breakdown` admits."""
    for clean in (honest_round(case), *(agreeing_round(case, length) for length in (0.2, 0.9, UPDATE_BOUND))):
        before = run_rule(case.plugin, clean)
        for attackers, push in itertools.product((1, 2, 4), (-100.0, -1.0, -0.22, -0.05, 0.22, 3.0, 1e6)):
            attacked = cast_to(clean, torch.float64)
            # the heaviest clients, against what the others agree on, or far beyond it
            attacked.values[-attackers:] = push * UPDATE_BOUND * torch.nn.functional.normalize(before.update, dim=0)
            after = run_rule(case.plugin, attacked)
            admitted = case.plugin.breakdown(clean.round.clients, after, UPDATE_BOUND)
            if admitted is None:
                raise Skipped("it knows nothing about its breakdown")
            if attackers >= len(admitted):
                continue
            moved = float((after.update - before.update).norm())
            if moved > admitted[attackers] * (1 + WEIGHT_TOLERANCE):
                raise CheckFailed(
                    f"a drift of at most {admitted[attackers]:.4g} by {attackers} attackers",
                    f"{moved:.4g}",
                    "correct the bound of breakdown(): certificates rely on it",
                )


def skip_if_measured_by_the_server(case: Case[Aggregator]) -> None:
    """Skip rules with samples of the server.

    They may rescale updates, so weights have another scale.
    """
    if type(case.plugin).needs_root:
        raise Skipped("it measures updates by the server's samples, and may set their length")


def honest_round(case: Case[Aggregator]) -> ClientUpdates:
    """Return an ordinary round without updates above the bound."""
    values = gaussian(case.once(round_size), 6)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return round_of(values * UPDATE_BOUND / np.maximum(lengths, UPDATE_BOUND))


def agreeing_round(case: Case[Aggregator], length: float) -> ClientUpdates:
    """Return a round of updates that nearly share a direction.

    All updates have this length.
    """
    values = gaussian(1, 6) + 0.01 * gaussian(case.once(round_size), 6)
    return round_of(values * length / np.linalg.norm(values, axis=1, keepdims=True))


def rule_results(case: Case[Aggregator]) -> Iterator[tuple[str, ClientUpdates, RuleResult]]:
    """Yield every situation with the result of the rule."""
    for name, (updates, aggregate) in case.once(run_situations).items():
        assert isinstance(aggregate, RuleResult)
        yield name, updates, aggregate


def per_parameter(aggregate: RuleResult) -> Tensor:
    """Return the weights as (n, P).

    If they are equal in all coordinates, return (n, 1).
    """
    return aggregate.weights[:, None] if aggregate.full_weights is None else aggregate.full_weights()


def ask_weights(aggregate: RuleResult) -> dict[str, Tensor]:
    """Return all weights that an aggregate reports."""
    return {"weights": aggregate.weights, "full weights": per_parameter(aggregate)}
