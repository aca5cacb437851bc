"""Stages and rules need little memory beside the updates that they are given and those that they hand on."""

from __future__ import annotations

import sys

import pytest
import torch
from crfl_aggregators.krum import Krum
from crfl_aggregators.norm_bound import NormBound
from crfl_aggregators.trimmed_mean import TrimmedMean
from crfl_aggregators.update_cap import UpdateCap
from crfl_aggregators.weak_noise import WeakNoise

from benchmarks.aggregators import STEPS, in_own_process, updates
from crfl_core.extend import Stage
from crfl_core.federation.chain import run_chain, staged_by

STAGES = [name for name, step in STEPS.items() if isinstance(step, Stage)]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak of resident memory")
def test_beside_input_and_output_every_stage_and_a_chain_of_them_needs_a_tenth_of_the_input() -> None:
    peaks = in_own_process(100, 250_000, [*STAGES, "centered-clipping", "chain"])
    assert {name: ratio for name, (ratio, _) in peaks.items() if ratio > 1.1} == {}
    assert {"norm-bound", "weak-noise", "update-cap", "nearest-neighbour-mixing"} <= set(peaks)


@pytest.mark.parametrize("rule", [Krum(f=2), TrimmedMean(trim=1)])
def test_stages_that_share_a_buffer_do_what_each_of_them_does_with_its_own(rule: Krum | TrimmedMean) -> None:
    submitted = updates(12, 3000)
    before = submitted.values.clone()
    staged = submitted.values
    stages = [UpdateCap(bound=50.0), WeakNoise(std=0.5), NormBound(bound=40.0), WeakNoise(std=0.1)]
    for stage in stages:
        staged = staged_by(stage, type(submitted)(staged.clone(), submitted.round), {}).values
    expected = rule.aggregate(type(submitted)(staged, submitted.round), {}).update
    found = run_chain([*stages, rule], submitted, {}).update
    assert torch.equal(found, expected)
    assert torch.equal(submitted.values, before)
