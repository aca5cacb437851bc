"""The batch-spectrum rule in local training: what every batch is multiplied by, and what is measured of it.

`L_s` and `F_s` are computed in double precision and rounded up, as `formulas.batch_spectrum` does. They depend on
the batch alone, so a client that trains on all its samples in every step has the same ones in every round.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import crfl_core.certification.formulas as formulas
from crfl_core.records.round import BatchMeasurements, Clients
from crfl_core.training.federation import Federation

NUMBERS_AT_ONCE = 2**23
"""How many numbers of inputs are copied in double precision together."""

Measured = tuple[Tensor, Tensor]
"""L_s and F_s of some batches, (n,) each, on the CPU."""


class Spectra:
    """What is known of the batches of clients that always train on all of their samples, once it was asked for."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._known: dict[int, tuple[float, float]] = {}

    def of(self, client: int) -> tuple[float, float]:
        """L_s and F_s of all samples of a client."""
        if client not in self._known:
            federation = self._federation
            rows = torch.from_numpy(federation.data.partition[client]).to(federation.device)
            x = federation.features[rows][None]
            y = federation.data.y[rows][None]
            spectrum, start = measured(x, y, torch.tensor([len(rows)]), federation.data.facts.classes)
            self._known[client] = float(spectrum[0]), float(start[0])
        return self._known[client]


class BatchScaling:
    """The factors of the batches of some clients in a round; attackers who `poison` are the last of them."""

    def __init__(self, spectra: Spectra, federation: Federation, clients: Clients, poisoned: int, steps: int) -> None:
        training = federation.config.training
        assert training.spectrum is not None
        self._limits = training.spectrum, np.inf if training.ball is None else training.ball
        self._classes = federation.data.facts.classes
        self._dtype = federation.dtype
        self._found = np.zeros((2, len(clients), steps))
        whole = np.equal(clients.batch_size, clients.samples)
        whole[len(clients) - poisoned :] = False
        for position in np.flatnonzero(whole):
            self._found[:, position] = np.array(spectra.of(int(clients.ids[position])))[:, None]
        self._whole = whole
        self._factors = np.ones((len(clients), steps))

    def of(self, group: slice, step: int, x: Tensor, y: Tensor, sizes: Tensor) -> Tensor:
        """The factors of one step of some clients, (n,); who makes no step any more has the factor 1."""
        fresh = ~self._whole[group]
        if fresh.any():
            x, y, some = (x, y, sizes) if fresh.all() else (x[rows := torch.from_numpy(fresh)], y[rows], sizes[rows])
            self._found[:, group, step][:, fresh] = torch.stack(measured(x, y, some, self._classes)).numpy()
        made = sizes.cpu().numpy() > 0
        self._found[:, group, step][:, ~made] = 0.0
        spectrum, start = self._found[:, group, step]
        limit, start_limit = self._limits
        factors = np.asarray(formulas.batch_factor(limit, spectrum, start_limit, start))
        self._factors[group, step] = factors
        return torch.from_numpy(factors).to(x.device, self._dtype)

    def recorded(self, poisoning: BatchMeasurements) -> BatchMeasurements:
        """With what was found of every client's batches."""
        spectrum, start = self._found.max(axis=2)
        scaled: NDArray[np.int64] = np.count_nonzero(self._factors < 1.0, axis=1)
        factor = self._factors.min(axis=1)
        return replace(poisoning, spectrum=spectrum, start_gradient=start, batch_factor=factor, scaled_batches=scaled)


def measured(x: Tensor, y: Tensor, sizes: Tensor, classes: int) -> Measured:
    """`L_s` and `F_s` of batches (n, b, d) of which the first `sizes` rows count, none of them below the exact one."""
    at_once = max(1, NUMBERS_AT_ONCE // max(1, x[0].numel()))
    pieces = zip(x.split(at_once), y.split(at_once), sizes.to(x.device).split(at_once), strict=True)
    spectra, starts = zip(*(measured_together(*piece, classes) for piece in pieces), strict=True)
    return torch.cat(spectra).cpu(), torch.cat(starts).cpu()


def measured_together(x: Tensor, y: Tensor, sizes: Tensor, classes: int) -> Measured:
    """The same for batches that fit into memory in double precision."""
    samples, features = x.shape[1:]
    real = torch.arange(samples, device=x.device) < sizes[:, None]
    inputs = x.double() * real[..., None]
    count = sizes.clamp(min=1).double()
    turned = inputs.transpose(1, 2)
    gram = torch.bmm(inputs, turned) if samples <= features else torch.bmm(turned, inputs)
    size, terms = sorted((samples, features))
    largest = torch.linalg.eigvalsh(gram)[:, -1].clamp(min=0.0)
    spectrum = largest * float(1.0 + formulas.gamma(size * (terms + 16 * size))) / count
    residuals = (1.0 / classes - torch.nn.functional.one_hot(y, classes).double()) * real[..., None]
    gradient = torch.bmm(residuals.transpose(1, 2), inputs).flatten(1).norm(dim=1)
    lengths = residuals.flatten(1).norm(dim=1) * inputs.flatten(1).norm(dim=1)
    rounded = gradient + float(formulas.gamma(samples + 16)) * lengths
    return spectrum, rounded * float(1.0 + formulas.gamma(classes * features + 16)) / count
