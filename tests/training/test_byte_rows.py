"""Inputs that came as bytes stay bytes, and nothing but the memory they take tells the difference."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_models.feature_maps.rescaling import UnitBall
from numpy.typing import NDArray

from crfl_core import load_config, run
from crfl_core.extend import Attack, Data, Dataset, Domain, FederatedData, Registry, RunContext, State, Streams
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.plugin_loading.mutation_guard import InputsChanged, guard_inputs
from crfl_core.records.input_rows import BatchBuffer, ByteRows, as_rows
from crfl_core.records.inputs import ScaledBytes, Scaling, scale_inputs
from crfl_core.records.round import TrainingTask
from crfl_core.training import features as features_module
from crfl_core.training.features import load_or_compute_features, map_inputs
from crfl_core.training.federation import Federation, build
from crfl_core.training.local_training import LocalTraining
from crfl_core.training.session import Session

CPU = torch.device("cpu")


class Pixels(Dataset):
    """Pictures of two classes; `kept` says as what they are read."""

    kept: str = "uint8"
    high: float = 255.0

    def read(self) -> Data:
        generator = np.random.default_rng(3)
        x = generator.integers(0, 256, (240, 12))
        y = (x[:, :6].sum(1) > x[:, 6:].sum(1)).astype(np.int64)
        x = x.astype(self.kept)
        domain = Domain(0.0, self.high)
        return Data(x[:200], y[:200], x[200:], y[200:], domain, ("dark", "bright"), image_shape=(3, 4))


REGISTRY = Registry({"pixels": Pixels})


def settings(dataset: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "dataset": {"type": "pixels"} | dataset,
        "partition": {"type": "iid", "clients": 4},
        "training": {"learning_rate": 0.1, "steps": 3, "batch_size": 20},
        "server": {"clip_norm": 5.0, "noise_std": 0.01},
        "certificates": [],
    } | more


def federation_of(dataset: dict[str, Any], **more: Any) -> Federation:
    return build(load_config(settings(dataset, **more), registry=REGISTRY).config)


def table(low: float, factor: float, kind: str = "unit-range") -> Scaling:
    return Scaling(kind, np.array([low]), np.array([factor]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "scaling",
    [
        Scaling(),
        table(0.0, 1 / 255),
        table(0.0, 1 / 200),
        table(-3.0, 1 / 303),
        table(7.5, -0.37),
        table(0.0, 1e-30),
        table(20.0, 1 / 180, "declared"),
    ],
)
def test_numbers_are_those_that_the_scaling_gives_bit_for_bit(scaling: Scaling, dtype: torch.dtype) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (300, 7), dtype=np.uint8)
    raw[:256, 0] = np.arange(256)
    expected = torch.from_numpy(scaling.apply(raw)).to(dtype)
    rows = as_rows(scale_inputs(raw, scaling), CPU, dtype)
    assert isinstance(rows, ByteRows)
    some, gathered = torch.tensor([5, 3, 299, 5]), torch.empty(4, 7, dtype=dtype)
    BatchBuffer().gather(rows, some, gathered)
    for found, wanted in (
        (rows.to_floats(), expected),
        (rows[some], expected[some]),
        (rows[some.view(2, 2)], expected[some.view(2, 2)]),
        (rows[::9], expected[::9]),
        (rows.index_select(0, some), expected[some]),
        (torch.cat(list(rows.split(64))), expected),
        (torch.stack(list(rows)), expected),
        (gathered, expected[some]),
    ):
        assert found.dtype == dtype
        assert torch.equal(found.view(torch.uint8), wanted.contiguous().view(torch.uint8))


def test_pixels_are_divided_and_odd_scalings_looked_up() -> None:
    raw = np.zeros((1, 1), np.uint8)
    for scaling, divisor in ((Scaling(), 1.0), (table(0.0, 1 / 255), 255.0), (table(-3.0, 1 / 303), None)):
        assert as_rows(ScaledBytes(raw, scaling), CPU, torch.float32).divisor == divisor


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "map": {"model": {"type": "softmax", "features": {"type": "unit-ball"}}},
    "trigger": {"attack": {"type": "model-replacement", "clients": [1], "rounds": [2], "target": 0}},
    "trigger behind a map": {
        "model": {"type": "softmax", "features": {"type": "unit-ball"}},
        "attack": {"type": "dba", "clients": [1, 2], "rounds": [2], "target": 0},
    },
    "replaced samples": {"attack": {"type": "semantic", "clients": [1], "rounds": [2], "target": 0}},
    "edge cases": {"attack": {"type": "edge-case", "clients": [1], "rounds": [2], "target": 0}},
    "reserve": {"reserve": {"validation": 20, "root": 10}, "aggregation": ["fltrust"]},
    "double precision": {"dtype": "float64"},
    "validators": {"rounds": 7, "aggregation": [{"type": "baffle", "lookback": 4}, "fedavg"]},
}


def content(folder: Path) -> dict[str, bytes]:
    """What a run has measured, without the dataset's name."""
    columns = np.load(folder / "clients.npz")
    return {name: columns[name].tobytes() for name in columns.files} | {
        name: (folder / name).read_bytes() for name in ("ledger.json", "rounds.jsonl", "model.safetensors")
    }


@pytest.mark.parametrize("scaling", ["none", "unit-range", "minmax", "standardise"])
def test_every_scaling_gives_the_same_run_on_bytes_and_on_floats(scaling: str, tmp_path: Path) -> None:
    for kept in ("uint8", "float32"):
        run(settings({"kept": kept, "scaling": scaling}), plugins={"pixels": Pixels}, out=tmp_path / kept)
    assert content(tmp_path / "uint8") == content(tmp_path / "float32")


@pytest.mark.parametrize("case", CASES)
def test_triggers_maps_and_validators_see_the_same_numbers(case: str, tmp_path: Path) -> None:
    for kept in ("uint8", "float32"):
        run(settings({"kept": kept}, **CASES[case]), plugins={"pixels": Pixels}, out=tmp_path / kept)
    assert content(tmp_path / "uint8") == content(tmp_path / "float32")


def test_bytes_take_a_quarter_of_the_memory() -> None:
    federation = federation_of({})
    kept = federation.features
    assert isinstance(kept, ByteRows)
    assert federation.data.input_rows is kept
    assert kept.raw.nbytes == 200 * 12
    assert sum(tensor.nbytes for tensor in vars(federation.data).values() if isinstance(tensor, torch.Tensor)) < 2 * (
        federation.data.test_x.nbytes + federation.data.y.nbytes
    )


def test_scalings_of_single_features_are_kept_as_floats() -> None:
    for scaling in ("minmax", "standardise"):
        assert isinstance(federation_of({"scaling": scaling}).features, torch.Tensor)


def test_a_whole_run_makes_no_floats_of_all_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteRows, "to_floats", None)
    reserved, whole = 20, ScaledBytes.to_floats
    monkeypatch.setattr(ScaledBytes, "to_floats", lambda rows: whole(rows) if len(rows) <= reserved else None)
    for place, case in enumerate(CASES.values()):
        run(settings({}, **case) | {"certificates": ["paper"]}, plugins={"pixels": Pixels}, out=tmp_path / str(place))


def test_a_dataset_hands_out_floats() -> None:
    data = Pixels().load()
    assert isinstance(data.kept_x, ScaledBytes)
    x: NDArray[Any] = data.x
    assert x.dtype == np.float32
    assert x.shape == (200, 12)
    assert (x.min(), x.max()) == (0.0, 1.0)
    x[:] = 0.5
    assert data.x.max() == 1.0  # writers have a copy
    assert replace(data, y=1 - data.y).x.tobytes() == data.x.tobytes()


def test_data_of_a_federation_hand_out_floats() -> None:
    data = federation_of({}).data
    assert data.x.dtype == torch.float32
    assert torch.equal(data.x_of(torch.tensor([3, 1])), data.x[[3, 1]])
    assert torch.equal(data.x_of(data.y == 1), data.x[data.y == 1])
    assert torch.equal(torch.cat(list(data.x_split(64))), data.x)
    data.x.zero_()
    assert float(data.x.max()) == 1.0


def test_hooks_see_floats(tmp_path: Path) -> None:
    session = Session.of(federation_of({}), tmp_path)
    run_context = session.context
    assert torch.equal(run_context.features, run_context.data.x)
    assert torch.equal(run_context.features_of(slice(3)), run_context.data.x[:3])
    assert isinstance(session.resume_after(2).context.feature_rows, ByteRows)


class Writer(Attack):
    """Writes to the bytes themselves, past everything that is public."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        assert isinstance(data.input_rows, ByteRows)
        data.input_rows.raw.numpy()[0, 0] ^= 1
        return {}


def test_who_changes_the_bytes_is_found_out(tmp_path: Path) -> None:
    registry = Registry({"pixels": Pixels, "writer": Writer})
    config = load_config(settings({}, attack={"type": "writer", "clients": [0]}), registry=registry).config
    with pytest.raises(InputsChanged, match="work on a copy"):
        build(config)
    context: RunContext = Session.of(federation_of({}), tmp_path).context
    assert isinstance(context.feature_rows, ByteRows)
    with pytest.raises(InputsChanged), guard_inputs("a plugin", context):
        context.feature_rows.raw[0, 0] ^= 1


def test_rounds_gather_into_the_same_memory() -> None:
    federation = federation_of({})
    training, clients = LocalTraining(federation), federation.participation.participants(1)
    starts = federation.start.parameters[None, None]
    seen = []
    for number in (1, 2, 3):
        training.train(TrainingTask(number, starts, clients, attacked=False), slice(0, 4))
        seen.append({name: room.data_ptr() for name, room in training._gathering._room.items()})
    assert set(seen[0]) == {torch.uint8, torch.float32}
    assert seen[0] == seen[1] == seen[2]


def test_every_thread_gathers_into_memory_of_its_own() -> None:
    gathering = BatchBuffer()
    mine = gathering.memory_for(torch.float32, CPU, (4, 3))
    assert gathering.memory_for(torch.float32, CPU, (2, 3)).data_ptr() == mine.data_ptr()
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(gathering.memory_for, torch.float32, CPU, (4, 3)).result()
    assert theirs.data_ptr() != mine.data_ptr()


def test_many_features_are_mapped_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of fast maps, block by block: they are never in memory together."""
    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(features_module, "FEATURE_NUMBERS_AT_ONCE", 12 * 32)
    maps = FeatureMaps([UnitBall()], 12)
    x: Any = federation_of({}).data.input_rows
    expected = map_inputs(maps, x)
    assert torch.equal(load_or_compute_features(maps, x), expected)
    assert not list(tmp_path.rglob("*.npy"))
    monkeypatch.setattr(features_module, "LARGE", expected.nbytes)
    monkeypatch.setattr(features_module, "compute_features", None)  # computing them in memory fails
    for _ in range(2):
        assert torch.equal(load_or_compute_features(maps, x), expected)
    assert len(list(tmp_path.rglob("*.npy"))) == 1


def test_many_features_are_computed_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "features").write_text("no folder")
    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(features_module, "LARGE", 1)
    maps = FeatureMaps([UnitBall()], 12)
    x: Any = federation_of({}).data.input_rows
    assert torch.equal(load_or_compute_features(maps, x), map_inputs(maps, x))
