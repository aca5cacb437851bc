"""The peak memory of aggregation rules and stages in units of what they are given, each process measuring some.

What is counted is resident memory above what there was before, without the tensors of the answer: what a stage hands
on, or an aggregate with its weights and state. Libraries allocate their own buffers on updates of few parameters
before. The C library is told to give every freed block of more than 64 KiB back to the system at once: else it keeps
what was freed, and what comes next seems to need nothing.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from crfl_core.extend import ClientUpdates, Stage
from crfl_core.plugin_api.aggregator import AggregationStep, Aggregator
from crfl_core.training.aggregation_chain import apply_stage, run_chain

FEW_PARAMETERS = 1000
MALLOC_SETTINGS = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
Steps = Sequence[AggregationStep]


def measure_peaks(
    chains: Mapping[str, Steps], updates: Callable[[int, int], ClientUpdates], clients: int, size: int
) -> dict[str, float]:
    """Measure peaks of chains in units of the input, in a fresh process."""
    with (
        patch.dict(os.environ, MALLOC_SETTINGS),
        multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool,
    ):
        return pool.apply(measure_in_process, (chains, updates, clients, size))


def measure_in_process(
    chains: Mapping[str, Steps], updates: Callable[[int, int], ClientUpdates], clients: int, size: int
) -> dict[str, float]:
    """Measure peaks in this process."""
    torch.set_num_threads(1)
    small = updates(clients, FEW_PARAMETERS)
    submitted = updates(clients, size)
    data = submitted.values.nbytes
    found = {}
    for name, steps in chains.items():
        work = step_function(steps)
        work(small)
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        answer = work(submitted)
        peak = memory("VmHWM")
        found[name] = 1.0 + (peak - before - size_of(answer, submitted)) / data
        del answer
    return found


def step_function(steps: Steps) -> Callable[[ClientUpdates], object]:
    """Return a function that runs a step, or a chain of several."""
    first, *more = steps
    if more:
        return partial(run_whole_chain, steps)
    if isinstance(first, Stage):
        return partial(run_stage, first)
    assert isinstance(first, Aggregator)
    return partial(run_rule, first)


def run_whole_chain(steps: Steps, updates: ClientUpdates) -> object:
    """Run a chain, and return its answer and the buffer that its stages share."""
    return run_chain(steps, updates, {}), torch.empty_like(updates.values)


def run_stage(stage: Stage, updates: ClientUpdates) -> object:
    """Run a stage."""
    return apply_stage(stage, updates, {})


def run_rule(rule: Aggregator, updates: ClientUpdates) -> object:
    """Run a rule."""
    return rule.aggregate(updates, {})


def size_of(answer: object, submitted: ClientUpdates) -> int:
    """Return the bytes of all tensors of an answer that are not those of the updates."""
    found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors(answer)}
    found.pop(submitted.values.untyped_storage().data_ptr(), None)
    return sum(found.values())


def tensors(answer: object) -> Iterator[Tensor]:
    """Yield the tensors in an answer, however deep."""
    if isinstance(answer, Tensor):
        yield answer
    elif isinstance(answer, Mapping):
        yield from (tensor for part in answer.values() for tensor in tensors(part))
    elif isinstance(answer, tuple):
        yield from (tensor for part in answer for tensor in tensors(part))
    elif is_dataclass(answer):
        yield from (tensor for field in fields(answer) for tensor in tensors(getattr(answer, field.name)))


def memory(field: str) -> int:
    """Return resident memory of this process in bytes, now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
