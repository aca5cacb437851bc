"""Frozen encoders of images: pinned arithmetic, weights from files, and outputs that are stored image by image."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from crfl_models.feature_maps.image_encoders import IMAGES_PER_BATCH, EfficientNetLite, ImageEncoder
from safetensors.torch import save_file
from torch import Tensor, nn

import crfl_core.training.features as features
from crfl_core.extend import ConfigError, OptionError, PluginFailure
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.training.features import check_maps, load_or_compute_features, map_inputs
from crfl_core.training.stored_rows import stored_rows

HERE = f"{__name__}:SmallNetwork"
SHAPE = (3, 8, 8)


class SmallNetwork(nn.Module):
    """Two convolutions with normalisation between them."""

    calls = 0

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        type(self).calls += len(images)
        output: Tensor = self.second(self.norm(self.first(images)).relu())
        return output


@pytest.fixture(autouse=True)
def _fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path / "cache"))
    stored_rows.cache_clear()


@pytest.fixture
def network() -> SmallNetwork:
    torch.manual_seed(3)
    made = SmallNetwork()
    made.norm.running_mean = torch.randn(5)
    return made.eval()


@pytest.fixture
def weights(network: SmallNetwork, tmp_path: Path) -> Path:
    save_file(network.state_dict(), tmp_path / "small.safetensors")
    return tmp_path / "small.safetensors"


def images(count: int, seed: int = 1) -> Tensor:
    return torch.rand(count, 192, generator=torch.Generator().manual_seed(seed))


def maps_of(weights: Path, **options: Any) -> FeatureMaps:
    return FeatureMaps([ImageEncoder(path=HERE, weights=weights, **options)], 192, SHAPE)


def test_outputs_are_those_of_the_network_in_evaluation_mode_averaged_over_positions(
    network: SmallNetwork, weights: Path
) -> None:
    x = images(11)
    expected = network((x.view(-1, *SHAPE) - 0.5) / 0.25).mean((2, 3))
    found = maps_of(weights, mean=[0.5], std=[0.25], radius=None)(x)
    torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_mirror_images_may_be_averaged_and_images_resized(
    interpolation: str, network: SmallNetwork, weights: Path
) -> None:
    x = images(3)
    resized = torch.nn.functional.interpolate(x.view(-1, *SHAPE), (12, 12), mode=interpolation, align_corners=False)
    expected = (network(resized) + network(resized.flip(3))).mean((2, 3)) / 2
    found = maps_of(weights, resolution=12, interpolation=interpolation, flips=True, radius=None)(x)
    torch.testing.assert_close(found, expected.detach())


def test_an_image_has_the_same_bits_in_every_batch_and_precision(weights: Path) -> None:
    maps = maps_of(weights)
    x = images(3 * IMAGES_PER_BATCH + 1)
    together = maps(x)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
    assert torch.equal(maps(x[order]), together[order])
    assert torch.equal(torch.cat([maps(one) for one in x.split(1)]), together)
    assert torch.equal(maps(x.double()), together.double())


def test_outputs_stay_in_the_ball(weights: Path) -> None:
    maps = maps_of(weights, radius=0.01)
    norms = torch.linalg.vector_norm(maps(100 * images(20)), dim=1)
    assert float(norms.max()) <= maps.norm_bound(1.0)
    assert maps.norm_bound(1.0) == pytest.approx(0.01, rel=1e-4)


def test_grey_images_become_three_equal_channels(network: SmallNetwork, weights: Path) -> None:
    grey = images(2)[:, :64]
    bound = ImageEncoder(path=HERE, weights=weights, radius=None).bind_image((1, 8, 8))
    expected = network(grey.view(-1, 1, 8, 8).expand(-1, 3, -1, -1)).mean((2, 3))
    torch.testing.assert_close(bound(grey), expected.detach())


def test_weights_may_be_a_state_dict_and_give_the_same_digest(
    network: SmallNetwork, weights: Path, tmp_path: Path
) -> None:
    torch.save(network.state_dict(), tmp_path / "small.pth")
    one = maps_of(weights).links[0]
    other = maps_of(tmp_path / "small.pth").links[0]
    assert one.digest == other.digest != ""


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not a state dict of tensors"),
        (b"no weights", "is not a state dict of tensors"),
        (None, "cannot be read: No such file"),
    ],
    ids=["empty", "other", "missing"],
)
def test_damaged_or_missing_weights_are_refused(content: bytes | None, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "small.pth"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        maps_of(path)


def test_code_in_a_file_of_weights_does_not_run(tmp_path: Path) -> None:
    torch.save(SmallNetwork(), tmp_path / "whole.pth")
    with pytest.raises(ConfigError, match="is not a state dict of tensors"):
        maps_of(tmp_path / "whole.pth")


def test_weights_of_another_architecture_another_file_and_other_data_are_refused(weights: Path) -> None:
    with pytest.raises(ConfigError, match="does not fit the module"):
        maps_of(weights, arguments={"width": 6})
    with pytest.raises(ConfigError, match="it is another file, or was changed"):
        maps_of(weights, sha256="0" * 64)
    with pytest.raises(OptionError, match="needs images, found 192 features of no shape"):
        ImageEncoder(path=HERE, weights=weights).bind(192)
    with pytest.raises(OptionError, match="set resolution"):
        ImageEncoder(path=HERE, weights=weights).bind_image((3, 2, 2))


def test_an_image_is_encoded_once_for_all_runs_and_processes(weights: Path) -> None:
    maps = maps_of(weights)
    x = images(700)
    expected = maps(x)
    SmallNetwork.calls = 0
    assert torch.equal(load_or_compute_features(maps, x[:600]), expected[:600])
    assert SmallNetwork.calls == 600
    assert torch.equal(load_or_compute_features(maps, x.flip(0)), expected.flip(0))
    assert SmallNetwork.calls == 712  # 100 new ones in batches of 8, and some again before stored ones are used
    stored_rows.cache_clear()  # as in another process
    assert torch.equal(map_inputs(maps, x), expected)
    assert SmallNetwork.calls == 720


def test_an_interrupted_computation_goes_on_where_it_stopped(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = maps_of(weights)
    x = images(1100)
    expected = maps(x)
    told: list[int] = []

    def stop(done: int, total: int) -> None:
        assert total == len(x)
        told.append(done)
        if done >= 1024:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_or_compute_features(maps, x, stop)
    assert told == [512, 1024]
    stored_rows.cache_clear()
    SmallNetwork.calls = 0
    assert torch.equal(load_or_compute_features(maps, x), expected)
    assert SmallNetwork.calls <= 80 + 8


def test_stored_rows_that_are_not_what_the_encoder_computes_are_forgotten(weights: Path, tmp_path: Path) -> None:
    maps = maps_of(weights)
    x = images(40)
    expected = load_or_compute_features(maps, x)
    store = stored_rows.__wrapped__
    for path in (tmp_path / "cache" / "features").glob("*.npy"):
        content = bytearray(path.read_bytes())
        content[-40] ^= 1
        path.write_bytes(content)  # the checksum does not fit any more
    stored_rows.cache_clear()
    assert store is not None
    assert torch.equal(load_or_compute_features(maps, x), expected)


def test_a_map_whose_bits_depend_on_the_batch_may_not_say_otherwise(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = maps_of(weights)
    link = maps.links[0]
    call = type(link).__call__

    def uneven(self: Any, x: Tensor) -> Tensor:
        return call(self, x) * (1.0 + 1e-7 * (len(x) == 1))

    check_maps(maps, images(20))
    monkeypatch.setattr(type(link), "__call__", uneven)
    with pytest.raises(PluginFailure, match="says that it is batch_independent, but an input alone"):
        check_maps(maps, images(20))


installed = importlib.util.find_spec("efficientnet_lite_pytorch") is not None


@pytest.mark.skipif(not installed, reason="needs crfl[encoders]")
@pytest.mark.parametrize("variant", ["lite0", "lite2"])
def test_efficientnet_lite_loads_its_weights_and_keeps_its_bound(variant: Any) -> None:
    maps = FeatureMaps([EfficientNetLite(variant=variant, resolution=96)], 3072, (3, 32, 32))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(5, 3072, generator=generator)
    found = maps(x)
    assert found.shape == (5, 1280)
    assert float(found.min()) >= 0
    assert float(torch.linalg.vector_norm(found, dim=1).max()) <= maps.norm_bound(1.0)
    assert torch.equal(maps(x[2:3]), found[2:3])
    assert len({tuple(row.tolist()) for row in found}) == 5


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(OptionError, match=r"is not installed: pip install 'crfl\[encoders\]'"):
        EfficientNetLite().bind_image((3, 32, 32))


def test_progress_counts_images(weights: Path) -> None:
    told: list[tuple[int, int]] = []
    features.map_inputs(maps_of(weights), images(600), lambda done, total: told.append((done, total)))
    assert told == [(512, 600), (600, 600), (600, 600)]
