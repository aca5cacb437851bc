"""Whether what was read could have been written: names, types, shapes, counts, ranges. A `ValueError` says why not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from crfl_core.records.ledger import ClientColumns, RoundRecord, RunFacts
from crfl_core.records.votes import CountVotes, VoteRequest

Arrays = Mapping[str, NDArray[Any]]

ANY_SIGN = ("weight", "weight_bound", "scale")
"""Columns that may hold negative numbers."""

MEASURED = ("submitted_norm", "residual_norm", "scale")
"""Columns that may hold no number: of an update that is none."""


def check_types(arrays: Arrays, kind: type, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """The arrays under exactly these names, each of the type that a class declares for it."""
    if set(arrays) != set(names):
        raise ValueError(f"it must hold {', '.join(names)}, found {', '.join(arrays) or 'nothing'}")
    hints = get_type_hints(kind)
    for name, array in arrays.items():
        wanted = np.dtype(get_args(get_args(hints[name])[1])[0])
        if array.dtype != wanted:
            raise ValueError(f"{name} must be of {wanted}, found {array.dtype}")
    return dict(arrays)


def check_values(name: str, array: NDArray[Any], *, negative: bool = False) -> None:
    """Refuse an array that holds something that is no number, or less than 0."""
    if np.isnan(array).any() or (not negative and (array < 0).any()):
        raise ValueError(f"{name} holds a value that cannot be")


def before_they_were_kept(shape: tuple[int, ...]) -> Arrays:
    """Columns that older versions did not write, as they would have been: one group, and no batch was scaled."""
    zeros = {"group": np.int64, "spectrum": np.float64, "start_gradient": np.float64, "scaled_batches": np.int64}
    return {**{name: np.zeros(shape, kind) for name, kind in zeros.items()}, "batch_factor": np.ones(shape)}


def read_client_columns(arrays: Arrays) -> ClientColumns:
    """Rows of the ledger."""
    if "round" in arrays:
        arrays = {**before_they_were_kept(arrays["round"].shape), **arrays}
    columns = check_types(arrays, ClientColumns, ClientColumns.names())
    if any(column.ndim != 1 or len(column) != len(columns["round"]) for column in columns.values()):
        raise ValueError("its columns must have an entry for each row")
    for name, column in columns.items():
        if name not in MEASURED:
            check_values(name, column, negative=name in ANY_SIGN)
    if (np.diff(columns["round"]) < 0).any() or not (columns["round"] >= 1).all():
        raise ValueError("its rounds are not in order")
    return ClientColumns(**columns)


def check_columns(facts: RunFacts, clients: ClientColumns) -> None:
    """Refuse rows of rounds and clients that there are not."""
    if len(clients) and (clients.round[-1] > facts.rounds or clients.client.max() >= facts.clients):
        raise ValueError(f"it has a row beyond {facts.rounds} rounds or {facts.clients} clients")


def check_facts(facts: RunFacts) -> None:
    """Refuse facts that contradict each other."""
    if facts.dtype not in ("float32", "float64"):
        raise ValueError(f"there is no precision {facts.dtype[:40]!r}")
    sizes = (facts.clients, facts.rounds, facts.classes, facts.inputs, facts.features, facts.parameters)
    if min(sizes) < 1:
        raise ValueError("it counts something that it says there is none of")
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
    """Refuse norms, noise and counts that cannot be."""
    norms = [record.clip_norm, record.noise_std, record.start_norm, record.start_operator_norm or 0.0, record.rounding]
    check_values(
        f"round {record.round}",
        np.asarray(
            [*norms, record.participants, record.quarantined, *(record.breakdown or ()), record.distance or 0.0]
        ),
    )


def read_vote_arrays(request: VoteRequest, arrays: Arrays, samples: int, classes: int) -> dict[str, NDArray[Any]]:
    """The answer to a request on a test set."""
    parts = check_types(arrays, request.answer_type, request.answer_type.array_names())
    tables = {"logits", "counts", "selection"}
    for name, part in parts.items():
        by_group = name in ("ballots", "gaps") and part.ndim == 2
        columns = (part.shape[1],) if by_group else (classes,) if name in tables else ()
        if part.shape != (samples, *columns):
            raise ValueError(f"no {request.kind} votes on {samples} samples and {classes} classes")
        check_values(name, part, negative=part.dtype.kind == "f" and name != "input_norms")
    if issubclass(request.answer_type, CountVotes):
        for name, models in (("counts", request.models), ("selection", request.selection_models)):
            if (parts[name].sum(1) != models).any():
                raise ValueError(f"{name} must add up to {models} models")
    for name in {"labels", "winner", "ballots"} & parts.keys():
        if (parts[name] >= classes).any():
            raise ValueError(f"{name} names a class beyond {classes}")
    return parts


def check_tensor(tensors: Arrays, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """One of some tensors, of this shape and type, and finite."""
    if name not in tensors:
        raise ValueError(f"there is no tensor {name!r}, found {', '.join(tensors) or 'none'}")
    found = tensors[name]
    if found.shape != shape or found.dtype != np.dtype(dtype) or not np.isfinite(found).all():
        raise ValueError(f"{name!r} must be finite, of shape {shape} and {dtype}; found {found.shape} of {found.dtype}")
    return found


def read_saved_round(value: NDArray[Any] | None) -> int | None:
    """The round that a checkpoint says it is of."""
    if value is None or value.shape != (1,) or value.dtype.kind != "i" or value[0] < 1:
        return None
    return int(value[0])
