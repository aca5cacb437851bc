"""Checks of long and busy runs: after a resume, beside other threads, and in bounded memory."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from crfl_core.plugin_api.aggregator import AggregationStep
from crfl_core.plugin_api.attack import Attack
from crfl_core.plugin_api.feature_map import FeatureMap
from crfl_core.plugin_api.model import Model
from crfl_core.runs.run import resume, run
from crfl_core.testing.any_plugin import table_of
from crfl_core.testing.feature_maps import bind_maps, random_inputs
from crfl_core.testing.models import build_models, sample_problem
from crfl_core.testing.sample_attacks import attack_config, copy_tensors, scenes
from crfl_core.testing.sample_rounds import ROOT_SAMPLES, accepts, clients_of, gaussian, round_of, round_size, run_step
from crfl_core.testing.sample_run import SPOTS, Spots, small_config
from crfl_core.testing.suite import Case, CheckFailed, Skipped, check_for, difference
from crfl_core.testing.trackers import Stopping, run_contents

THREADS = 4
REPEATS = 3
MANY_CLIENTS = 120
PARAMETERS = 2000
COPIES = 8
"""How many times the memory of a round's updates a step may ask for at once."""

Job = Callable[[], object]


@check_for(AggregationStep)
@check_for(Attack)
def check_a_resumed_run_ends_the_same(case: Case[AggregationStep | Attack]) -> None:
    """A run that is interrupted and resumed ends with the same model and ledger, bit for bit, as one that is not."""
    plugins = {SPOTS: Spots, case.name: type(case.plugin)}
    config = step_config if isinstance(case.plugin, AggregationStep) else config_of_attack
    with TemporaryDirectory(prefix="crfl-") as folder:
        path = Path(folder)
        whole = run_contents(run(config(case), out=path / "whole", plugins=plugins))
        try:
            run(config(case), out=path / "stopped", plugins=plugins, trackers=[Stopping(at=2)])
        except KeyboardInterrupt:
            resumed = run_contents(resume(path / "stopped", plugins=plugins, trust=True))
    if found := difference(whole, resumed, "the run"):
        raise CheckFailed(
            "the same run, interrupted or not",
            found,
            "return all that later rounds need in the state, and keep nothing on instance, class or module",
        )


def step_config(case: Case[Any]) -> dict[str, Any]:
    """Return a small run whose rounds fit a step's options.

    It has trusted samples if the step needs them.
    """
    clients = max(10, case.once(round_size))
    trusted = {"reserve": {"root": ROOT_SAMPLES}} if type(case.plugin).needs_root else {}
    return small_config(partition={"type": "iid", "clients": clients}, **trusted, **table_of(Case(case.fresh())))


def config_of_attack(case: Case[Any]) -> dict[str, Any]:
    """Return a small run under an attack, on data that it accepts."""
    data, _ = next(scenes(case))
    return attack_config(case.fresh(), tabular=data != "images")


@check_for(Model)
@check_for(FeatureMap)
@check_for(Attack)
def check_threads_do_not_disturb_each_other(case: Case[Any]) -> None:
    """Used by several threads at once, it answers each of them as it answers a single thread."""
    jobs = list(thread_jobs(case))
    alone = [job() for job in jobs]
    for expected, answers in zip(alone, run_concurrently(jobs), strict=True):
        for other in answers:
            if found := difference(expected, other):
                raise CheckFailed(
                    "the same answers alone and beside other threads",
                    f"that {found}",
                    "keep nothing on the instance while it works: use local variables, or threading.local()",
                )


def thread_jobs(case: Case[Any]) -> Iterator[Job]:
    """Yield the calls that threads make to the same plugin.

    It is a model, a feature map or an attack.
    """
    if isinstance(case.plugin, Model):
        for facts, model in build_models(case):
            parameters, x, y, weights = sample_problem(model, facts)
            for client in range(len(x)):
                yield partial(model.logits, parameters[:, client], x[client])
                rows = slice(client, client + 1)
                yield partial(model.gradient, parameters[:, rows], x[rows], y[rows], weights[rows])
    elif isinstance(case.plugin, FeatureMap):
        for size, bound in bind_maps(case):
            yield from (partial(bound, row) for row in random_inputs(size).split(3))
    else:
        for _, scene in scenes(case):
            batches = scene.clean
            prepared = scene.federation.prepared
            darker = replace(copy_tensors(batches), x=0.5 * batches.x, y=batches.y.flip(-1))
            yield from (partial(case.plugin.poison, one, prepared) for one in (copy_tensors(batches), darker))
            inputs = scene.federation.data.test_x[:20].split(10)
            yield from (partial(case.plugin.add_trigger, x, prepared) for x in inputs)


def run_concurrently(jobs: Sequence[Job]) -> list[list[object]]:
    """Run every job in several threads at the same time.

    Return all answers.
    """
    begin = Barrier(THREADS)

    def work(first: int) -> list[tuple[int, object]]:
        begin.wait()
        order = [*range(first, len(jobs)), *range(first)] * REPEATS  # threads do different things at a time
        return [(number, jobs[number]()) for number in order]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            answered = [pair for answers in pool.map(work, range(THREADS)) for pair in answers]
    finally:
        sys.setswitchinterval(interval)
    return [[answer for known, answer in answered if known == number] for number in range(len(jobs))]


@check_for(AggregationStep)
def check_memory_grows_with_the_updates_alone(case: Case[AggregationStep]) -> None:
    """No array is larger than a few times all updates together: nothing is made for every pair and parameter."""
    if not accepts(case.plugin, clients_of(MANY_CLIENTS)):
        raise Skipped(f"its options fit no round of {MANY_CLIENTS} clients")
    updates = round_of(gaussian(MANY_CLIENTS, PARAMETERS))
    for _ in range(2):  # the first time, what is imported late is measured as well
        with measure_memory() as largest:
            run_step(case.plugin, updates)
    found = max(largest.values())
    given = updates.values.nbytes
    if found > COPIES * given + 64 * MANY_CLIENTS**2 + 2**20:
        raise CheckFailed(
            f"arrays of at most {COPIES} times the {given / 2**20:.1f} MB of all updates",
            f"{found / 2**20:.1f} MB",
            "compare clients through products, values @ values.T, instead of differences of all pairs",
        )


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation and measure its results."""
        result = func(*args, **(kwargs or {}))
        for tensor in (leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)):
            self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return result


@contextmanager
def measure_memory() -> Iterator[dict[str, int]]:
    """Measure the largest tensor and the peak memory, in bytes.

    The peak is that of Python and NumPy. The dictionary is filled in afterwards.
    """
    found: dict[str, int] = {}
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        with LargestTensor() as largest:
            yield found
        found |= {"torch": largest.bytes, "numpy": tracemalloc.get_traced_memory()[1] - before}
    finally:
        if not tracing:
            tracemalloc.stop()
