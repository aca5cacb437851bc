"""Maps that are fitted: to public inputs, never to those of clients, and kept with the run."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from crfl_certificates.pathwise_linear import PathwiseLinear
from torch import Tensor

import crfl_core
from crfl_core import load, predict, resume
from crfl_core.certification.assumption_checks import check_preprocessing
from crfl_core.errors import StoreError
from crfl_core.extend import (
    BoundMap,
    ConfigError,
    Data,
    Dataset,
    Domain,
    FittedMap,
    Ledger,
    PluginFailure,
    State,
    Tracker,
    hookimpl,
)
from crfl_core.training.federation import Federation
from tests.oracle import federation_of, tiny

WHITEN = {"type": "whiten", "components": 12, "floor": 5, "samples": 200}
CURATED = WHITEN | {"on": "curator"}


def model(*features: Any) -> dict[str, Any]:
    return {"type": "softmax", "features": list(features)}


class Given(Dataset):
    """The inputs of a curator, whose labels are not used."""

    inputs: ClassVar[Tensor]

    def read(self) -> Data:
        x = self.inputs.numpy()
        labels = np.arange(len(x), dtype=np.int64) % 2
        return Data(x, labels, x[:1], labels[:1], Domain(0.0, 1.0), ("any", "other"))


def curated(curator: Tensor | None, *features: Any, **changes: Any) -> Federation:
    config = tiny(model=model(*features or [CURATED]), **changes)
    if curator is not None:
        Given.inputs = curator
        config |= {"reserve": {"curator": {"dataset": {"type": "given", "scaling": "none"}}}}
    return federation_of(config, {"given": Given})


def curator(seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((50, 64), dtype=np.float32))


def test_strokes_need_no_curator_and_the_audit_holds() -> None:
    federation = federation_of(tiny(model=model(WHITEN)))
    (facts,) = federation.facts.fitted_maps
    assert (facts.feature_map, facts.source, facts.samples, facts.place) == ("whiten", "public", 200, 0)
    assert federation.facts.features == 12
    assert federation.facts.feature_norm_bound == 1.0


def test_what_is_fitted_sees_the_maps_in_front() -> None:
    own, behind = (curated(curator(), *maps) for maps in ([CURATED], [{"type": "unit-sphere"}, CURATED]))
    expected = torch.nn.functional.normalize(curator(), dim=1).double().mean(0)
    torch.testing.assert_close(behind.fitted[1].state["mean"], expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(own.fitted[0].state["mean"], curator().double().mean(0), rtol=1e-5, atol=1e-7)
    assert own.fitted[0].facts.inputs_digest == behind.fitted[1].facts.inputs_digest


def test_the_audit_says_that_a_curator_is_assumed_trusted() -> None:
    for maps, status, words in (
        (CURATED, "declared", "'whiten' fitted to 50 inputs of a curator who is assumed trusted"),
        (WHITEN, "held", "'whiten' fitted to 200 public inputs of its own"),
    ):
        facts = SimpleNamespace(facts=curated(curator(), maps).facts)
        check = check_preprocessing(cast("Ledger", facts))
        assert check.status == status
        assert words in check.measured


def test_without_a_curator_the_config_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"set reserve\.curator") as error:
        curated(None)
    assert error.value.key == "model.features.0.type"


def test_a_curator_with_the_clients_inputs_is_refused() -> None:
    clients = federation_of(tiny()).data.x[:50]
    with pytest.raises(
        ConfigError, match=r"50 of the curator's 50 inputs are also among those of the clients"
    ) as error:
        curated(clients)
    assert error.value.key == "reserve.curator"
    tests = federation_of(tiny()).data.test_x[:5]
    with pytest.raises(ConfigError, match="5 of the curator's 55"):
        curated(torch.cat([tests, curator()]))


def test_the_curator_moves_the_map_and_clients_do_not() -> None:
    one, other = curated(curator(0)), curated(curator(1))
    assert one.fitted[0].facts.digest != other.fitted[0].facts.digest
    again = curated(curator(0), dataset={"type": "digits", "split_seed": 7, "train_samples": 200})
    assert again.fitted[0].facts == one.fitted[0].facts


def test_predictions_and_questions_use_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = crfl_core.run(tiny(model=model(WHITEN), certificates=["pathwise-linear"]), out=tmp_path / "run")
    data = federation_of(tiny(model=model(WHITEN))).data
    monkeypatch.setattr("crfl_models.feature_maps.whiten.Whiten.fit", None)  # it is not fitted again
    found = predict(load(result.path), data.test_x.numpy(), scaled=True)
    assert np.mean(found.classes == data.test_y.numpy()) == pytest.approx(result.metrics.accuracy, abs=1e-3)


def test_a_damaged_file_of_what_was_fitted_is_named(tmp_path: Path) -> None:
    result = crfl_core.run(tiny(model=model(WHITEN)), out=tmp_path / "run")
    other = crfl_core.run(tiny(model=model(WHITEN | {"seed": 1})), out=tmp_path / "other")
    shutil.copy(other.path / "features.safetensors", result.path / "features.safetensors")
    with pytest.raises(StoreError, match=r"features\.safetensors: damaged: it is not what the run wrote"):
        predict(load(result.path), np.zeros((1, 64)))


def test_a_resumed_run_keeps_what_was_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopping(Tracker):
        @hookimpl
        def crfl_round_finished(self) -> None:
            raise KeyboardInterrupt

    config = tiny(model=model(WHITEN))
    whole = crfl_core.run(config, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config, out=tmp_path / "run", trackers=[Stopping()])
    monkeypatch.setattr("crfl_models.feature_maps.whiten.Whiten.fit", None)
    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path / "empty"))
    assert torch.equal(resume(tmp_path / "run").parameters, whole.parameters)


class Wrong(FittedMap):
    """Fits something that is not finite."""

    def public_inputs(self, facts: object) -> Tensor | None:
        return torch.zeros(3, 64)

    def fit(self, samples: Tensor) -> State:
        return {"scale": samples.sum() / 0.0}

    def bind_fitted(self, inputs: int, fitted: State) -> BoundMap:
        raise AssertionError


class Misshapen(Wrong):
    """Brings inputs of another size."""

    def public_inputs(self, facts: object) -> Tensor | None:
        return torch.zeros(3, 63)


@pytest.mark.parametrize(("plugin", "message"), [(Wrong, "fit.. must return finite tensors"), (Misshapen, "63")])
def test_a_map_that_fits_nonsense_is_named(plugin: type[FittedMap], message: str) -> None:
    config = tiny(model=model("wrong"))
    with pytest.raises(PluginFailure, match=message):
        federation_of(config, plugins={"wrong": plugin})


def test_certificates_stand_behind_the_whole_chain(tmp_path: Path) -> None:
    maps = [{"type": "scattering", "angles": 4}, {"type": "group-norm", "groups": 5}, WHITEN | {"radius": 5.0}]
    result = crfl_core.run(
        tiny(model=model(*maps), certificates=[PathwiseLinear()], dtype="float64"), out=tmp_path / "run"
    )
    assert not result.metrics.refused
    assert result.ledger.facts.feature_lipschitz is not None
