"""Generated data whose difficulty and size are options."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.extend import Data, Dataset, Domain, ScalingKind

NUMBERS_PER_BLOCK = 2**16


class Synthetic(Dataset):
    """Gaussian classes of controllable size, separation, norm and heterogeneity: no download.

    With unit noise in every feature, class means lie `separation` apart (exactly, if there are at least as many
    features as classes), so that two classes can be told apart with probability Phi(separation / 2). All of it is then
    shrunk into the cube of half-width norm / sqrt(features), noise beyond 3 deviations cut off: `norm` bounds the norm
    of every input, clean or attacked, and is what certificates see.

    Rows belong to `groups` in turn, for the partitioner `natural`. Each group is moved in a direction of its own by
    `group_shift`, and draws a share `group_skew` of its labels from a class of its own. Test rows come from all groups.
    """

    scaling: ScalingKind = Field("none", description="`none` keeps `norm` as the bound on the inputs")
    train_samples: int = Field(2000, ge=1, description="training samples to generate")
    test_samples: int = Field(500, ge=1, description="test samples to generate")
    classes: int = Field(10, ge=2, description="classes, about equally frequent")
    features: int = Field(20, ge=1, description="numbers per sample")
    separation: float = Field(6.0, ge=0, description="distance between class means in deviations of the noise")
    norm: float = Field(1.0, gt=0, description="largest Euclidean norm of an input")
    groups: int = Field(20, ge=1, description="natural groups of the training samples, equally large")
    group_shift: float = Field(0.0, ge=0, description="how far each group is moved, in deviations of the noise")
    group_skew: float = Field(0.0, ge=0, le=1, description="share of a group's labels that are of its own class")
    seed: int = Field(0, ge=0, description="seed of all draws; the run's own seed plays no part")

    def read(self) -> Data:
        """Generate the arrays; equal options give equal arrays."""
        generator = np.random.default_rng(self.seed)
        means = random_directions(generator, self.classes, self.features) * (self.separation / np.sqrt(2.0))
        shifts = random_directions(generator, self.groups, self.features) * self.group_shift
        x, y, groups = self._draw(generator, self.train_samples, means, shifts)
        test_x, test_y, _ = self._draw(generator, self.test_samples, means, shifts)
        return Data(
            x=x,
            y=y,
            test_x=test_x,
            test_y=test_y,
            domain=Domain(-self._edge, self._edge),
            class_names=tuple(f"class_{label}" for label in range(self.classes)),
            feature_names=tuple(f"feature_{column}" for column in range(self.features)),
            groups=groups,
            group_names=tuple(f"group_{group}" for group in range(self.groups)),
        )

    @property
    def _edge(self) -> float:
        """Return half the width of the cube, rounded down to single precision.

        No stored input lies outside.
        """
        return float(np.nextafter(np.float32(self.norm / np.sqrt(self.features)), np.float32(0.0)))

    def _draw(
        self, generator: np.random.Generator, samples: int, means: NDArray[np.float64], shifts: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        """Draw inputs, labels and groups of samples."""
        groups = np.arange(samples) % self.groups
        skewed = generator.random(samples) < self.group_skew
        labels = np.where(skewed, groups % self.classes, generator.integers(self.classes, size=samples))
        reach = 3.0 + self.separation / np.sqrt(2.0) + self.group_shift  # of a mean, a shift and the noise together
        x = np.empty((samples, self.features), np.float32)
        room = np.empty((min(samples, rows_per_block(self.features)), self.features))
        for first in range(0, samples, len(room)):
            some = slice(first, first + len(room))
            block = generator.standard_normal(out=room[: len(labels[some])])
            block += means[labels[some]]
            block += shifts[groups[some]]
            block /= reach
            x[some] = np.multiply(np.clip(block, -1.0, 1.0, out=block), self._edge, out=block)
        return x, labels, groups


def rows_per_block(features: int) -> int:
    """Return how many rows are drawn at a time.

    They are few enough for the cache of a processor.
    """
    return max(1, NUMBERS_PER_BLOCK // features)


def random_directions(generator: np.random.Generator, count: int, features: int) -> NDArray[np.float64]:
    """Draw unit vectors as rows.

    The vectors are orthogonal to each other if their number allows.
    """
    vectors = generator.standard_normal((count, features))
    if count <= features:
        vectors = np.linalg.qr(vectors.T).Q.T
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
