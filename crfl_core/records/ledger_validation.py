"""Validation of run files: names, types, shapes, counts and ranges. A `ValueError` says what is wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from crfl_core.records.ledger import ClientColumns, RoundRecord, RunFacts
from crfl_core.records.votes import CountVotes, GroupRankings, VoteRequest

Arrays = Mapping[str, NDArray[Any]]

ANY_SIGN = ("weight", "weight_bound", "scale")
"""Columns that may hold negative numbers."""

MAY_BE_NAN = ("submitted_norm", "residual_norm", "scale")
"""Columns that may hold NaN: for an update that is not finite."""


def check_types(arrays: Arrays, kind: type, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Check names and types of arrays against the class that declares them."""
    if set(arrays) != set(names):
        raise ValueError(f"it must hold {', '.join(names)}, found {', '.join(arrays) or 'nothing'}")
    hints = get_type_hints(kind)
    for name, array in arrays.items():
        wanted = dtype_of(hints[name])
        if array.dtype != wanted:
            raise ValueError(f"{name} must be of {wanted}, found {array.dtype}")
    return dict(arrays)


def dtype_of(hint: Any) -> np.dtype[Any]:
    """Return the dtype of an annotation `NDArray[T]`.

    Until NumPy 2.4 the annotation is an `ndarray[..., dtype[T]]`, then an alias of T.

    >>> dtype_of(NDArray[np.int64])
    dtype('int64')
    """
    innermost = get_args(hint)[-1]
    found: np.dtype[Any] = np.dtype(*(get_args(innermost) or [innermost]))
    return found


def check_values(name: str, array: NDArray[Any], *, negative: bool = False) -> None:
    """Refuse an array with NaN or with negative numbers."""
    if np.isnan(array).any() or (not negative and (array < 0).any()):
        raise ValueError(f"{name} holds a value that cannot be")


def read_client_columns(arrays: Arrays) -> ClientColumns:
    """Build the rows of the ledger from arrays."""
    columns = check_types(arrays, ClientColumns, ClientColumns.names())
    if any(column.ndim != 1 or len(column) != len(columns["round"]) for column in columns.values()):
        raise ValueError("its columns must have an entry for each row")
    for name, column in columns.items():
        if name not in MAY_BE_NAN:
            check_values(name, column, negative=name in ANY_SIGN)
    if (np.diff(columns["round"]) < 0).any() or not (columns["round"] >= 1).all():
        raise ValueError("its rounds are not in order")
    return ClientColumns(**columns)


def check_columns(facts: RunFacts, clients: ClientColumns) -> None:
    """Refuse rows of rounds and clients beyond the run."""
    if len(clients) and (clients.round[-1] > facts.rounds or clients.client.max() >= facts.clients):
        raise ValueError(f"it has a row beyond {facts.rounds} rounds or {facts.clients} clients")


def check_facts(facts: RunFacts) -> None:
    """Refuse facts that contradict each other."""
    if facts.dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be 'float32' or 'float64', found {facts.dtype[:40]!r}")
    sizes = (facts.clients, facts.rounds, facts.classes, facts.inputs, facts.features, facts.parameters)
    if min(sizes) < 1:
        raise ValueError("counts of clients, rounds, classes, inputs, features and parameters must be at least 1")
    per_client = (facts.samples, facts.input_norms, facts.feature_norms)
    if any(len(values) != facts.clients for values in per_client):
        raise ValueError(f"it must hold one value for each of {facts.clients} clients")
    scaling = (facts.scaling_shift, facts.scaling_factor)
    if any(len(values) not in (0, 1, facts.inputs) for values in scaling):
        raise ValueError(f"it must scale all of {facts.inputs} inputs, or each by itself")
    bounds = (facts.input_norm_bound, facts.feature_norm_bound, facts.test_noise_std, facts.feature_lipschitz or 0.0)
    for values in (*per_client, bounds, [found.samples for found in facts.test_sets.values()]):
        check_values("a norm, a noise or a number of samples", np.asarray(values, np.float64))
    for values in (*scaling, facts.domain):
        check_values("the scaling or the domain", np.asarray(values, np.float64), negative=True)
    if not all(1 <= number <= facts.rounds for number in (*facts.attack_rounds, *facts.resampled)):
        raise ValueError(f"it names a round beyond {facts.rounds}")
    if not all(0 <= client < facts.clients for client in facts.attackers):
        raise ValueError(f"it names an attacker beyond {facts.clients} clients")


def check_record(record: RoundRecord) -> None:
    """Refuse impossible norms, noise and counts."""
    norms = [record.clip_norm, record.noise_std, record.start_norm, record.start_operator_norm or 0.0, record.rounding]
    check_values(
        f"round {record.round}",
        np.asarray(
            [*norms, record.participants, record.quarantined, *(record.breakdown or ()), record.distance or 0.0]
        ),
    )


def read_vote_arrays(request: VoteRequest, arrays: Arrays, samples: int, classes: int) -> dict[str, NDArray[Any]]:
    """Check the stored answer to a vote request on one test set."""
    parts = check_types(arrays, request.answer_type, request.answer_type.array_names())
    tables = {"logits", "counts", "selection"}
    for name, part in parts.items():
        by_group = name in ("ballots", "gaps", "distances") and part.ndim == 2
        columns: tuple[int, ...] = (part.shape[1],) if by_group else (classes,) if name in tables else ()
        if name == "ranks" and part.ndim == 3:
            columns = (part.shape[1], classes)
        if part.shape != (samples, *columns):
            raise ValueError(f"no {request.kind} votes on {samples} samples and {classes} classes")
        check_values(name, part, negative=part.dtype.kind == "f" and name not in ("input_norms", "distances"))
    if issubclass(request.answer_type, CountVotes):
        for name, models in (("counts", request.models), ("selection", request.selection_models)):
            if (parts[name].sum(1) != models).any():
                raise ValueError(f"{name} must add up to {models} models")
    for name in {"labels", "winner", "ballots"} & parts.keys():
        if (parts[name] >= classes).any():
            raise ValueError(f"{name} names a class beyond {classes}")
    if issubclass(request.answer_type, GroupRankings):
        places, ballots = parts["ranks"], parts["ballots"]
        if places.shape[1] != ballots.shape[1] or (np.sort(places, axis=2) != np.arange(classes)).any():
            raise ValueError(f"ranks must be the places of {classes} classes for each ballot")
        if (places.argmin(axis=2) != ballots).any():
            raise ValueError("ballots are not the first classes of the ranks")
    return parts


def check_tensor(tensors: Arrays, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Return a finite tensor of this name, shape and type.

    Raises `ValueError` if the tensor is missing or different.
    """
    if name not in tensors:
        raise ValueError(f"there is no tensor {name!r}, found {', '.join(tensors) or 'none'}")
    found = tensors[name]
    if found.shape != shape or found.dtype != np.dtype(dtype) or not np.isfinite(found).all():
        raise ValueError(f"{name!r} must be finite, of shape {shape} and {dtype}; found {found.shape} of {found.dtype}")
    return found


def read_saved_round(value: NDArray[Any] | None) -> int | None:
    """Return the round of a checkpoint.

    None if the checkpoint names no round.
    """
    if value is None or value.shape != (1,) or value.dtype.kind != "i" or value[0] < 1:
        return None
    return int(value[0])
