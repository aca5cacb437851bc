"""New inputs on a finished run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from crfl_core.certification.voting import VotingModels, collect_votes, predict_classes
from crfl_core.errors import DataError
from crfl_core.records.inputs import Scaling
from crfl_core.runs.results import RunResult, certify_all, data_facts
from crfl_core.runs.stored_votes import vote_streams
from crfl_core.training.features import map_inputs
from crfl_core.training.models import build_model

if TYPE_CHECKING:
    from crfl_core.plugin_api.certificate import CertificateResult
    from crfl_core.records.votes import VoteRequest, Votes, VoteSettings


@dataclass(frozen=True)
class Prediction:
    """Classes of new inputs, and what each certificate says about them (with labels of -1: they are not known)."""

    classes: NDArray[np.int64]
    certified: tuple[CertificateResult, ...]


def predict(run: RunResult, x: NDArray[Any], *, scaled: bool = False) -> Prediction:
    """Classes and certificates for new inputs, (m, features), raw as the dataset's or already `scaled`."""
    facts = run.ledger.facts
    array = np.asarray(x)
    flat = array.reshape(len(array), math.prod(array.shape[1:])) if array.ndim > 1 else array
    if flat.ndim != 2 or flat.shape[1] != facts.inputs or not flat.size or flat.dtype.kind not in "fiu":
        raise DataError(f"x must be numbers of shape (samples, {facts.inputs}), found {np.shape(x)} of {flat.dtype}")
    if not np.isfinite(flat).all():
        raise DataError(f"x: row {int(np.argwhere(~np.isfinite(flat))[0][0])} is not finite: remove or fill it")
    shift = np.asarray(facts.scaling_shift)
    factor = np.asarray(facts.scaling_factor)
    with np.errstate(over="ignore"):  # what overflows is refused below
        inputs = flat if scaled else Scaling(facts.scaling, shift, factor).apply(flat)
    maps, model = build_model(run.config, data_facts(run.ledger), run.fitted)
    parameters = run.parameters
    rows = torch.from_numpy(np.ascontiguousarray(inputs)).to(parameters)
    measured = rows.square().sum(1).isfinite()
    if not measured.all():
        raise DataError(f"x: the norm of row {int(measured.int().argmin())} is beyond the numbers of {facts.dtype}")
    features = map_inputs(maps, rows)
    unknown = torch.full((len(features),), -1)

    streams = vote_streams(run.config, run.directory)
    failed = run.ledger.failed_groups
    electorate = VotingModels(model, parameters, streams, run.read_continued_models, failed)

    def source(request: VoteRequest, settings: VoteSettings) -> Mapping[str, Votes]:
        return collect_votes(electorate, {"inputs": (features, unknown)}, request, settings)

    classes = predict_classes(electorate, features, facts.groups)
    return Prediction(classes, certify_all(run.certifier, source).certified)
