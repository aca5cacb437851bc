"""Stages and rules need little memory beside the updates that they are given and those that they hand on."""

from __future__ import annotations

import sys

import pytest
import torch
from crfl_aggregators.krum import Krum
from crfl_aggregators.norm_caps import NormBound, UpdateCap
from crfl_aggregators.trimmed_mean import TrimmedMean
from crfl_aggregators.weak_noise import WeakNoise

from benchmarks.aggregators import CHAIN, SLOW, STEPS, chains, updates
from benchmarks.peaks import measure_peaks
from crfl_core.extend import Aggregator, ClientUpdates, RuleResult, State
from crfl_core.training.aggregation_chain import apply_stage, run_chain
from tests.aggregators.support import RULES, STAGES

MODERATE = 400, 40_000
FEWER = 100, 160_000
"""As many numbers for those who compare all pairs in every coordinate."""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak of resident memory")
def test_beside_input_and_output_every_step_and_a_chain_of_them_needs_a_tenth_of_the_input() -> None:
    peaks = measure_peaks({**chains(STEPS), "chain": CHAIN}, updates, *MODERATE) | measure_peaks(
        chains(SLOW), updates, *FEWER
    )
    assert {name: ratio for name, ratio in peaks.items() if ratio > 1.1} == {}


def test_every_registered_step_is_measured() -> None:
    assert STEPS.keys() | SLOW.keys() == RULES.keys() | STAGES.keys()


class Copying(Aggregator):
    """The mean, by way of a copy of all updates."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """What `fedavg` answers."""
        weights = torch.full((len(updates.values),), 1.0 / len(updates.values), dtype=torch.float64)
        return RuleResult(update=updates.values.clone().mean(0), weights=weights, state=state)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak of resident memory")
def test_a_copy_of_the_updates_is_seen() -> None:
    assert measure_peaks({"copying": [Copying()]}, updates, *MODERATE)["copying"] == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("rule", [Krum(f=2), TrimmedMean(trim=1)])
def test_stages_that_share_a_buffer_do_what_each_of_them_does_with_its_own(rule: Krum | TrimmedMean) -> None:
    submitted = updates(12, 3000)
    before = submitted.values.clone()
    staged = submitted.values
    stages = [UpdateCap(bound=50.0), WeakNoise(std=0.5), NormBound(bound=40.0), WeakNoise(std=0.1)]
    for stage in stages:
        staged = apply_stage(stage, type(submitted)(staged.clone(), submitted.round), {}).values
    expected = rule.aggregate(type(submitted)(staged, submitted.round), {}).update
    found = run_chain([*stages, rule], submitted, {}).update
    assert torch.equal(found, expected)
    assert torch.equal(submitted.values, before)
