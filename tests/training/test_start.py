"""The model before the first round: the model's own, zeros, random, or a file such as another run's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import crfl_core
from crfl_core import RunResult
from crfl_core.extend import ConfigError, Tracker, hookimpl
from crfl_core.runs.certify import certify
from crfl_core.training import rounds
from tests.oracle import federation_of, tiny

CLEAN = tiny(attack="none", certificates=["pathwise-linear"], rounds=2)


def starting(start: Any, **model: Any) -> dict[str, Any]:
    """A config that starts somewhere."""
    return CLEAN | {"model": {"type": "softmax"} | model | ({} if start is None else {"start": start})}


def first(config: dict[str, Any]) -> torch.Tensor:
    """The model that round 1 starts from."""
    return rounds.initial_progress(federation_of(config))[0].models[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run to start from."""
    return crfl_core.run(CLEAN, out=tmp_path_factory.mktemp("start") / "trained")


def test_a_model_starts_where_it_likes_at_zero_or_at_random() -> None:
    assert not first(starting(None)).any()
    assert first(starting(None, type="mlp")).any()
    assert not first(starting("zeros", type="mlp")).any()
    drawn = first(starting("random"))
    assert float(drawn.abs().max()) <= 1 / np.sqrt(64)
    assert float(drawn.std()) == pytest.approx(1 / np.sqrt(3 * 64), rel=0.05)
    assert torch.equal(drawn, first(starting("random")))
    assert not torch.equal(drawn, first(starting("random") | {"seeds": {"initial": 7}}))
    assert torch.equal(first(starting("random", type="mlp")), first(starting(None, type="mlp")))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_file_is_taken_as_it_is_and_its_digest_is_in_the_ledger(trained: RunResult, dtype: str) -> None:
    path = trained.path / "model.safetensors"
    federation = federation_of(starting(str(path)) | {"dtype": dtype})
    torch.testing.assert_close(
        rounds.initial_progress(federation)[0].models[0].float(), trained.parameters, rtol=0, atol=0
    )
    facts = federation.facts.start
    assert (facts.kind, facts.digest) == ("file", hashlib.sha256(path.read_bytes()).hexdigest())


def test_files_that_do_not_fit_are_refused_before_anything_is_written(trained: RunResult, tmp_path: Path) -> None:
    tensors = load_file(trained.path / "model.safetensors")
    broken = {
        "there is none": None,
        "is not a safetensors file": b"nothing",
        "'bias' of the model has shape (10,), in the file it has none": {"weight": tensors["weight"]},
        "'head' of the model has shape none, in the file it has (2,)": tensors | {"head": torch.zeros(2)},
        "has shape (10, 64), in the file it has (10, 3)": tensors | {"weight": torch.zeros(10, 3)},
        "not all of its numbers are finite": tensors | {"bias": torch.full((10,), torch.nan)},
    }
    for number, (message, content) in enumerate(broken.items()):
        path = tmp_path / f"{number}.safetensors"
        if isinstance(content, dict):
            save_file(content, path)
        elif content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError) as stop:
            crfl_core.run(starting(str(path)), out=tmp_path / "run")
        assert f"model.start: {path}: " in str(stop.value)
        assert (message if content is not None else "cannot be read") in str(stop.value)
        assert not (tmp_path / "run").exists()


def test_a_certificate_declares_that_the_start_is_public(trained: RunResult, tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    path.write_bytes((trained.path / "model.safetensors").read_bytes())
    fine = crfl_core.run(starting(str(path), features="unit-sphere") | {"rounds": 1}, out=tmp_path / "fine")
    (audit,) = fine.audits
    (check,) = (check for check in audit.checks if check.name == "preprocessing is public")
    assert check.status == "declared"
    assert f"start model from a file ({hashlib.sha256(path.read_bytes()).hexdigest()[:12]})" in check.measured
    assert "public and trusted" in check.measured
    (audit,) = trained.audits
    (check,) = (check for check in audit.checks if check.name == "preprocessing is public")
    assert check.status == "held"
    path.unlink()  # what was trained can still be asked
    drawn = crfl_core.run(starting("random", features="unit-sphere") | {"rounds": 1}, out=tmp_path / "drawn")
    (check,) = (check for check in drawn.audits[0].checks if check.name == "preprocessing is public")
    assert (check.status, drawn.ledger.facts.start.kind) == ("held", "random")  # it depends on no client's data
    assert certify(fine, overrides=["votes.models=70", "threat.scale=2"]).curves


class Stopping(Tracker):
    """Ends the run after its first round."""

    @hookimpl
    def crfl_round_finished(self) -> None:
        raise KeyboardInterrupt


def test_another_file_stops_a_run_that_is_resumed(trained: RunResult, tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    path.write_bytes((trained.path / "model.safetensors").read_bytes())
    config, tracker = starting(str(path)), Stopping()
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config, out=tmp_path / "run", trackers=[tracker])
    save_file({"weight": torch.ones(10, 64), "bias": torch.ones(10)}, path)
    with pytest.raises(crfl_core.CrflError, match="have changed since this run was started, start differ"):
        crfl_core.resume(tmp_path / "run")
