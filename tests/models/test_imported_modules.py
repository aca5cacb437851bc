"""Modules and encoders that a config names: what they compute, what the ledger says, and whose code may run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_models.feature_maps.encoders import FrozenModule, StoredLayers
from crfl_models.imported_modules import ImportedModule
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from crfl_core import load_config, run
from crfl_core.extend import ConfigError, DataFacts, Domain, OptionError
from tests.testing.own_modules import Images, Net, stored

NET, IMAGES, POOLED = (f"tests.testing.own_modules:{name}" for name in ("Net", "Images", "pooled"))
TABLE = DataFacts(12, 3, Domain(0.0, 1.0))
PICTURES = DataFacts(64, 5, Domain(0.0, 1.0), (1, 8, 8))


def small(**changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "rounds": 2,
        "partition": {"type": "iid", "clients": 4},
        "training": {"learning_rate": 0.1, "steps": 2},
        "votes": {"models": 20},
        "storage": {"figures": []},
    }
    return config | changes


def test_a_module_is_made_with_what_it_asks_for_and_what_is_given() -> None:
    model = ImportedModule(path=NET, arguments={"width": 7}).build(TABLE)
    assert dict(model.layout.shapes) == {
        "first.weight": (7, 12),
        "first.bias": (7,),
        "second.weight": (3, 7),
        "second.bias": (3,),
    }


def test_logits_and_gradients_are_those_of_the_module() -> None:
    model = ImportedModule(path=NET).build(TABLE)
    net = Net(12, 3).double()
    flat = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    x, y = torch.rand(6, 12, dtype=torch.float64), torch.arange(6) % 3
    assert torch.allclose(model.logits(flat[None], x)[0], net(x), atol=1e-12)
    torch.nn.functional.cross_entropy(net(x), y).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None])
    weights = torch.full((1, 6), 1 / 6, dtype=torch.float64)
    assert torch.allclose(model.gradient(flat[None, None], x[None], y[None], weights)[0, 0], expected, atol=1e-12)


def test_a_function_makes_a_module_for_images() -> None:
    model = ImportedModule(path=POOLED, images=True).build(PICTURES)
    assert model.logits(torch.zeros(2, model.layout.size), torch.rand(3, 64)).shape == (2, 3, 5)
    with pytest.raises(OptionError, match="these data are not images"):
        ImportedModule(path=POOLED, images=True).build(TABLE)


def test_a_run_trains_a_module_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\ndef wide(inputs, classes):\n    return nn.Sequential(nn.Linear(inputs, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    result = run(small(rounds=12, model={"type": "module", "path": "nets.py:wide"}), out=tmp_path / "run")
    assert result.metrics.accuracy > 0.5
    assert result.config.model.path == f"{tmp_path / 'nets.py'}:wide"  # type: ignore[attr-defined]
    assert "softmax regression" in result.metrics.refused["paper"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tests.testing.own_modules:Nett", "cannot be imported: AttributeError"),
        ("no.such.module:Net", "cannot be imported: ModuleNotFoundError"),
        ("nowhere.py:Net", "cannot be imported: FileNotFoundError"),
        ("tests.testing.own_modules:nn", "neither a class nor a function"),
        ("builtins:dict", "makes a dict, not a torch.nn.Module"),
        ("torch.nn:Linear", r"Linear\(\) failed: TypeError"),
        ("torch.nn:Identity", r"must map \(b, 12\) to \(b, 3\), found \(2, 12\)"),
    ],
)
def test_what_is_no_module_is_refused_by_name(path: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ImportedModule(path=path).build(TABLE)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (NET, r"model.path = '.*': the code 'tests.testing.own_modules:.*' is blocked by plugins.allow"),
        ("nets.py:Net", "the code '.*nets.py:Net' is blocked by plugins.allow, which does not list it"),
        (
            "torch.nn:Linear",
            "the code 'torch.nn:Linear' is blocked by plugins.allow, which does not list it: .* add 'torch' there",
        ),
    ],
)
def test_an_allow_list_counts_for_code_that_an_option_names(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(small(model={"type": "module", "path": path}, plugins={"allow": []}))
    with pytest.raises(ConfigError, match=r"is blocked by plugins\.allow"):
        load_config(small(dataset={"type": "arrays", "callable": path}, plugins={"allow": ["crfl-other"]}))


def test_a_file_is_of_no_distribution_however_it_is_called() -> None:
    config = small(model={"type": "module", "path": "torch.py:Net"}, plugins={"allow": ["torch"]})
    with pytest.raises(ConfigError, match=r"torch\.py:Net' is blocked by plugins\.allow"):
        load_config(config)


def test_code_of_a_distribution_that_is_listed_may_be_named() -> None:
    config = small(model={"type": "module", "path": "torch.nn:Linear"}, plugins={"allow": ["torch"]})
    assert load_config(config).config.model.configured_as == "module"


def test_a_frozen_module_is_evaluated_flattened_and_shortened() -> None:
    bound = FrozenModule(path=IMAGES, shape=(1, 8, 8), radius=2.0, seed=5).bind(64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module = Images().eval()
    x = torch.rand(7, 64)
    with torch.no_grad():
        raw = module(x.reshape(7, 1, 8, 8)).flatten(1)
    expected = raw * (2.0 / raw.norm(dim=1, keepdim=True)).clamp(max=1.0)
    assert bound.outputs == 3 * 36
    assert torch.allclose(bound(x), expected, atol=1e-6)
    assert float(bound(1e6 * x).norm(dim=1).max()) <= 2.0 * (1 + 1e-6)
    assert (bound.norm_bound(np.inf), bound.lipschitz) == (2.0, None)


def test_the_weights_of_a_file_are_used_and_their_digest_tells_them_apart(tmp_path: Path) -> None:
    first, second = (FrozenModule(path=NET, seed=seed).bind(12) for seed in (0, 1))
    assert first.digest != second.digest
    assert first.digest == FrozenModule(path=NET).bind(12).digest
    net = Net(12)
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    bound = FrozenModule(path=NET, weights=tmp_path / "net.safetensors", radius=1e6).bind(12)
    x = torch.rand(3, 12)
    assert torch.allclose(bound(x), net(x), atol=1e-6)
    with pytest.raises(OptionError, match="does not fit the module"):
        FrozenModule(path=NET, weights=tmp_path / "net.safetensors").bind(5)
    with pytest.raises(OptionError, match=r"^sha256: .* has SHA-256 .*: it is another file, or was changed"):
        FrozenModule(path=NET, weights=tmp_path / "net.safetensors", sha256="0" * 64).bind(12)


def layers_in_numpy(path: Path, x: NDArray[np.float64], activation: str, last: bool, radius: float | None) -> Any:
    """The map of a file, written again in double precision."""
    tensors = {name: tensor.double().numpy() for name, tensor in load_file(path).items()}
    known: dict[str, Any] = {"relu": lambda z: np.maximum(z, 0.0), "tanh": np.tanh, "none": lambda z: z}
    act = known[activation]
    hidden = act(x @ tensors["0.weight"].T + tensors["0.bias"])
    y = hidden @ tensors["2.weight"].T + tensors["2.bias"]
    y = act(y) if last else y
    if radius is not None:
        y = np.array([row * min(1.0, radius / max(1e-300, np.sqrt((row**2).sum()))) for row in y])
    return y


@pytest.mark.parametrize("activation", ["relu", "tanh", "none"])
@pytest.mark.parametrize(("last", "radius"), [(False, None), (True, 0.5)])
def test_layers_of_a_file_are_computed_as_they_should_be(activation: Any, last: bool, radius: float | None) -> None:
    path = stored()
    bound = StoredLayers(path=path, activation=activation, last=last, radius=radius).bind(64)
    x = np.random.default_rng(0).standard_normal((9, 64))
    expected = layers_in_numpy(path, x, activation, last, radius)
    assert np.allclose(bound(torch.from_numpy(x)).numpy(), expected, atol=1e-12)
    tensors = load_file(path)
    product = np.prod([np.linalg.svd(tensors[f"{layer}.weight"].double().numpy())[1][0] for layer in (0, 2)])
    assert product <= (bound.lipschitz or 0.0) <= product * (1 + 1e-8)
    assert bound.digest == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "must hold tensors such as 0.weight and 0.bias, found none"),
        ({"0.weight": torch.zeros(3, 4), "0.running_mean": torch.zeros(3)}, "found 0.running_mean, 0.weight"),
        ({"0.bias": torch.zeros(3)}, "must hold tensors such as 0.weight"),
        ({"0.weight": torch.zeros(3, 5)}, r"0.weight must have shape \(outputs, 4\)"),
        ({"0.weight": torch.zeros(3, 4), "1.weight": torch.zeros(2, 4)}, r"1.weight must have shape \(outputs, 3\)"),
        ({"0.weight": torch.full((3, 4), torch.inf)}, "is not finite"),
    ],
)
def test_a_file_that_holds_no_layers_is_refused(tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    save_file(tensors, tmp_path / "layers.safetensors")
    with pytest.raises(OptionError, match=message):
        StoredLayers(path=tmp_path / "layers.safetensors").bind(4)


def test_a_file_that_is_missing_or_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        StoredLayers(path=tmp_path / "nothing").bind(4)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(OptionError, match="is not a safetensors file"):
        StoredLayers(path=tmp_path / "text").bind(4)


def test_the_ledger_has_the_digest_and_certificates_say_that_they_rely_on_the_encoder(tmp_path: Path) -> None:
    path = stored()
    layers = {"type": "file", "path": str(path), "radius": 1.0}
    config = small(
        dtype="float64",
        model={"type": "softmax", "features": layers},
        certificates=["pathwise-linear"],
        threat={"clients": 1, "rounds": [2]},
    )
    result = run(config, out=tmp_path / "run")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert result.ledger.facts.feature_digests == (digest,)
    (public,) = (check for check in result.audits[0].checks if check.name == "preprocessing is public")
    assert public.status == "declared"
    assert digest[:12] in public.measured
    assert result.metrics.refused == {}
