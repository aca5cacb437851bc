"""Maps for images, against slow implementations in double precision that were written from their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from crfl_models.feature_maps.deskew import Deskew
from crfl_models.feature_maps.group_norm import GroupNorm
from crfl_models.feature_maps.rescaling import UnitSphere
from crfl_models.feature_maps.scattering import Scattering
from crfl_models.feature_maps.whiten import Whiten, draw_strokes
from numpy.typing import NDArray

from crfl_core.extend import ConfigError, FeatureMap, OptionError
from crfl_core.plugin_api.feature_map import FeatureMaps

Image = NDArray[np.float64]


def images(count: int, *shape: int) -> Image:
    return np.random.default_rng(3).random((count, *shape))


def bell(row: float, column: float, side: int, sigma: float, slant: float, angle: float) -> list[tuple[float, float]]:
    """The value of a Gaussian at a point of the torus and the distance along its axis, for every turn around it."""
    found = []
    for down in range(-2, 3):
        for right in range(-2, 3):
            y, x = row + side * down, column + side * right
            along = x * math.cos(angle) + y * math.sin(angle)
            across = y * math.cos(angle) - x * math.sin(angle)
            found.append((math.exp(-(along**2 + slant**2 * across**2) / (2 * sigma**2)), along))
    return found


def wavelet(side: int, sigma: float, frequency: float, angle: float, slant: float) -> NDArray[np.complex128]:
    values = np.zeros((2, side, side), complex)
    for row in range(side):
        for column in range(side):
            for height, along in bell(row, column, side, sigma, slant, angle):
                values[:, row, column] += height * np.exp(1j * frequency * along), height
    wave, envelope = values
    result: NDArray[np.complex128] = (wave - envelope * wave.sum() / envelope.sum()) * slant / (2 * math.pi * sigma**2)
    return result


def convolved(signal: Image, kernel: Image | NDArray[np.complex128]) -> NDArray[np.complex128]:
    """A convolution on the torus, shift by shift."""
    result = np.zeros(signal.shape, complex)
    for row, column in np.ndindex(kernel.shape):
        result += kernel[row, column] * np.roll(signal, (row, column), (0, 1))
    return result


def average(signal: Image, sigma: float, step: int, rows: int, columns: int) -> Image:
    side = len(signal)
    kernel = np.array(
        [[sum(h for h, _ in bell(r, c, side, sigma, 1.0, 0.0)) for c in range(side)] for r in range(side)]
    )
    smooth = convolved(signal, kernel / kernel.sum()).real
    return smooth[step : step * rows + 1 : step, step : step * columns + 1 : step]


def scattered(image: Image, angles: int) -> Image:
    """Every path by itself, in space instead of frequencies."""
    height, width = image.shape
    rows, columns = math.ceil(height / 4), math.ceil(width / 4)
    side = 4 * max(rows, columns) + 4
    padded = np.zeros((side, side))
    padded[2 : 2 + height, 2 : 2 + width] = image
    turns = [math.pi * turn / angles for turn in range(angles)]
    small = [wavelet(side, 0.8, 0.75 * math.pi, angle, 4 / angles) for angle in turns]
    large = [wavelet(side, 1.6, 0.375 * math.pi, angle, 4 / angles) for angle in turns]
    fine = [np.abs(convolved(padded, kernel)) for kernel in small]
    coarse = [np.abs(convolved(signal, kernel))[::2, ::2] for signal in (padded, *fine) for kernel in large]
    paths = [average(signal, 1.6, 4, rows, columns) for signal in (padded, *fine)]
    paths += [average(signal, 0.8, 2, rows, columns) for signal in coarse]
    return np.stack(paths)


@pytest.mark.parametrize(("height", "width", "angles"), [(8, 8, 3), (5, 7, 2)])
def test_scattering_is_what_convolutions_in_space_give(height: int, width: int, angles: int) -> None:
    picture = images(1, height, width)[0]
    link = Scattering(angles=angles).bind_image((1, height, width))
    assert link.image_shape == (1 + 2 * angles + angles**2, math.ceil(height / 4), math.ceil(width / 4))
    expected = scattered(picture, angles)
    found = link(torch.from_numpy(picture).flatten()).numpy().reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("angles", "features"), [(8, 3969), (4, 1225)])
def test_an_image_of_mnist_has_so_many_features(angles: int, features: int) -> None:
    assert Scattering(angles=angles).bind_image((1, 28, 28)).outputs == features


def test_colours_are_scattered_one_by_one() -> None:
    pictures = torch.from_numpy(images(2, 3, 8, 8))
    link = Scattering(angles=2).bind_image((3, 8, 8))
    grey = Scattering(angles=2).bind_image((1, 8, 8))
    together = link(pictures.flatten(1)).reshape(2, 3, -1)
    torch.testing.assert_close(together, grey(pictures.flatten(2)))


def test_scattering_hardly_notices_a_shift_that_moves_every_pixel() -> None:
    picture = torch.zeros(1, 28, 28, dtype=torch.float64)
    picture[0, 8:20, 10:12] = 1.0
    moved = picture.roll(1, 2)
    link = Scattering().bind_image((1, 28, 28))
    apart = float((link(picture.flatten(1)) - link(moved.flatten(1))).norm() / link(picture.flatten(1)).norm())
    assert apart < 0.5 * float((picture - moved).norm() / picture.norm())


def test_the_constant_of_scattering_is_within_a_factor_of_what_is_found() -> None:
    """Ascent over inputs: the constant is not far above the truth."""
    link = Scattering(angles=4).bind_image((1, 8, 8))
    x = torch.from_numpy(images(1, 64)).requires_grad_()
    for _ in range(60):
        ratio = link(x).norm() / x.norm()
        (gradient,) = torch.autograd.grad(ratio, x)
        x = (x + 0.3 * x.norm() * gradient / gradient.norm()).detach().requires_grad_()
    assert link.lipschitz is not None
    assert 0.4 * link.lipschitz < float(ratio.detach()) <= link.lipschitz


def upright(image: Image) -> Image:
    """Pixel by pixel, from the definition of the shear."""
    height, width = image.shape
    total = image.sum()
    cy = sum(image[r].sum() * r for r in range(height)) / total
    cx = sum(image[:, c].sum() * c for c in range(width)) / total
    places = [(r, c) for r in range(height) for c in range(width)]
    mixed = sum(image[r, c] * (r - cy) * (c - cx) for r, c in places) / total
    spread = sum(image[r, c] * (r - cy) ** 2 for r, c in places) / total
    result = np.zeros_like(image)
    for r, c in places:
        y, x = r - (height - 1) / 2, c - (width - 1) / 2
        row, column = cy + y, cx + x + y * mixed / (spread + 1e-3)
        for above in (math.floor(row), math.floor(row) + 1):
            for left in (math.floor(column), math.floor(column) + 1):
                if 0 <= above < height and 0 <= left < width:
                    result[r, c] += image[above, left] * (1 - abs(row - above)) * (1 - abs(column - left))
    return result


def test_deskewing_reads_every_pixel_where_the_moments_say() -> None:
    pictures = images(5, 9, 7) ** 4
    found = Deskew().bind_image((1, 9, 7))(torch.from_numpy(pictures).flatten(1)).numpy()
    np.testing.assert_allclose(found.reshape(pictures.shape), [upright(one) for one in pictures], atol=1e-12)


def test_a_slanted_line_becomes_upright_in_the_middle() -> None:
    picture = torch.zeros(15, 15)
    for row in range(3, 11):
        picture[row, 13 - row] = 1.0
    found = Deskew().bind_image((1, 15, 15))(picture.flatten()).view(15, 15)
    inside = torch.zeros(15, 15, dtype=torch.bool)
    inside[:, 6:9] = True
    assert float(found[~inside].abs().max()) < 1e-3
    assert float(found.sum(0) @ torch.arange(15.0) / found.sum()) == pytest.approx(7.0, abs=1e-3)


def test_images_without_ink_and_with_negative_numbers_stay_finite() -> None:
    link = Deskew().bind_image((1, 4, 4))
    assert torch.equal(link(torch.zeros(2, 16)), torch.zeros(2, 16))
    assert bool(link(torch.full((1, 16), -1.0)).isfinite().all())


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_group_norm_centres_and_scales_every_group(groups: int) -> None:
    x = images(4, 6, 5)
    found = GroupNorm(groups=groups, epsilon=0.01).bind_image((6, 5, 1))(torch.from_numpy(x).flatten(1)).numpy()
    for sample, row in zip(x, found, strict=True):
        parts = np.split(sample.ravel(), groups)
        expected = [(part - part.mean()) / math.sqrt(part.var() + 0.01) for part in parts]
        np.testing.assert_allclose(row, np.concatenate(expected) / math.sqrt(30), rtol=1e-12)


def test_the_bound_of_group_norm_is_reached() -> None:
    """Large inputs come as close to 1 as one likes, small ones to the Lipschitz constant times their length."""
    link = GroupNorm(groups=2, epsilon=1e-4).bind_image((2, 3, 1))
    x = torch.tensor([1.0, -1.0, 0.0, 2.0, 0.0, -2.0], dtype=torch.float64)
    assert float(link(1e4 * x).norm()) == pytest.approx(1.0, abs=1e-6)
    assert link.lipschitz is not None
    assert float(link(1e-6 * x).norm() / (1e-6 * x).norm()) == pytest.approx(link.lipschitz, rel=1e-6)


@pytest.mark.parametrize(("samples", "features"), [(12, 40), (60, 9)], ids=["few samples", "few features"])
@pytest.mark.parametrize("radius", [None, 3.0])
def test_whitening_is_the_definition_by_eigenvectors(samples: int, features: int, radius: float | None) -> None:
    generator = np.random.default_rng(5)
    public, x = generator.normal(size=(samples, features)), generator.normal(size=(7, features))
    plugin = Whiten(components=6, floor=3, radius=radius)
    found = plugin.bind_fitted(features, plugin.fit(torch.from_numpy(public)))(torch.from_numpy(x)).numpy()

    values, vectors = np.linalg.eigh(np.cov(public.T, bias=True))
    values, vectors = values[::-1], vectors[:, ::-1]
    z = (x - public.mean(0)) @ vectors[:, :6] / np.sqrt(values[:6] + values[3])
    norms = np.linalg.norm(z, axis=1, keepdims=True)
    z /= norms if radius is None else np.maximum(norms, radius)
    np.testing.assert_allclose(np.abs(found), np.abs(z), rtol=1e-9)  # an eigenvector has no sign
    np.testing.assert_allclose(found @ found.T, z @ z.T, rtol=1e-9, atol=1e-12)


def test_whitened_strokes_have_equal_spread_where_the_floor_is_low() -> None:
    plugin = Whiten(components=8, floor=50, samples=400, radius=1e6)
    public = torch.from_numpy(draw_strokes(400, 12, 12, 0))
    z = plugin.bind_fitted(144, plugin.fit(public))(public) * 1e6
    spread = z.var(0, correction=0)
    assert float(spread.max()) < 1.0  # the floor takes a little
    assert float(spread.min()) > 0.5


@pytest.mark.parametrize(
    ("options", "rows", "option"),
    [
        ({"components": 30, "floor": 2}, 12, "components"),
        ({"components": 3, "floor": 30}, 12, "floor"),
        ({"components": 12, "floor": 2}, 12, "components"),  # the mean takes one direction
    ],
)
def test_more_directions_than_there_are_is_an_error(options: dict[str, int], rows: int, option: str) -> None:
    with pytest.raises(OptionError, match="directions") as error:
        Whiten(**options).fit(torch.from_numpy(images(rows, 40)))
    assert error.value.option == option


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ([GroupNorm(groups=27)], "1 x 28 x 28 numbers have 1 channels, which cannot be split into 27 groups"),
        ([Scattering(), Deskew()], "needs grey images, found 81 x 7 x 7 numbers: put it in front"),
        ([Scattering(angles=4), GroupNorm(groups=27)], "25 x 7 x 7 numbers have 25 channels"),
    ],
)
def test_maps_in_the_wrong_order_are_told_the_shapes(chain: list[FeatureMap], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FeatureMaps(chain, 784, (28, 28))


def test_what_is_no_image_is_refused_with_the_number_of_features() -> None:
    with pytest.raises(ConfigError, match="needs images, found 91 features") as error:
        FeatureMaps([Scattering()], 91)
    assert error.value.key == "model.features.0.type"


def test_a_chain_of_maps_with_constants_has_one() -> None:
    chain = FeatureMaps([Scattering(angles=2), GroupNorm(groups=3)], 64, (8, 8))
    assert chain.image_shape == (9, 2, 2)
    assert chain.lipschitz == pytest.approx(chain.links[0].lipschitz * chain.links[1].lipschitz)  # type: ignore[operator]
    assert FeatureMaps([Deskew(), UnitSphere()], 64, (8, 8)).image_shape == (1, 8, 8)
