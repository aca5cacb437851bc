"""Attacks that are optimised, beside plain NumPy in double precision: closed forms, loops, and brute force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from crfl_aggregators.krum import Krum
from crfl_aggregators.trimmed_mean import Median, TrimmedMean
from crfl_attacks.adaptive import Adaptive
from crfl_attacks.certificate_seeking import easiest_direction, margin_slopes, margins_and_runners_up
from crfl_attacks.min_max import MinMax, MinSum, search_largest
from crfl_attacks.model_replacement import Neurotoxin
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.extend import Aggregator, AttackerObservation, AttackerView, ClientUpdates, ConfigError, State
from crfl_core.training.aggregation_chain import run_chain
from tests.attacks.support import attacked, known_of, public
from tests.oracle import federation_of, played, tiny, updates_of

Array = NDArray[np.float64]


def honest_and_known(honest: int, attackers: int, seed: int = 0, size: int = 6) -> tuple[Array, AttackerView]:
    """Updates around a common mean, and what attackers know who see them and may try rules."""
    drawn = np.random.default_rng(seed).standard_normal((honest + attackers, size)) + 0.5
    updates = updates_of([5] * (honest + attackers), size=size)
    updates = replace(updates, values=torch.from_numpy(drawn))

    def through(candidates: Tensor, rule: Aggregator | None) -> Tensor:
        together = replace(updates, values=torch.cat([updates.values[:honest], candidates]))
        return run_chain([rule or Median()], together, {}).update

    seen = ClientUpdates(updates.values[:honest], updates.round)
    return drawn[:honest], known_of(seen, updates.values[honest:], aggregate_candidates=through)


def pushes(honest: Array) -> dict[str, Array]:
    """Minus the mean at length 1, minus the spread, minus the signs."""
    mean = honest.mean(0)
    return {"unit": -mean / np.sqrt((mean**2).sum()), "std": -honest.std(0), "sign": -np.sign(mean)}


def farthest(honest: Array, push: Array) -> float:
    """The largest gamma of min-max: the least of the upper roots of one quadratic for each honest update."""
    most = max(float(((one - other) ** 2).sum()) for one in honest for other in honest)
    away = [honest.mean(0) - one for one in honest]
    return min(float(max(np.roots([push @ push, 2 * (a @ push), a @ a - most]).real)) for a in away)


def farthest_in_sum(honest: Array, push: Array) -> float:
    """The largest gamma of min-sum: differences from the mean add up to nothing, so that one square root is left."""
    most = max(sum(float(((one - other) ** 2).sum()) for other in honest) for one in honest)
    spread = ((honest - honest.mean(0)) ** 2).sum()
    return float(np.sqrt((most - spread) / (len(honest) * (push @ push))))


@settings(deadline=None, max_examples=60)
@given(
    honest=st.integers(2, 9),
    kind=st.sampled_from(["unit", "std", "sign"]),
    seed=st.integers(0, 999),
    scale=st.sampled_from([1e-4, 1.0, 1e5]),
)
def test_hidden_updates_go_as_far_as_the_closed_form_says(honest: int, kind: Any, seed: int, scale: float) -> None:
    values, known = honest_and_known(honest, 2, seed)
    known = replace(known, honest=replace(known.honest, values=scale * known.honest.values))
    values = scale * values
    push = pushes(values)[kind]
    for attack, gamma in ((MinMax, farthest(values, push)), (MinSum, farthest_in_sum(values, push))):
        submitted = attack(perturbation=kind).craft(known, {}).numpy()
        expected = values.mean(0) + gamma * push
        np.testing.assert_allclose(submitted, [expected] * 2, rtol=1e-4, atol=1e-5 * scale)


def test_the_search_finds_the_last_success_wherever_it_lies() -> None:
    for edge in (1e-4, 0.3, 0.999, 1.0, 1.5, 1.999):
        found = search_largest(lambda gamma, edge=edge: gamma <= edge, start=1.0)  # type: ignore[misc]
        assert edge - 2e-6 <= found <= edge
    assert search_largest(lambda _: False, start=1.0) == 0.0
    assert search_largest(lambda _: True, start=0.0) == 0.0


@pytest.mark.parametrize("attack", [MinMax(), MinSum(), Adaptive()])
def test_attackers_without_honest_clients_to_hide_among_still_attack(attack: Any) -> None:
    _, known = honest_and_known(0, 2)
    torch.testing.assert_close(attack.craft(known, {}), -known.own_updates)
    _, known = honest_and_known(1, 2)
    assert bool(torch.isfinite(attack.craft(known, {})).all())


def trimmed(values: Array) -> Array:
    found: Array = np.sort(values, axis=0)[2:-2].mean(0)
    return found


def nearest(values: Array) -> Array:
    """Krum with f = 2: the update with the smallest sum of distances to its n - f - 2 nearest."""
    distances = ((values[:, None] - values[None]) ** 2).sum(-1)
    scores = np.sort(distances, axis=1)[:, 1 : len(values) - 2 - 2 + 1].sum(1)
    found: Array = values[int(np.argmin(scores))]
    return found


RULES: list[tuple[Aggregator, Any]] = [
    (TrimmedMean(trim=2), trimmed),
    (Median(), lambda values: np.median(values, axis=0)),
    (Krum(f=2), nearest),
]


@pytest.mark.parametrize(("rule", "reference"), RULES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("seed", range(4))
def test_an_adaptive_attack_does_what_brute_force_through_the_rule_can_do(
    rule: Aggregator, reference: Any, seed: int
) -> None:
    """4,000 multiples of each of the three perturbations through an independent rule: hardly one is better."""
    honest, known = honest_and_known(8, 2, seed, size=20)
    mean = honest.mean(0)

    def back(candidate: Array) -> float:
        return -float(reference(np.concatenate([honest, [candidate] * 2])) @ mean)

    (submitted, same) = Adaptive(rule=rule).craft(known, {}).numpy()
    np.testing.assert_array_equal(submitted, same)
    reach = 10 * max(float(np.linalg.norm(one - other)) for one in honest for other in honest)
    tried = [
        back(mean + gamma * push)
        for push in pushes(honest).values()
        for gamma in np.geomspace(1e-3, 1, 4000) * reach / np.linalg.norm(push)
    ]
    untouched = back(mean)
    assert back(submitted) > untouched
    assert back(submitted) - untouched >= 0.97 * (max(tried) - untouched)


def test_the_runs_own_chain_is_what_an_adaptive_attack_goes_through_unless_a_rule_is_named() -> None:
    """The stages count: beyond a cap on norms a longer update does no more."""
    capped, plain = (
        played(attacked("adaptive", {"rounds": [1]}, dtype="float64", aggregation=chain))[0].clients
        for chain in ([{"type": "norm-bound", "bound": 0.05}, "fedavg"], ["fedavg"])
    )
    assert plain.submitted_norm[0] > 5 * plain.submitted_norm[1:4].max()  # the mean follows however far it goes
    assert capped.submitted_norm[0] <= plain.submitted_norm[0]
    named = {"rounds": [1], "rule": {"type": "krum", "f": 2}}
    fooled = played(attacked("adaptive", named, dtype="float64"))[0].clients
    assert fooled.submitted_norm[0] < plain.submitted_norm[0] / 2  # hides from a rule that is not there


def test_a_rule_that_does_not_exist_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"attack\.rule\.type = 'krumm': there is no aggregator 'krumm'"):
        attacked("adaptive", {"rule": "krumm"})


def test_neurotoxin_stays_out_of_what_changed_most() -> None:
    generator = np.random.default_rng(3)
    before, after = generator.standard_normal((2, 40))
    _, known = honest_and_known(2, 1)
    current = replace(known.round, start=torch.from_numpy(before))
    seen = AttackerObservation(current, torch.from_numpy(after), torch.zeros(1, 40), attacked=False)
    attack = Neurotoxin(ratio=0.25)
    state = attack.learn(seen, {"pattern": torch.zeros(1)})
    taken = set(np.argsort(-np.abs(after - before))[:10].tolist())
    gradient = torch.from_numpy(generator.standard_normal((1, 3, 40)))
    bent = attack.local_gradient(gradient, gradient, gradient, state)
    assert {int(column) for column in np.flatnonzero((bent == 0).all(1)[0])} == taken
    left = sorted(set(range(40)) - taken)
    assert torch.equal(bent[..., left], gradient[..., left])
    assert attack.local_gradient(gradient, gradient, gradient, {}) is gradient


def test_in_a_run_neurotoxin_moves_only_what_the_round_before_left_alone() -> None:
    submitted: list[Tensor] = []

    class Watched(Neurotoxin):
        def craft(self, known: AttackerView, state: State) -> Tensor:
            submitted.append(known.own_updates)
            return super().craft(known, state)

    table = {"type": "watched", "clients": [0], "rounds": [2, 3], "ratio": 0.2}
    config = tiny(dtype="float64", attack=table, training={"learning_rate": 0.2, "steps": 5, "weight_decay": 0.1})
    outcomes = played(federation_of(config, {"watched": Watched}))
    broadcast = [torch.zeros(650, dtype=torch.float64), *(outcome.parameters for outcome in outcomes)]
    for number, own in zip((2, 3), submitted, strict=True):
        change = np.abs((broadcast[number - 1] - broadcast[number - 2]).numpy())
        most = np.argsort(-change)[:130]
        assert not own[0, most].any()
        assert np.count_nonzero(own[0]) > 400


def linear_scene() -> tuple[AttackerView, Array, Array, Array]:
    """A softmax model that is not zero, its weights and biases, and test inputs."""
    federation = public()
    start = torch.from_numpy(np.random.default_rng(5).standard_normal(650))
    features = federation.test_sets["clean"].features
    _, known = honest_and_known(0, 2, size=650)
    known = replace(known, round=replace(known.round, start=start))
    blocks = federation.model.layout.unflatten(start)
    return known, blocks["weight"].numpy(), blocks["bias"].numpy(), features.numpy()


def test_slopes_of_margins_are_those_of_the_closed_form() -> None:
    """For W x + b: x in the row of the other class, minus x in the row of the label, and 1 and -1 in the bias."""
    known, weight, bias, x = linear_scene()
    logits = torch.from_numpy(x @ weight.T + bias)
    labels = logits.argmax(-1)
    margins, others = margins_and_runners_up(logits, labels)
    ordered = np.sort(logits.numpy(), axis=1)
    np.testing.assert_allclose(margins, ordered[:, -1] - ordered[:, -2], rtol=1e-12, atol=1e-15)
    slopes = margin_slopes(known.model, known.round.start, known.features, labels, others).numpy()
    for row in range(20):
        matrix, offset = np.zeros((10, 64)), np.zeros(10)
        matrix[others[row]], matrix[labels[row]] = x[row], -x[row]
        offset[others[row]], offset[labels[row]] = 1.0, -1.0
        np.testing.assert_allclose(slopes[row], np.concatenate([matrix.ravel(), offset]), atol=1e-12)


def test_slopes_of_a_network_are_those_of_differences() -> None:
    config = tiny(dtype="float64", attack="none", model={"type": "mlp", "hidden": [7]})
    federation = federation_of(config)
    start = federation.model.initial_parameters(np.random.default_rng(0)).double()
    x = federation.test_sets["clean"].features[:5]
    labels, others = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([5, 5, 0, 9, 1])
    slopes = margin_slopes(federation.model, start, x, labels, others)
    for coordinate in np.random.default_rng(1).choice(len(start), 60, replace=False):
        moved = torch.zeros_like(start)
        moved[coordinate] = 1e-6
        ahead, behind = federation.model.logits(torch.stack([start + moved, start - moved]), x)
        rows = torch.arange(5)
        rise = (ahead - behind)[rows, others] - (ahead - behind)[rows, labels]
        torch.testing.assert_close(slopes[:, coordinate], rise / 2e-6, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("push", [0.05, 0.3, 1.0, 3.0])
def test_the_chosen_direction_changes_as_many_near_predictions_as_the_best_candidate(push: float) -> None:
    """Counted again in NumPy: nearest first, all that came so far, and pairs of classes by themselves."""
    known, weight, bias, x = linear_scene()
    direction = easiest_direction(known, known.round.start, push, 32).numpy()
    assert np.linalg.norm(direction) == pytest.approx(1.0)
    logits = x @ weight.T + bias
    labels = logits.argmax(1)
    others = np.array([np.argsort(row)[-2] for row in logits])
    margins = logits.max(1) - np.sort(logits, axis=1)[:, -2]
    near = np.argsort(margins)[:32]
    near = near[np.argsort(margins[near] / np.sqrt(2 * ((x[near] ** 2).sum(1) + 1)))]

    def unit(row: int) -> Array:
        matrix = np.zeros((10, 65))
        matrix[others[row]], matrix[labels[row]] = np.append(x[row], 1), -np.append(x[row], 1)
        return matrix / np.linalg.norm(matrix)

    def changed(matrix: Array) -> int:
        pushed = matrix / np.linalg.norm(matrix) * push
        moved = x[near] @ (weight + pushed[:, :64]).T + bias + pushed[:, 64]
        return int((moved.argmax(1) != labels[near]).sum())

    candidates = [sum(map(unit, near[:count])) for count in range(1, 33)]
    for pair in {(labels[row], others[row]) for row in near}:
        candidates.append(sum(unit(row) for row in near if (labels[row], others[row]) == pair))
    own = np.concatenate([direction[:640].reshape(10, 64), direction[640:, None]], axis=1)
    assert changed(own) == max(changed(np.asarray(matrix)) for matrix in candidates)
    assert push < 0.3 or changed(own) > 3


def test_residuals_are_as_long_as_the_bound_and_no_longer() -> None:
    """With weight decay the residual is u + (1 - c) w; 'honest' is what the ledger knows as the update bound."""
    training = {"learning_rate": 0.2, "steps": 5, "batch_size": 16, "weight_decay": 0.1}
    for bound in ("honest", 0.4):
        options = {"bound": bound, "rounds": [2, 3]}
        outcomes = played(attacked("certificate-seeking", options, training=training, dtype="float64", rounds=3))
        for outcome in outcomes[1:]:
            rows = outcome.clients.take(outcome.clients.attacking)
            expected = rows.update_bound if bound == "honest" else np.full(2, 0.4)
            assert (rows.residual_norm <= expected).all()
            np.testing.assert_allclose(rows.residual_norm, expected, rtol=2e-5)


def test_what_the_model_predicted_before_the_attack_stays_the_aim() -> None:
    """A second attacked round does not take back what the first has changed."""
    table = {"rounds": [2, 3], "clients": [0, 4], "samples": 20}
    federation = attacked("certificate-seeking", table, dtype="float64", rounds=3)
    outcomes = played(federation)
    clean = played(attacked("certificate-seeking", table | {"rounds": [3]}, dtype="float64", rounds=3))
    features = federation.test_sets["clean"].features
    first, second, single = (
        federation.model.logits(outcome.aggregate[None], features)[0].argmax(-1)
        for outcome in (outcomes[1], outcomes[2], clean[1])
    )
    assert int((first != single).sum()) > 0
    assert int((second != single).sum()) >= int((first != single).sum())


def test_a_model_without_a_bound_needs_a_number() -> None:
    model = {"type": "mlp", "hidden": [8]}
    with pytest.raises(ConfigError, match="nothing bounds the honest updates of this model") as caught:
        played(attacked("certificate-seeking", {}, model=model))
    assert caught.value.key == "attack.bound"
    outcomes = played(attacked("certificate-seeking", {"bound": 0.5}, model=model))
    rows = outcomes[0].clients.take(outcomes[0].clients.attacking)
    np.testing.assert_allclose(rows.submitted_norm, [0.5, 0.5], rtol=1e-4)
