"""A backdoor in the tail of the input distribution."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from crfl_attacks.targeted import SamplePool, SampleReplacement, check_source
from crfl_core.extend import FederatedData, OptionError, UserPath

ROWS_PER_BLOCK = 8192
RIDGE = 1e-2
"""Part of the mean variance that is added to every direction, so that constant pixels do not decide."""
DOMAIN_TOLERANCE = 1e-6


class EdgeCase(SampleReplacement):
    """Edge-case backdoor (Wang et al., 2020): rare inputs, which honest clients hardly hold, get the target label.

    They are the training and test samples of lowest density under a Gaussian mixture with one component per class and
    a common covariance, or come from a file, such as the ARDIS digits for MNIST.
    """

    tail: float = Field(
        0.05, gt=0, lt=1, description="share of the training samples that count as rare, without a file"
    )
    source: int | None = Field(None, ge=0, description="class of the rare samples; unset: any but the target")
    file: UserPath | None = Field(
        None,
        description="take rare samples from an npz file instead: `x` for training, `test_x` with true labels `test_y`, "
        "in scaled input space",
    )

    @model_validator(mode="after")
    def _one_origin(self) -> EdgeCase:
        if self.file is not None and self.source is not None:
            raise ValueError("set either file or source: all samples of a file are taken")
        return self

    def pool(self, data: FederatedData) -> SamplePool:
        """Return the rare samples."""
        if self.file is not None:
            return self._read(self.file, data)
        check_source(self.source, self.target, data.facts.classes)
        train, test = log_densities(data)
        order = max(1, round(self.tail * len(train)))
        limit = train.kthvalue(order).values
        return self.select_pool(data, train <= limit, test <= limit, self.source, "tail")

    def _read(self, path: Path, data: FederatedData) -> SamplePool:
        """Read the pool from a file, and check it against the data."""
        arrays = read_arrays(path)
        domain = data.facts.domain
        inputs = data.facts.inputs
        labels = arrays["test_y"]
        for name in ("x", "test_x"):
            rows = arrays[name]
            if rows.ndim < 2 or not len(rows) or math.prod(rows.shape[1:]) != inputs:
                raise file_error(path, f"{name} has the shape {rows.shape}, but inputs have {inputs} features")
            if rows.dtype.kind not in "fiu":
                raise file_error(path, f"{name} must hold numbers, found {rows.dtype}")
            low = float(rows.min())
            high = float(rows.max())
            inside = domain.low - DOMAIN_TOLERANCE <= low <= high <= domain.high + DOMAIN_TOLERANCE
            if not (inside and math.isfinite(low) and math.isfinite(high)):
                remedy = f"scale them to {domain.low:g}..{domain.high:g} as the dataset does"
                raise file_error(path, f"{name} has values from {low:g} to {high:g}: {remedy}")
        if labels.shape != arrays["test_x"].shape[:1] or labels.dtype.kind not in "iu":
            raise file_error(path, f"test_y must hold one class for each row of test_x, found {labels.shape}")
        if not 0 <= labels.min() <= labels.max() < data.facts.classes:
            raise file_error(path, f"test_y must hold classes 0..{data.facts.classes - 1}, found {labels.max()}")
        kept = labels != self.target
        if not kept.any():
            raise file_error(path, f"all of test_x are of the target class {self.target}")

        def tensor(rows: np.ndarray) -> Tensor:
            return torch.from_numpy(rows.reshape(-1, inputs)).to(data.test_x).clamp(domain.low, domain.high)

        test_y = torch.from_numpy(labels[kept].astype(np.int64)).to(data.y)
        return SamplePool(tensor(arrays["x"]), tensor(arrays["test_x"][kept]), test_y)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an npz file."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {name: file[name] for name in ("x", "test_x", "test_y")}
    except FileNotFoundError as error:
        raise file_error(path, "there is no such file: name an npz file") from error
    except KeyError as error:
        raise file_error(path, f"the arrays x, test_x and test_y are needed: {error.args[0]}") from error
    except (OSError, EOFError, TypeError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise file_error(path, f"cannot be read as npz: {error}") from error


def file_error(path: Path, why: str) -> OptionError:
    """Return the error for a file that cannot be used."""
    return OptionError("file", f"{path}: {why}")


def log_densities(data: FederatedData) -> tuple[Tensor, Tensor]:
    """Compute the log-density of every training and test input.

    It is fitted on the training inputs and known up to a constant.

    `log sum_c share_c exp(-||L^-1 (x - mean_c)||^2 / 2)` with `L L^T` the covariance within classes.
    """
    inputs = data.facts.inputs
    classes = data.facts.classes
    counts = torch.bincount(data.y, minlength=classes).double()
    means = torch.zeros(classes, inputs, dtype=torch.float64, device=data.y.device)
    for x, y in zip(data.x_split(ROWS_PER_BLOCK), data.y.split(ROWS_PER_BLOCK), strict=True):
        means.index_add_(0, y, x.double())
    means /= counts.clamp(min=1)[:, None]
    covariance = means.new_zeros(inputs, inputs)
    for x, y in zip(data.x_split(ROWS_PER_BLOCK), data.y.split(ROWS_PER_BLOCK), strict=True):
        centred = x.double() - means[y]
        covariance.addmm_(centred.T, centred, alpha=1.0 / len(data.y))
    mean_variance = float(covariance.diagonal().mean())
    covariance.diagonal().add_(RIDGE * mean_variance + torch.finfo(torch.float64).tiny)
    factor = torch.linalg.cholesky(covariance)

    def white(x: Tensor) -> Tensor:
        whitened: Tensor = torch.linalg.solve_triangular(factor, x.double().T, upper=False).T
        return whitened

    def score(blocks: Iterable[Tensor]) -> Tensor:
        pieces = [torch.cdist(white(block), white(means)).square() for block in blocks]
        return torch.logsumexp((counts / counts.sum()).log() - torch.cat(pieces) / 2.0, dim=1)

    return score(data.x_split(ROWS_PER_BLOCK)), score(data.test_x.split(ROWS_PER_BLOCK))
