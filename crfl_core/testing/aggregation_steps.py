"""Checks of all aggregation steps, and of stages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor

from crfl_core.errors import CrflError, PluginFailure
from crfl_core.plugin_api.aggregator import AggregationStep, CapStage, FixedStage, Stage
from crfl_core.records.round import ClientUpdates, RuleResult, State
from crfl_core.testing.sample_rounds import (
    HUGE,
    WEIGHT_TOLERANCE,
    cast_to,
    every_size,
    exceeds_one,
    gaussian,
    is_constant,
    ordinary_round,
    prepare_state,
    round_of,
    round_size,
    run_situations,
    run_stage,
    run_step,
    select_clients,
    situations,
    tensors,
)
from crfl_core.testing.suite import Case, CheckFailed, check_for, difference, usage_of
from crfl_core.training import aggregator_contract as core
from crfl_core.training.aggregation_chain import AppliedStage

FLOATS = (torch.float32, torch.float64)


@usage_of(AggregationStep)
def one_round(step: AggregationStep, case: Case[AggregationStep]) -> RuleResult | AppliedStage:
    """Run the step in an ordinary round."""
    return run_step(step, ordinary_round(case))


@check_for(AggregationStep)
def check_answers_every_round(case: Case[AggregationStep]) -> None:
    """Finite updates of one client or many, one parameter or 10,000, get finite answers of the right shape."""
    for dtype in FLOATS:
        for name, updates in every_size(case).items():
            demand_answer(case, name, cast_to(updates, dtype))


@check_for(AggregationStep)
def check_huge_updates_do_no_harm(case: Case[AggregationStep]) -> None:
    """The largest updates that the server takes for finite get finite answers: no attacker can stop a run."""
    for rows in (1, 2):
        updates = ordinary_round(case, torch.float32)
        updates.values[:rows] *= HUGE
        demand_answer(case, f"a round with updates of norm {HUGE:g}", updates)


@check_for(AggregationStep)
def check_survives_missing_clients(case: Case[AggregationStep]) -> None:
    """A round in which the server had to leave bad updates out is answered, however few are left."""
    all_clients = ordinary_round(case)
    for left in (len(all_clients.values) - 1, 3, 2, 1):
        try:
            result = run_step(case.plugin, select_clients(all_clients, np.arange(left)))
        except Exception as error:
            raise CheckFailed(
                f"an answer if {left} of {len(all_clients.values)} updates are left",
                f"{type(error).__name__}: {error}",
                "cope with fewer clients than check() was asked about, for example by lowering f: bad updates of "
                "attackers are not handed to a rule that depends on all",
            ) from error
        demand_finite(f"a round with {left} updates left", result)


@check_for(AggregationStep)
def check_keeps_inputs(case: Case[AggregationStep]) -> None:
    """Updates, broadcast model and facts about clients are as they were before."""
    # In both precisions: converting is a copy in one of them, and hides what happens in the other.
    for dtype in FLOATS:
        for name, updates in case.once(situations).items():
            given = cast_to(updates, dtype)
            kept = cast_to(updates, dtype)
            with suppress(PluginFailure):
                run_step(case.plugin, given)
            if found := difference(kept, given, "the input"):
                raise CheckFailed(f"the input of {name}, {dtype}, unchanged", found, "work on a copy: values.clone()")


@check_for(AggregationStep)
def check_answers_share_no_memory_with_inputs(case: Case[AggregationStep]) -> None:
    """What is answered can be changed without changing what clients submitted."""
    for dtype in FLOATS:
        for name, updates in case.once(situations).items():
            given = cast_to(updates, dtype)
            inputs = {"the updates": given.values, "the broadcast model": given.round.start}
            parts = tensors(run_step(case.plugin, given)).items()
            for (part, tensor), (what, source) in itertools.product(parts, inputs.items()):
                if tensor.numel() and tensor.untyped_storage().data_ptr() == source.untyped_storage().data_ptr():
                    raise CheckFailed(
                        f"new tensors for {name}, {dtype}",
                        f"that {part} is a view of {what}",
                        "return a copy: tensor.clone()",
                    )


@check_for(AggregationStep)
def check_keeps_precision_and_device(case: Case[AggregationStep]) -> None:
    """Answers to float32 and float64 updates have their precision and lie on their device."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    for device in devices:
        for dtype in FLOATS:
            updates = cast_to(ordinary_round(case), dtype, device)
            result = run_step(case.plugin, updates)
            for name, tensor in same_precision(result).items():
                if tensor.dtype != dtype:
                    raise CheckFailed(
                        f"{name} of {dtype} for updates of {dtype}", str(tensor.dtype), f"end with {name}.to(values)"
                    )
            for name, tensor in tensors(result).items():
                if tensor.device != updates.values.device and not name.startswith("state"):
                    raise CheckFailed(f"{name} on {device}", str(tensor.device), "use values.device for new tensors")


@check_for(AggregationStep)
def check_state_survives_a_checkpoint(case: Case[AggregationStep]) -> None:
    """A run that is resumed from plain tensors in every round continues exactly like one that never stopped."""
    count = case.once(round_size)
    plays, others = (
        [round_of(gaussian(count, 6, seed=seed + number), number=number) for number in range(1, 5)] for seed in (0, 10)
    )
    steady = case.fresh()
    going = prepare_state(steady, plays[0])
    stored = through_checkpoint(prepare_state(case.fresh(), plays[0]))
    for updates in plays:
        before = stored
        kept = run_step(steady, updates, going)
        resumed = run_step(case.fresh(), updates, stored)
        going = kept.state
        stored = through_checkpoint(resumed.state)
        if found := difference(kept, resumed):
            raise CheckFailed(
                "the same answers after a resume",
                f"that in round {updates.round.number} {found}",
                "return everything that the next round needs as tensors in `state`, and keep nothing on the instance",
            )
    elsewhere = prepare_state(case.fresh(), others[0])
    for updates in others:
        elsewhere = run_step(case.fresh(), updates, elsewhere).state
    if found := difference(kept, run_step(case.fresh(), plays[-1], before)):
        raise CheckFailed(
            "the same answer to the same updates and state after another run in the same process",
            f"that {found}",
            "return everything that the next round needs in `state`, and keep nothing on the class or in the module",
        )


@check_for(AggregationStep)
def check_federations_do_not_meet(case: Case[AggregationStep]) -> None:
    """Rounds give the same answers in turn with those of another federation, whose updates are much longer."""
    count = case.once(round_size)
    plays, others = (
        [round_of(factor * gaussian(count, 6, seed=seed + number), number=number) for number in range(1, 5)]
        for seed, factor in ((0, 1.0), (10, 1e3))
    )
    alone = list(play_rounds(case.fresh(), plays))
    before = zip(play_rounds(case.fresh(), others), play_rounds(case.fresh(), plays), strict=True)
    after = zip(play_rounds(case.fresh(), plays), play_rounds(case.fresh(), others), strict=True)
    in_turn = [*(found for _, found in before), *(found for found, _ in after)]
    for updates, kept, found in zip(2 * plays, 2 * alone, in_turn, strict=True):
        if what := difference(kept, found):
            raise CheckFailed(
                "the same answers beside another federation in the same process",
                f"that in round {updates.round.number} {what}",
                "return everything that the next round needs in `state`, and keep nothing on the class or in the "
                "module: the groups of a run are such federations",
            )


def play_rounds(step: AggregationStep, plays: list[ClientUpdates]) -> Iterator[RuleResult | AppliedStage]:
    """Yield the answers of a step to one round after the other."""
    state = prepare_state(step, plays[0])
    for updates in plays:
        result = run_step(step, updates, state)
        state = result.state
        yield result


def demand_answer(case: Case[AggregationStep], situation: str, updates: ClientUpdates) -> None:
    """Fail unless the step returns a finite answer of the right shape."""
    try:
        result = run_step(case.plugin, updates)
    except CrflError as error:
        raise CheckFailed(
            f"an answer to {situation}, {tuple(updates.values.shape)} in {updates.values.dtype}",
            str(error),
            "handle this input, or raise OptionError from check() for rounds that the options do not fit",
        ) from error
    demand_finite(situation, result)


def demand_finite(situation: str, result: RuleResult | AppliedStage) -> None:
    """Raise `CheckFailed` for NaN or infinity.

    Infinity is allowed in a cap, where it means no cap.
    """
    for name, tensor in tensors(result).items():
        wrong = torch.isnan(tensor) if name == "cap" else ~torch.isfinite(tensor)
        if bool(wrong.any()):
            raise CheckFailed(
                f"finite {name} in {situation}",
                f"{int(wrong.sum())} entries of {tensor.numel()} that are not",
                "guard divisions by zero norms or spreads, and compute squares in double precision",
            )


def same_precision(result: RuleResult | AppliedStage) -> dict[str, Tensor]:
    """Return the parts of an answer in the precision of updates.

    Weights may be more precise.
    """
    names = ("update", "offset", "values", "mixing")
    found = {name: part for name in names if isinstance(part := getattr(result, name, None), Tensor)}
    if isinstance(result, RuleResult) and result.full_weights is not None:
        found["full_weights()"] = result.full_weights()
    return found


def through_checkpoint(state: State) -> dict[str, Tensor]:
    """Write a state to a checkpoint and read it.

    The result has plain tensors under names.
    """
    stored = safetensors.numpy.save({name: tensor.cpu().contiguous().numpy() for name, tensor in state.items()})
    return {name: torch.from_numpy(array) for name, array in safetensors.numpy.load(stored).items()}


@check_for(Stage)
def check_mixing_rebuilds_what_is_handed_on(case: Case[Stage]) -> None:
    """`values = mixing @ updates + offset`: the weights behind the stage are those that reach the model."""
    for dtype in (torch.float64, torch.float32):
        for name, updates in every_size(case).items():
            given = cast_to(updates, dtype)
            found = run_stage(case.plugin, given)
            try:
                offset = found.offset if found.pull is None else found.pull * given.round.start
                core.check_identity(case.plugin, found.values, found.mixing, given.values, offset)
            except PluginFailure as error:
                raise CheckFailed(
                    f"values = mixing @ updates + offset in {name}, {dtype}",
                    str(error),
                    "report the matrix that was used, and everything else as `offset`",
                ) from error


@check_for(Stage)
def check_mixing_only_averages(case: Case[Stage]) -> None:
    """Entries of the mixing are not negative; rows sum to at most 1, or all to the same: a constant server rate."""
    sums = {name: matrix_of(staged).sum(1) for name, _, staged in play_stages(case)}
    constant = is_constant([float(one) for rows in sums.values() for one in (rows.min(), rows.max())])
    for name, _, staged in play_stages(case):
        least = float(matrix_of(staged).min())
        most = float(sums[name].max())
        if least < 0 or (exceeds_one([most]) and not constant):
            raise CheckFailed(
                f"rows of shares in {name}",
                f"entries from {least:.3g} and rows that sum to {most:.6g}",
                "divide rows by their sum, and report what is added as `offset`",
            )


@check_for(Stage)
def check_announces_outputs(case: Case[Stage]) -> None:
    """At least one update is handed on, and no more than `outputs` says."""
    for name, updates, staged in play_stages(case):
        clients = len(updates.values)
        found = len(staged.values)
        most = case.plugin.outputs(clients)
        if not 1 <= found <= most:
            raise CheckFailed(
                f"1 to {most} updates for {clients} clients in {name}",
                f"{found}",
                "override outputs(): later steps are checked against it",
            )


@check_for(Stage)
def check_order_of_clients_does_not_matter(case: Case[Stage]) -> None:
    """The same clients in another order are mixed in the same way."""
    for name, updates, before in play_stages(case):
        order = np.random.default_rng(3).permutation(len(updates.values))
        after = matrix_of(run_stage(case.plugin, select_clients(updates, order)))
        back = after[:, torch.from_numpy(np.argsort(order))]
        if matching_distance(matrix_of(before), back) > WEIGHT_TOLERANCE:
            raise CheckFailed(
                f"the same mixtures when {name} is put in another order",
                "others",
                "break ties and draw groups by `round.clients.ids`, not by position",
            )


@check_for(FixedStage)
def check_mixing_is_the_same_when_asked_again(case: Case[FixedStage]) -> None:
    """A mixing follows from the facts of the round alone: asked again, also after a resume, it is the same."""
    for name, updates, _ in play_stages(case):
        facts = updates.round.facts
        first, again = (plugin.mixing(facts) for plugin in (case.plugin, case.fresh()))
        if found := difference((first.matrix, first.offset), (again.matrix, again.offset), "it"):
            raise CheckFailed(
                f"the same mixing in {name}",
                found.replace("it[0]", "the matrix").replace("it[1]", "the offset"),
                "draw from facts.streams.generator('aggregation/...', round_number=facts.number)",
            )


@check_for(CapStage)
def check_caps_follow_their_clients(case: Case[CapStage]) -> None:
    """Caps are the same when asked again and when clients come in another order."""
    for name, updates, _ in play_stages(case):
        clients = updates.round.clients
        order = np.random.default_rng(3).permutation(len(clients))
        caps = case.plugin.caps(clients)
        again = case.fresh().caps(clients.take(order))
        if not torch.equal(caps[torch.from_numpy(order)], again):
            raise CheckFailed(
                f"caps that follow their clients in {name}", "others", "compute them from the clients that are given"
            )


def play_stages(case: Case[Stage]) -> Iterator[tuple[str, ClientUpdates, AppliedStage]]:
    """Yield every situation with the result of the stage."""
    for name, (updates, staged) in case.once(run_situations).items():
        assert isinstance(staged, AppliedStage)
        yield name, updates, staged


def matrix_of(staged: AppliedStage) -> Tensor:
    """Return the mixing matrix, (m, n)."""
    return staged.mixing.diag() if staged.mixing.ndim == 1 else staged.mixing


def matching_distance(one: Tensor, other: Tensor) -> float:
    """Return the largest distance of a row to its nearest row.

    The nearest row is in the other matrix. The distance is infinite if the shapes differ.
    """
    if one.shape != other.shape:
        return float("inf")
    distances = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
    return float(torch.maximum(distances.amin(0), distances.amin(1)).max())
