"""Modules that a config names."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn


class Net(nn.Module):
    """A hidden layer, for inputs and classes that it is told."""

    def __init__(self, inputs: int, classes: int = 4, width: int = 5) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.second(torch.tanh(self.first(x)))
        return logits


class Images(nn.Module):
    """A convolution over images, normalised and with dropout: neither matters when it is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        channels: Tensor = self.layers(x)
        return channels


def pooled(classes: int) -> nn.Module:
    """A small network for images, from a function."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, classes))


def stored(inputs: int = 64) -> Path:
    """A file of two layers."""
    path = Path(tempfile.mkdtemp(prefix="crfl-layers-")) / "layers.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(inputs, 12), nn.ReLU(), nn.Linear(12, 6))
    save_file(module.state_dict(), path)
    return path


class Convolution(nn.Module):
    """An encoder of images that is as small as can be."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.convolution(images).tanh()
        return features


def stored_convolution() -> str:
    """Write the state of an encoder to a file, and return its path."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        path = Path(tempfile.mkdtemp()) / "convolution.pth"
        torch.save(Convolution().state_dict(), path)
        return str(path)
