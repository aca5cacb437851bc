"""Our rules in a user's Flower app: one line changes, and there are ledger and certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from crfl_flower.strategy import CrflStrategy
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from crfl_core.extend import ConfigError, RunError
from tests.flower.plain_app import CLIENTS, RATE, SAMPLES, app, share, trained

Answer = Callable[[Message, Context], Message | None]


class AppGrid(Grid):
    """A grid whose clients answer at once, in this process."""

    def __init__(self, nodes: dict[int, Answer] | None = None) -> None:
        self._nodes = {7 * client + 5: app for client in range(CLIENTS)} | (nodes or {})
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            client = sorted(self._nodes).index(node)
            context = Context(1, node, {"partition-id": client}, RecordDict(), {})
            message.metadata.__dict__["_message_id"] = f"{node}"
            reply = self._nodes[node](message, context)
            replies += [] if reply is None else [reply]
        return replies


def config(folder: Path, **changes: Any) -> Path:
    """What the app's clients do, as a config says it."""
    tree: dict[str, Any] = {
        "device": "cpu",
        "dataset": {"type": "digits", "test_samples": 50},
        "partition": {"type": "remote", "clients": CLIENTS, "samples": [SAMPLES] * CLIENTS},
        "model": {"type": "softmax", "bias": False},
        "training": {"learning_rate": RATE, "steps": 1, "batch_size": SAMPLES},
        "server": {"noise_std": 0.0},
        "threat": {"clients": 1, "rounds": "every", "poison": "update"},
        "certificates": ["pathwise-linear"],
        "storage": {"figures": [], "checkpoint_seconds": 0},
    }
    path = folder / "crfl.toml"
    path.write_text(tomli_w.dumps(tree | changes), encoding="utf-8")
    return path


def start() -> ArrayRecord:
    return ArrayRecord([np.zeros((10, 64), np.float32)])


def test_one_line_changes_and_there_is_a_certificate(tmp_path: Path) -> None:
    plain = FedAvg(min_available_nodes=CLIENTS).start(AppGrid(), start(), num_rounds=2)
    strategy = CrflStrategy(config(tmp_path), out=tmp_path / "run", min_available_nodes=CLIENTS)
    ours = strategy.start(AppGrid(), start(), num_rounds=2)
    assert np.allclose(plain.arrays["0"].numpy(), ours.arrays["0"].numpy(), atol=1e-6)
    assert ours.train_metrics_clientapp[2] == MetricRecord({"counted": 3, "zero": 0})
    assert ours.evaluate_metrics_clientapp.keys() == {1, 2}
    assert strategy.result is not None
    assert strategy.result.ledger.facts.rounds == 2
    assert not strategy.result.metrics.refused
    assert (tmp_path / "run" / "certificates" / "pathwise-linear.csv").exists()


def test_names_of_parameters_are_kept_and_the_model_starts_where_the_app_says(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((10, 64)).astype(np.float32) * 0.1
    strategy = CrflStrategy(config(tmp_path), out=tmp_path / "run", fraction_evaluate=0.0)
    found = strategy.start(AppGrid(), ArrayRecord({"weight": Array(weight)}), num_rounds=1)
    expected = np.mean([trained(weight.astype(np.float64), *share(client)) for client in range(CLIENTS)], axis=0)
    assert np.allclose(found.arrays["weight"].numpy(), expected, atol=1e-5)
    assert strategy.result is not None
    assert strategy.result.ledger.facts.start.kind == "file"


def raising(message: Message, _: Context) -> Message:
    return Message(Error(code=0, reason="no"), reply_to=message)


def sending(*arrays: Any) -> Answer:
    def answer(message: Message, _: Context) -> Message:
        return Message(RecordDict({"arrays": ArrayRecord(list(arrays))}), reply_to=message)

    return answer


def claiming(data: bytes, shape: tuple[int, ...] = (10, 64)) -> Answer:
    """A client that sends bytes as an array of the right shape."""
    array = Array(dtype="float32", shape=shape, stype="numpy.ndarray", data=data)
    return lambda message, _: Message(RecordDict({"arrays": ArrayRecord({"0": array})}), reply_to=message)


def numpy_file(description: str, numbers: bytes = bytes(2560)) -> bytes:
    """A file of NumPy with any header."""
    return b"\x93NUMPY\x01\x00" + len(description).to_bytes(2, "little") + description.encode() + numbers


@pytest.mark.parametrize(
    "node",
    [
        claiming(numpy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000)}")),
        claiming(numpy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (10, 64)}", b"")),
        claiming(numpy_file("{'descr': '|O', 'fortran_order': False, 'shape': (10, 64)}")),
        claiming(numpy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (10,")),
        claiming(numpy_file("(" * 3000)),
        claiming(b"PK\x03\x04" + bytes(2600)),
        claiming(b""),
        claiming(bytes(2600), (-1, 64)),
    ],
    ids=["a million millions", "no numbers", "objects", "half a header", "nested", "zip", "nothing", "negative"],
)
def test_an_array_that_is_none_is_a_zero_update(tmp_path: Path, node: Answer) -> None:
    strategy = CrflStrategy(config(tmp_path), out=tmp_path / "run", fraction_evaluate=0.0)
    found = strategy.start(AppGrid({12: node}), start(), num_rounds=1)
    assert found.train_metrics_clientapp[1] == MetricRecord({"counted": 2, "zero": 1})


def test_an_array_by_columns_is_read_like_any_other(tmp_path: Path) -> None:
    def by_columns(message: Message, context: Context) -> Message:
        reply = app(message, context)
        (record,) = reply.content.array_records.values()
        for name, array in record.items():
            record[name] = Array(np.asfortranarray(array.numpy()))
        return reply

    for name, node in (("rows", app), ("columns", by_columns)):
        strategy = CrflStrategy(config(tmp_path), out=tmp_path / name, fraction_evaluate=0.0)
        strategy.start(AppGrid({12: node}), start(), num_rounds=1)
    assert (tmp_path / "rows/model.safetensors").read_bytes() == (tmp_path / "columns/model.safetensors").read_bytes()


def test_a_reply_to_an_evaluation_ends_no_run(tmp_path: Path) -> None:
    def lying(message: Message, context: Context) -> Message:
        if message.metadata.message_type != "evaluate":
            return app(message, context)
        return Message(RecordDict({"other": MetricRecord({"accuracy": [1.0, 2.0]})}), reply_to=message)

    strategy = CrflStrategy(config(tmp_path), out=tmp_path / "run", min_available_nodes=CLIENTS)
    strategy.start(AppGrid({12: lying}), start(), num_rounds=1)
    assert strategy.result is not None


@pytest.mark.parametrize(
    "node",
    [
        raising,
        lambda *_: None,
        sending(np.full((10, 64), np.nan, np.float32)),
        sending(np.full((10, 64), 1e6, np.float32)),
        sending(np.zeros((10, 65), np.float32)),
        sending(np.zeros((10, 64), np.float32), np.zeros(3, np.float32)),
        sending(np.zeros((10, 64), np.int64)),
    ],
    ids=["raises", "silent", "not finite", "too far", "wrong shape", "more arrays", "whole numbers"],
)
def test_a_bad_reply_is_a_zero_update_that_keeps_its_weight(tmp_path: Path, node: Answer) -> None:
    strategy = CrflStrategy(config(tmp_path), out=tmp_path / "run", fraction_evaluate=0.0)
    found = strategy.start(AppGrid({12: node}), start(), num_rounds=1)
    assert found.train_metrics_clientapp[1] == MetricRecord({"counted": 2, "zero": 1})
    assert strategy.result is not None
    rows = strategy.result.ledger.clients
    assert rows.client[rows.quarantined].tolist() == [1]
    assert np.allclose(rows.weight_bound, 1 / 3)


def test_an_app_that_stops_goes_on_where_it_was(tmp_path: Path) -> None:
    class Stop(Exception): ...

    def stopping(message: Message, context: Context) -> Message | None:
        if message.content["config"]["server-round"] == 2:
            raise Stop
        return app(message, context)

    first = CrflStrategy(config(tmp_path), out=tmp_path / "run", fraction_evaluate=0.0)
    with pytest.raises(Stop):
        first.start(AppGrid({12: stopping}), start(), num_rounds=3)
    again = CrflStrategy(config(tmp_path), out=tmp_path / "run", fraction_evaluate=0.0)
    found = again.start(AppGrid(), start(), num_rounds=3)
    assert found.train_metrics_clientapp.keys() == {1, 2}
    whole = CrflStrategy(config(tmp_path), out=tmp_path / "whole", fraction_evaluate=0.0)
    whole.start(AppGrid(), start(), num_rounds=3)
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_what_is_wrong_with_the_config_is_said_in_the_app(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"threat\.clients"):
        CrflStrategy(config(tmp_path, threat={})).start(AppGrid(), start(), num_rounds=1)


def test_arrays_without_names_must_be_where_the_model_starts(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="name them as its parameters are named"):
        CrflStrategy(config(tmp_path), out=tmp_path / "run").start(
            AppGrid(), ArrayRecord([np.ones((10, 64), np.float32)]), num_rounds=1
        )
