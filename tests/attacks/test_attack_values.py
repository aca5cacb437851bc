"""Every attack beside numbers that were computed another way: by hand, by numpy, by plain loops, by autograd."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from crfl_attacks.alie import Alie, largest_z
from crfl_attacks.byzantine import Gaussian, InnerProductManipulation, SignFlip
from crfl_attacks.edge_case import RIDGE, log_densities
from crfl_attacks.model_replacement import ConstrainAndScale, Pgd
from crfl_attacks.triggers import FeatureTrigger, PixelTrigger, split_pattern
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from torch import Tensor

from crfl_core import dump_config, load_config
from crfl_core.extend import Attack, ConfigError, DataFacts, Domain, Streams
from crfl_core.training.federation import Federation
from tests.attacks.support import attack_of, attacked, known_of
from tests.attacks.test_every_attack import batches_of
from tests.oracle import Problem, batches, federation_of, played, sample_gradient, tiny, updates_of

IMAGES = DataFacts(inputs=64, classes=10, domain=Domain(0.0, 1.0), image_shape=(8, 8))


def test_the_parts_of_a_distributed_trigger_add_up_to_it_and_share_no_pixel() -> None:
    pattern = PixelTrigger(norm=3.0, size=3).pattern(IMAGES)
    pieces = split_pattern(pattern, 4, IMAGES)
    torch.testing.assert_close(pieces.sum(0), pattern)
    assert ((pieces != 0).sum(0) <= 1).all()
    assert [int(torch.count_nonzero(piece)) for piece in pieces] == [3, 2, 2, 2]


def test_the_channels_of_a_pixel_go_to_the_same_attacker() -> None:
    facts = DataFacts(inputs=48, classes=2, domain=Domain(0.0, 1.0), image_shape=(3, 4, 4))
    first, second = split_pattern(PixelTrigger(norm=1.0, size=2).pattern(facts), 2, facts)
    assert torch.nonzero(first).flatten().tolist() == [0, 1, 16, 17, 32, 33]
    assert torch.nonzero(second).flatten().tolist() == [4, 5, 20, 21, 36, 37]


def test_features_of_a_table_are_split_too() -> None:
    facts = DataFacts(inputs=5, classes=2, domain=Domain())
    pieces = split_pattern(FeatureTrigger(norm=2.0, features=(1, 4)).pattern(facts), 2, facts)
    assert [torch.nonzero(piece).flatten().tolist() for piece in pieces] == [[1], [4]]


@pytest.mark.parametrize("clients", [[1, 3, 6], 3])
def test_each_attacker_of_dba_shows_its_own_part_and_test_inputs_the_whole(clients: Any) -> None:
    """Six pixels over three attackers, given or drawn, in one chunk or apart: two for each, by ascending id."""
    trigger = {"type": "features", "norm": 1.0, "features": [0, 7, 8, 15, 56, 63]}
    options = {"clients": clients, "poisoned_per_batch": 3, "trigger": trigger}
    federation = attacked("dba", options, dtype="float64")
    clean, dirty = batches_of(federation, 1)
    assert len(clean.clients) == 3
    own_pixels = [[0, 7], [8, 15], [56, 63]]
    for attacker, pixels in enumerate(own_pixels):
        moved = (dirty.x[attacker] - clean.x[attacker]).abs().amax((0, 1))
        assert set(torch.nonzero(moved).flatten().tolist()) <= set(pixels)
        assert float(moved.max()) == pytest.approx(1 / np.sqrt(6))
    backdoored, clean_set = federation.test_sets["backdoored"], federation.test_sets["clean"]
    moved = backdoored.features - clean_set.features[clean_set.labels != 0]
    assert set(torch.nonzero(moved.abs().amax(0)).flatten().tolist()) == {0, 7, 8, 15, 56, 63}
    rows = played(federation)[0].clients
    assert rows.delta[rows.attacking] == pytest.approx([np.sqrt(2 / 6)] * 3, rel=1e-6)


def test_fewer_parts_than_attackers_are_handed_out_in_turn() -> None:
    federation = attacked("dba", {"clients": [0, 1, 2], "parts": 2})
    local = federation.prepared["local"]
    assert torch.equal(local[0], local[2])
    torch.testing.assert_close(local[0] + local[1], federation.prepared["pattern"])
    assert not local[3:].any()


def test_the_bent_gradient_is_that_of_the_mixed_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    weights, start, task = (torch.randn(1, 2, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    own = ConstrainAndScale(alpha=0.3).local_gradient(task, weights, start, {})
    variable = weights.clone().requires_grad_()
    loss = 0.3 * (task * variable).sum() + 0.7 * (variable - start).norm(dim=-1).sum()
    (expected,) = torch.autograd.grad(loss, variable)
    torch.testing.assert_close(own, expected)
    at_start = ConstrainAndScale(alpha=0.3).local_gradient(task, start, start, {})
    torch.testing.assert_close(at_start, 0.3 * task)


def reference_update(federation: Federation, client: int, bend: Any, project: Any) -> NDArray[np.float64]:
    """An attacker's update in round 1 by a plain loop over samples: the first three of a batch are poisoned."""
    data, streams = federation.data, federation.streams
    known: dict[str, Any] = {"participants": [], "rates": [], "steps": [], "clip_norms": [], "noise_stds": []}
    problem = Problem(
        data.x.numpy(), data.y.numpy(), 10, data.partition, batch_size=16, weight_decay=0.0, streams=streams, **known
    )
    pattern = PixelTrigger().pattern(data.facts).numpy()
    model = start = np.zeros(650)
    for batch in batches(problem, client, 1, 5):
        gradient = np.zeros(650)
        for position, row in enumerate(batch):
            x, label = problem.x[row], int(problem.y[row])
            if position < 3:
                x, label = np.clip(x + pattern, 0, 1), 0
            gradient += sample_gradient(problem, model, x, label) / len(batch)
        model = project(model - 0.2 * bend(gradient, model - start), start)
    return model - start


def bent(gradient: NDArray[np.float64], away: NDArray[np.float64]) -> NDArray[np.float64]:
    length = float(np.linalg.norm(away))
    return 0.6 * gradient + (0.4 * away / length if length else 0.0)


def projected(model: NDArray[np.float64], start: NDArray[np.float64]) -> NDArray[np.float64]:
    length = float(np.linalg.norm(model - start))
    return model if length <= 0.1 else start + 0.1 * (model - start) / length


@pytest.mark.parametrize(
    ("name", "options", "bend", "project"),
    [
        ("constrain-and-scale", {"alpha": 0.6}, bent, lambda model, start: model),
        ("pgd", {"radius": 0.1}, lambda gradient, away: gradient, projected),
    ],
)
@pytest.mark.parametrize("chunk", [1, 8])
def test_local_training_of_attackers_who_interfere_with_steps_equals_a_plain_loop(
    name: str, options: dict[str, Any], bend: Any, project: Any, chunk: int
) -> None:
    engine = {"type": "local", "threads": 1, "chunk_clients": chunk}
    table = options | {"poisoned_per_batch": 3, "scale": 2.0}
    federation = attacked(name, table, dtype="float64", engine=engine)
    rows = played(federation)[0].clients
    for client in (0, 4):
        expected = 2.0 * np.linalg.norm(reference_update(federation, client, bend, project))
        assert rows.submitted_norm[client] == pytest.approx(expected, rel=1e-9)
    honest = played(federation_of(tiny(dtype="float64", rounds=2, attack="none")))[0].clients
    others = [1, 2, 3, 5, 6, 7]
    np.testing.assert_allclose(rows.submitted_norm[others], honest.submitted_norm[others], rtol=1e-12)


def test_a_projected_model_is_the_nearest_of_the_ball() -> None:
    start = torch.tensor([[[1.0, 1.0]]])
    inside, outside = torch.tensor([[[1.2, 1.0]]]), torch.tensor([[[4.0, 5.0]]])
    assert torch.equal(Pgd(radius=0.5).after_step(inside, start, {}), inside)
    torch.testing.assert_close(Pgd(radius=0.5).after_step(outside, start, {}), torch.tensor([[[1.3, 1.4]]]))


def test_replacement_puts_the_attackers_own_model_in_place_under_partial_participation() -> None:
    """Half of the clients take part; p_i, a share among these, times what is submitted is what was trained."""
    training = {"learning_rate": 0.2, "steps": 5, "batch_size": 16, "participation": 0.5}
    options: dict[str, Any] = {"clients": [4], "rounds": [1], "poisoned_per_batch": 3}
    replacing, plain = (
        attacked("model-replacement", options | {"scale": scale}, training=training, dtype="float64", seed=seed_with(4))
        for scale in ("replace", 1.0)
    )
    scaled, trained = (played(federation)[0].clients for federation in (replacing, plain))
    samples = np.array(replacing.facts.samples)
    assert len(scaled) == 4
    weight = samples[4] / samples[scaled.client].sum()
    attacking = scaled.attacking
    assert scaled.weight[attacking] == pytest.approx([weight])
    assert weight * scaled.submitted_norm[attacking] == pytest.approx(trained.submitted_norm[attacking], rel=1e-9)


def seed_with(client: int) -> int:
    """The first seed with which half of the eight clients, among them this one, take part in round 1."""
    return next(
        seed
        for seed in range(100)
        if client in Streams(seed).generator("participation", round_number=1).choice(8, 4, replace=False)
    )


def crafted(attack: Attack, honest: int = 7, attackers: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Gaussian updates of honest clients and attackers, and what the attackers submit."""
    updates = updates_of([5] * (honest + attackers))
    seen = replace(updates, values=updates.values[:honest])
    own = updates.values[honest:]
    weights = torch.full((attackers,), 1 / (honest + attackers), dtype=torch.float64)
    return seen.values, own, attack.craft(known_of(seen, own, weights), {})


def test_a_flipped_sign_is_the_opposite_of_what_was_trained() -> None:
    _, own, submitted = crafted(SignFlip(scale=3.0))
    torch.testing.assert_close(submitted, -3.0 * own)


def test_inner_product_manipulation_submits_the_negative_mean_and_turns_the_average_around() -> None:
    honest, _, submitted = crafted(InnerProductManipulation(epsilon=0.5))
    expected = -0.5 * honest.numpy().mean(0)
    np.testing.assert_allclose(submitted.numpy(), [expected, expected])
    for epsilon, turned in ((3.4, False), (3.6, True)):  # 7 honest to 2 malicious: the ratio is 3.5
        honest, _, submitted = crafted(InnerProductManipulation(epsilon=epsilon))
        average = torch.cat([honest, submitted]).mean(0)
        assert bool(average @ honest.mean(0) < 0) == turned


@pytest.mark.parametrize(
    ("clients", "attackers", "share"),
    [(50, 24, 24 / 26), (20, 8, 9 / 12), (51, 12, 25 / 39), (9, 4, 4 / 5), (5, 4, 0.0)],
)
def test_the_largest_hidden_deviation_is_the_normal_quantile_of_the_paper(
    clients: int, attackers: int, share: float
) -> None:
    """s = floor(n / 2 + 1) - m supporters are needed, Phi(z) = (n - m - s) / (n - m)."""
    expected = max(0.0, NormalDist().inv_cdf(share)) if share else 0.0
    assert largest_z(clients, attackers) == pytest.approx(expected)


def test_a_little_is_mean_minus_z_standard_deviations_of_the_honest_updates() -> None:
    honest, _, submitted = crafted(Alie(z=1.5))
    expected = honest.numpy().mean(0) - 1.5 * honest.numpy().std(0)
    np.testing.assert_allclose(submitted.numpy(), [expected, expected])
    honest, _, submitted = crafted(Alie(), honest=11, attackers=9)
    expected = honest.numpy().mean(0) - NormalDist().inv_cdf(9 / 11) * honest.numpy().std(0)
    np.testing.assert_allclose(submitted[0].numpy(), expected)


@pytest.mark.parametrize("attack", [Alie(), InnerProductManipulation(), Gaussian(), SignFlip()])
def test_attackers_who_are_alone_in_a_round_still_attack(attack: Attack) -> None:
    _, own, submitted = crafted(attack, honest=0)
    assert bool(torch.isfinite(submitted).all())
    assert not torch.equal(submitted, own)


def test_gaussian_noise_has_the_given_spread_and_is_drawn_anew_for_every_attacker_and_round() -> None:
    updates = updates_of([5] * 3, size=20000)
    own = updates.values[:2]
    submitted = Gaussian(std=0.5).craft(known_of(updates, own), {})
    assert float(submitted.std()) == pytest.approx(0.5, rel=0.02)
    assert float(submitted.mean()) == pytest.approx(0.0, abs=0.01)
    assert (submitted[0] != submitted[1]).all()
    later = replace(updates, round=replace(updates.round, number=2))
    assert (Gaussian(std=0.5).craft(known_of(later, own), {}) != submitted).all()
    assert torch.equal(Gaussian(std=0.5).craft(known_of(updates, own), {}), submitted)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"source": 3, "target": 5}, [0, 1, 2, 5, 4, 5, 6, 7, 8, 9]),
        ({"target": 5}, [5] * 10),
        ({}, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
        ({"source": 3}, [0, 1, 2, 6, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_labels_are_flipped_as_the_options_say_and_inputs_stay(options: dict[str, Any], expected: list[int]) -> None:
    federation = attacked("label-flip", options)
    clean, dirty = batches_of(federation, 1)
    assert dirty.y.numpy().tolist() == np.array(expected)[clean.y.numpy()].tolist()
    assert torch.equal(dirty.x, clean.x)
    rows = played(federation)[0].clients
    assert not rows.delta.any()
    assert ("backdoored" in federation.test_sets) == ("target" in options)


def test_the_inputs_that_a_label_flip_is_about_are_those_of_its_source() -> None:
    federation = attacked("label-flip", {"source": 3, "target": 5})
    clean, concerned = federation.test_sets["clean"], federation.test_sets["backdoored"]
    assert torch.equal(concerned.features, clean.features[clean.labels == 3])
    assert set(concerned.labels.tolist()) == {3}


def poisoned_rows(federation: Federation) -> NDArray[np.float64]:
    """The inputs that stand in the place of the attackers' own."""
    _, dirty = batches_of(federation, 1)
    assert set(dirty.y[:, :, :3].flatten().tolist()) == {attack_of(federation).backdoor_class}
    found: NDArray[np.float64] = dirty.x[:, :, :3].reshape(-1, 64).numpy()
    return found


def test_a_semantic_backdoor_uses_the_samples_that_have_the_property_by_nature() -> None:
    table = {"type": "above", "features": [20, 21], "threshold": 0.7}
    options = {"poisoned_per_batch": 3, "source": 8, "target": 1, "property": table}
    federation = attacked("semantic", options, dtype="float64")
    x, y = federation.data.x.numpy(), federation.data.y.numpy()
    expected = {row.tobytes() for row in x[(x[:, [20, 21]].mean(1) > 0.7) & (y == 8)]}
    assert {row.tobytes() for row in poisoned_rows(federation)} == expected
    backdoored = federation.test_sets["backdoored"]
    assert (backdoored.labels == 8).all()
    assert (backdoored.features[:, [20, 21]].mean(1) > 0.7).all()


def test_bright_samples_are_the_given_share_of_all_and_none_has_the_target_label() -> None:
    federation = attacked("semantic", {"target": 2, "property": {"type": "bright", "share": 0.1}})
    x, y = federation.data.x.numpy(), federation.data.y.numpy()
    brightest = np.argsort(-x.mean(1), kind="stable")[:30]
    assert len(federation.prepared["x"]) == int((y[brightest] != 2).sum())
    assert federation.prepared["x"].mean(1).min() >= np.sort(x.mean(1))[-31]
    assert (federation.test_sets["backdoored"].labels != 2).all()


def test_the_density_is_that_of_a_mixture_with_a_common_covariance() -> None:
    data = federation_of(tiny(dtype="float64", attack="none")).data
    x, y = data.x.numpy(), data.y.numpy()
    means = np.stack([x[y == label].mean(0) for label in range(10)])
    centred = x - means[y]
    covariance = centred.T @ centred / len(x)
    covariance += RIDGE * np.trace(covariance) / 64 * np.eye(64)
    shares = np.bincount(y) / len(y)

    def density(of: NDArray[np.float64]) -> NDArray[np.float64]:
        each = [multivariate_normal(mean, covariance).logpdf(of) for mean in means]
        found: NDArray[np.float64] = logsumexp(np.stack(each, 1) + np.log(shares), axis=1)
        return found

    ours = [scores.numpy() for scores in log_densities(data)]
    theirs = [density(x), density(data.test_x.numpy())]
    constant = theirs[0][0] - ours[0][0]
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own + constant, other, rtol=1e-8)


def test_edge_cases_are_the_rarest_samples_of_another_class() -> None:
    federation = attacked("edge-case", {"target": 3, "tail": 0.1}, dtype="float64")
    scores = log_densities(federation.data)[0].numpy()
    rare = np.argsort(scores)[:30]
    expected = [row for row in rare if federation.data.y[row] != 3]
    assert torch.equal(federation.prepared["x"], federation.data.x[sorted(expected)])


def written(path: Path, **changes: Any) -> str:
    """An edge-case file: ten images of the digit 7 to train with, four to test, one of which has the target label."""
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x": generator.random((10, 8, 8)),
        "test_x": generator.random((4, 64)).astype(np.float32),
        "test_y": np.array([7, 7, 1, 7]),
    }
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    np.savez(path, **arrays)
    return str(path)


def test_edge_cases_come_from_a_file_if_one_is_named(tmp_path: Path) -> None:
    file = written(tmp_path / "rare.npz")
    federation = attacked("edge-case", {"file": file, "target": 1, "poisoned_per_batch": 3}, dtype="float64")
    pool = np.random.default_rng(0).random((10, 64))
    assert {row.tobytes() for row in poisoned_rows(federation)} == {row.tobytes() for row in pool}
    backdoored = federation.test_sets["backdoored"]
    assert backdoored.labels.tolist() == [7, 7, 7]  # the one that is of the target class shows nothing
    assert load_config(tomllib.loads(dump_config(federation.config))).config == federation.config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_y": None}, "the arrays x, test_x and test_y are needed"),
        ({"x": np.zeros((3, 63))}, "x has the shape (3, 63), but inputs have 64 features"),
        ({"x": np.zeros((0, 64))}, "x has the shape (0, 64)"),
        ({"x": np.full((3, 64), 16.0)}, "x has values from 16 to 16: scale them to 0..1"),
        ({"test_x": np.full((4, 64), np.nan)}, "test_x has values from nan to nan"),
        ({"x": np.array(["a"] * 3)}, "x has the shape (3,)"),
        ({"test_y": np.zeros(3, np.int64)}, "test_y must hold one class for each row of test_x, found (3,)"),
        ({"test_y": np.full(4, 10)}, "test_y must hold classes 0..9, found 10"),
        ({"test_y": np.full(4, 1)}, "all of test_x are of the target class 1"),
        ({"x": np.array([{}], dtype=object)}, "cannot be read as npz"),
        ({"x": np.full((3, 64), "a")}, "x must hold numbers"),
    ],
)
def test_a_malformed_edge_case_file_is_refused_before_training(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    file = written(tmp_path / "rare.npz", **changes)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        attacked("edge-case", {"file": file, "target": 1, "poisoned_per_batch": 3})
    assert caught.value.key == "attack.file"
    assert "rare.npz" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 broken"])
def test_a_file_that_is_no_npz_is_refused_before_training(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rare.npz").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read as npz"):
        attacked("edge-case", {"file": str(tmp_path / "rare.npz"), "target": 1})
