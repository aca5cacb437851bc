"""Checks of models: logits, gradients, local steps and declared facts."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from crfl_core.errors import OptionError, PluginFailure
from crfl_core.plugin_api.model import BoundModel, GradientSteps, Model
from crfl_core.records.inputs import DataFacts, Domain
from crfl_core.testing.suite import Case, CheckFailed, Skipped, check_for, difference, usage_of
from crfl_core.training.models import check_linear

KINDS_OF_DATA = {
    "images": DataFacts(64, 5, Domain(0.0, 1.0), (1, 8, 8)),
    "tabular data": DataFacts(12, 3, Domain(0.0, 1.0)),
}
LARGE_IMAGES = {
    "images of 28 x 28 pixels": DataFacts(784, 10, Domain(0.0, 1.0), (1, 28, 28)),
    "images of 3 x 32 x 32 numbers": DataFacts(3072, 10, Domain(0.0, 1.0), (3, 32, 32)),
}
"""Tried only for a model that fits nothing smaller."""
MODEL_TOLERANCE = 1e-8
HOSTILE = (1e3, math.nan)
"""Factors of the models of other clients, which must not matter."""


@usage_of(Model)
def predictions(model: Model, _: Case[Model]) -> tuple[object, ...]:
    """Compute initial parameters, logits and gradients."""
    found = []
    for facts, bound in build_models(Case(model)):
        parameters, x, y, weights = sample_problem(bound, facts)
        start = bound.initial_parameters(np.random.default_rng(0))
        found += [start, bound.logits(parameters[:, 0], x[0]), bound.gradient(parameters, x, y, weights)]
    return tuple(found)


@check_for(Model)
def check_can_be_built(case: Case[Model]) -> None:
    """The model can be built for images or for tabular data."""
    build_models(case)


@check_for(Model)
def check_parameters_follow_the_layout(case: Case[Model]) -> None:
    """`initial_parameters` gives one finite vector of the layout's size, the same for the same generator."""
    for _, bound in build_models(case):
        start = bound.initial_parameters(np.random.default_rng(3))
        if start.shape != (bound.layout.size,) or not bool(torch.isfinite(start).all()):
            raise CheckFailed(
                f"{bound.layout.size} finite parameters",
                f"shape {tuple(start.shape)}",
                "let `layout` name every tensor",
            )
        if not torch.equal(start, bound.initial_parameters(np.random.default_rng(3))):
            raise CheckFailed("equal draws from equal generators", "others", "draw from the given generator only")


@check_for(Model)
def check_logits_of_many_models_are_those_of_each(case: Case[Model]) -> None:
    """(R, P) and (b, features) give (R, b, C), for each model what it gives alone, in the same precision."""
    for facts, bound in build_models(case):
        parameters, x, _, _ = sample_problem(bound, facts)
        models = parameters[:, 0]
        together = bound.logits(models, x[0])
        if together.shape != (len(models), len(x[0]), facts.classes):
            raise CheckFailed(
                f"logits of shape {(len(models), len(x[0]), facts.classes)}",
                f"{tuple(together.shape)}",
                "return (R, b, C)",
            )
        for model, logits in zip(models, together, strict=True):
            demand_close("logits", logits, bound.logits(model[None], x[0])[0], "treat replicas independently")
        single = bound.logits(models.float(), x[0].float())
        if single.dtype != torch.float32:
            raise CheckFailed(
                "float32 logits for float32 input", str(single.dtype), "create no tensors of a fixed dtype"
            )


@check_for(Model)
def check_votes_are_counted_by_the_largest_logit(case: Case[Model]) -> None:
    """`count_votes` says how many models have their largest logit at each class, ties to the lowest class."""
    for facts, bound in build_models(case):
        x = sample_problem(bound, facts)[1][0]
        for count in (1, 8, 11):
            models = 0.3 * torch.randn(count, bound.layout.size, dtype=x.dtype, generator=generator(count))
            models[0] = 0.0  # a tie of all classes, for most models
            winners = bound.logits(models, x).argmax(-1)
            expected = torch.nn.functional.one_hot(winners, facts.classes).sum(0)
            if not torch.equal(bound.count_votes(models, x).long(), expected):
                raise CheckFailed(
                    f"votes of {count} models as logits decide them", "others", "leave count_votes() as it is"
                )


@check_for(Model)
def check_gradient_is_that_of_the_loss(case: Case[Model]) -> None:
    """`gradient` agrees with differences of the weighted cross-entropy of `logits`, for every client and replica."""
    step = 1e-6
    for facts, bound in build_models(case):
        parameters, x, y, weights = sample_problem(bound, facts)
        gradient = bound.gradient(parameters, x, y, weights)
        if gradient.shape != parameters.shape:
            raise CheckFailed(
                f"gradients of shape {tuple(parameters.shape)}", f"{tuple(gradient.shape)}", "return (R, n, P)"
            )
        for seed in range(3):
            direction = torch.randn(bound.layout.size, dtype=torch.float64, generator=generator(seed))
            up, down = (losses(bound, parameters + side * step * direction, x, y, weights) for side in (1, -1))
            measured = (up - down) / (2 * step)
            found = gradient @ direction
            gap = float((measured - found).abs().max())
            if gap > 1e-4 * (1 + float(measured.abs().max())):
                raise CheckFailed(
                    "the slope of the weighted cross-entropy, sum_b weight_b loss_b",
                    f"a gradient that misses it by {gap:.3g} along a random direction",
                    "weight the samples, do not average them again",
                )


@check_for(Model)
def check_clients_and_padding_do_not_mix(case: Case[Model]) -> None:
    """A client's gradient depends neither on other clients nor on samples of weight 0."""
    for facts, bound in build_models(case):
        parameters, x, y, weights = sample_problem(bound, facts)
        together = bound.gradient(parameters, x, y, weights)
        for client in range(x.shape[0]):
            rows = slice(client, client + 1)
            alone = bound.gradient(parameters[:, rows], x[rows], y[rows], weights[rows])
            demand_close("a client's gradient", together[:, rows], alone, "treat clients independently")
        for factor in HOSTILE:
            others = factor * parameters
            others[:, -1] = parameters[:, -1]
            beside = bound.gradient(others, x, y, weights)[:, -1:]
            what = f"gradient beside models {factor:g} times as large"
            demand_close(what, beside, alone, "treat clients independently, without a sum or maximum over them")
        padded = x.clone()
        padded[weights == 0] = 0.9
        demand_close(
            "gradients", together, bound.gradient(parameters, padded, y, weights), "multiply each loss by its weight"
        )


@check_for(Model)
def check_keeps_nothing_between_calls(case: Case[Model]) -> None:
    """A model, or a copy of it, answers the same after much larger models and after some that are not finite."""
    fix = "keep nothing on the model, on its class or in a module"
    for facts, bound in build_models(case):
        parameters, x, y, weights = sample_problem(bound, facts)
        try:
            used = copy.deepcopy(bound)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise CheckFailed("a model that copy.deepcopy copies: groups have one each", what, fix) from error

        def answers(model: BoundModel, models: Tensor) -> tuple[Tensor, Tensor]:
            return model.gradient(models, x, y, weights), model.logits(models[:, 0], x[0])  # noqa: B023 - called here

        first = answers(used, parameters)
        for factor in HOSTILE:
            answers(used, factor * parameters)
        for model in (used, copy.deepcopy(bound)):
            if found := difference(first, answers(model, parameters)):
                raise CheckFailed("the same answers whatever was asked before", f"that {found}", fix)


@check_for(Model)
def check_local_steps_follow_the_gradient(case: Case[Model]) -> None:
    """`local_models` makes the steps `w <- w - rate (gradient + decay w)`, in whatever layout."""
    for facts, bound in build_models(case):
        parameters, x, y, weights = sample_problem(bound, facts)
        rates = torch.tensor([0.5, 0.1, 0.0]).double()
        decay = torch.tensor([0.1, 0.2, 0.3]).double()
        for penalty in (None, decay):
            expected = GradientSteps(bound, parameters)
            found = bound.local_models(parameters)
            for _ in range(2):
                expected.step(x, y, weights, rates, penalty)
                found.step(x, y, weights, rates, penalty)
            demand_close("local models", found.parameters(), expected.parameters(), "compare step() with gradient()")


@check_for(Model)
def check_gradients_of_samples_add_up(case: Case[Model]) -> None:
    """`sample_gradients` are those whose weighted sum is `gradient`: clipping shortens each of them."""
    for facts, bound in build_models(case):
        parameters, x, y, weights = sample_problem(bound, facts)
        each = bound.sample_gradients(parameters, x, y)
        expected = (*parameters.shape[:2], y.shape[1], bound.layout.size)
        if each.shape != expected:
            raise CheckFailed(f"gradients of shape {expected}", f"{tuple(each.shape)}", "return (R, n, b, P)")
        total = (weights[:, :, None] * each).sum(2)
        demand_close("their sum", total, bound.gradient(parameters, x, y, weights), "take one gradient per sample")


@check_for(Model)
def check_linear_models_are_the_cores_own(case: Case[Model]) -> None:
    """A model that declares `linear` is a `LinearModel`, unchanged: certificates rest on the form of its logits."""
    for _, bound in build_models(case):
        if not bound.facts.linear:
            raise Skipped("it declares no linear model")
        try:
            check_linear(case.plugin, bound)
        except PluginFailure as error:
            raise CheckFailed(
                "a LinearModel", str(error), "declare linear=False, or put what it does to inputs into a feature map"
            ) from error


@check_for(Model)
def check_gradient_bound_holds(case: Case[Model]) -> None:
    """No sample's gradient is longer than `gradient_bound` says for inputs of its norm."""
    for facts, bound in build_models(case):
        parameters, x, y, _ = sample_problem(bound, facts)
        for client, sample, scale in itertools.product(range(len(x)), range(x.shape[1]), (0.0, 1.0, 30.0)):
            one = x[client : client + 1, sample : sample + 1]
            longest = bound.gradient_bound(float(one.norm()))
            if math.isinf(longest):
                raise Skipped("it bounds no gradients")
            label = y[client : client + 1, sample : sample + 1]
            models = scale * parameters[:, client : client + 1]
            found = float(bound.gradient(models, one, label, torch.ones_like(label, dtype=x.dtype)).norm(dim=-1).max())
            if found > longest * (1 + MODEL_TOLERANCE):
                raise CheckFailed(
                    f"gradients of norm {longest:.4g} at most for an input of norm {float(one.norm()):.4g}",
                    f"{found:.4g}",
                    "correct gradient_bound(): certificates rely on it, and runs stop where it is exceeded",
                )


@check_for(Model)
def check_convex_models_are_convex(case: Case[Model]) -> None:
    """A model that declares `convex` has a loss that never lies above its chords."""
    for facts, bound in build_models(case):
        if not bound.facts.convex:
            raise Skipped("it declares no convex loss")
        parameters, x, y, weights = sample_problem(bound, facts)
        for scale in (1.0, 10.0):
            one = scale * parameters[:1]
            other = -scale * parameters[1:2].flip(-1)
            middle = losses(bound, (one + other) / 2, x, y, weights)
            chord = (losses(bound, one, x, y, weights) + losses(bound, other, x, y, weights)) / 2
            if bool((middle > chord + MODEL_TOLERANCE * (1 + chord.abs())).any()):
                raise CheckFailed("a loss below its chords", "one above", "declare convex=False")


@check_for(Model)
def check_operator_norm_is_a_norm(case: Case[Model]) -> None:
    """Linear models know the spectral norm of their centred weights: homogeneous, and at most the whole norm."""
    for facts, bound in build_models(case):
        parameters = sample_problem(bound, facts)[0][0, 0]
        found = bound.operator_norm(parameters)
        if found is None:
            raise Skipped("it has no block of weights")
        twice = bound.operator_norm(-2.0 * parameters)
        whole = float(parameters.norm())
        if twice is None or abs(twice - 2 * found) > 1e-6 * whole or not 0 <= found <= whole * (1 + MODEL_TOLERANCE):
            raise CheckFailed(
                f"a norm between 0 and {whole:.4g} that doubles with the weights",
                f"{found} and {twice}",
                "take the largest singular value of the weights without their mean row",
            )


def build_models(case: Case[Model]) -> Iterator[tuple[DataFacts, BoundModel]]:
    """Return the model for every kind of data that it fits.

    Raises `CheckFailed` if its options fit none.
    """
    found, refusals = case.once(models_for_data)
    if not found:
        raise CheckFailed(
            f"a model that can be built for {', '.join(refusals)}, or some of these",
            "; ".join(f"{data}: {why}" for data, why in refusals.items()),
            "correct build(), or pass an instance whose options fit one of these",
        )
    return iter(found)


def models_for_data(case: Case[Model]) -> tuple[list[tuple[DataFacts, BoundModel]], dict[str, str]]:
    """Build the model for images and tabular data.

    Also return why it was refused, by kind of data.
    """
    built: list[tuple[DataFacts, BoundModel]] = []
    refusals: dict[str, str] = {}
    for kinds in (KINDS_OF_DATA, LARGE_IMAGES):
        for name, facts in kinds.items() if not built else ():
            try:
                built.append((facts, case.plugin.build(facts)))
            except OptionError as error:
                refusals[name] = str(error)
    return built, refusals


def generator(seed: int) -> torch.Generator:
    """Return a generator of the kit."""
    return torch.Generator().manual_seed(seed)


def sample_problem(model: BoundModel, facts: DataFacts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw parameters, inputs, labels and sample weights.

    They are of 2 replicas and 3 clients. The sample weights have padding.
    """
    source = generator(5)
    parameters = 0.3 * torch.randn(2, 3, model.layout.size, dtype=torch.float64, generator=source)
    x = torch.rand(3, 6, facts.inputs, dtype=torch.float64, generator=source)
    y = torch.randint(facts.classes, (3, 6), generator=source)
    weights = torch.full((3, 6), 1 / 6, dtype=torch.float64)
    weights[1] = torch.tensor([0.25, 0.25, 0.25, 0.25, 0.0, 0.0])
    return parameters, x, y, weights


def losses(model: BoundModel, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted cross-entropy of every replica and client, (R, n)."""
    found = []
    for client in range(parameters.shape[1]):
        logits = model.logits(parameters[:, client], x[client])
        each = cross_entropy(logits.flatten(0, 1), y[client].repeat(len(logits)), reduction="none")
        found.append((each.view(len(logits), -1) * weights[client]).sum(-1))
    return torch.stack(found, dim=1)


def demand_close(what: str, found: Tensor, expected: Tensor, fix: str) -> None:
    """Fail unless two tensors are equal up to rounding."""
    gap = float((found - expected).abs().max())
    if not gap <= MODEL_TOLERANCE * (1 + float(expected.abs().max())):
        raise CheckFailed(f"the same {what} batched and alone", f"a difference of {gap:.3g}", fix)
