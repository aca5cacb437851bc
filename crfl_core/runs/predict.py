"""New inputs on a finished run: arrays, or files as those that the run was trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

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


ARRAY_ENDINGS = (".npz", ".npy")
SAVE_REMEDY = "save it with np.savez(file, x=inputs)"


@dataclass(frozen=True)
class Prediction:
    """Classes of new inputs, and what each certificate says about them (with labels of -1: they are not known).

    `classes` are numbers, `class_names` the names of all classes.
    """

    classes: NDArray[np.int64]
    certified: tuple[CertificateResult, ...]
    class_names: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """Return the name of the class of every input."""
        return [self.class_names[number] for number in self.classes]

    @property
    def radii(self) -> dict[str, NDArray[np.float64]]:
        """Return the certified radius of every input, by `certificate.level`.

        It is NaN where a certificate abstains.
        """
        return {f"{one.certificate}.{one.level}": one.guarantee.radius for one in self.certified}


def predict(run: RunResult, x: NDArray[Any] | str | Path, *, scaled: bool = False) -> Prediction:
    """Predict classes of new inputs, with certificates.

    Inputs are (m, features), raw as those of the dataset, or already `scaled`.

    `x` is an array or a file: .npz or .npy, or what the run's dataset reads, such as .csv for `arrays`.
    """
    facts = run.ledger.facts
    array = read_inputs(run, Path(x)) if isinstance(x, str | Path) else np.asarray(x)
    flat = array.reshape(len(array), math.prod(array.shape[1:])) if array.ndim > 1 else array
    if flat.ndim != 2 or flat.shape[1] != facts.inputs or not flat.size or flat.dtype.kind not in "fiu":
        raise DataError(f"x must be numbers of shape (samples, {facts.inputs}), found {array.shape} of {flat.dtype}")
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
    models = VotingModels(model, parameters, streams, run.read_continued_models, failed)

    def source(request: VoteRequest, settings: VoteSettings) -> Mapping[str, Votes]:
        return collect_votes(models, {"inputs": (features, unknown)}, request, settings)

    classes = predict_classes(models, features, facts.groups)
    return Prediction(classes, certify_all(run.certifier, source, together=False).certified, class_names(run))


def class_names(run: RunResult) -> tuple[str, ...]:
    """Return the names of a run's classes.

    They are the numbers of the classes if the server did not know the names.
    """
    names = run.metrics.partition.classes
    count = run.ledger.facts.classes
    return names if len(names) == count else tuple(map(str, range(count)))


def read_inputs(run: RunResult, path: Path) -> NDArray[Any]:
    """Read new inputs from an array file or a dataset file.

    A dataset file has the format that the run's dataset reads.
    """
    if not path.name.endswith(ARRAY_ENDINGS) and path.is_file():
        return run.config.dataset.read_inputs(path, run.ledger.facts.feature_names)
    if path.exists() and not path.is_file():
        raise DataError("is not a regular file")
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            if "x" in loaded:
                found: NDArray[Any] = loaded["x"]
                return found
            raise DataError(f"has no array `x`, found {', '.join(loaded) or 'none'}: {SAVE_REMEDY}")
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}") from error
    except (ValueError, EOFError, BadZipFile) as error:
        raise DataError(f"is not an npz or npy file of plain numbers: {SAVE_REMEDY}") from error
