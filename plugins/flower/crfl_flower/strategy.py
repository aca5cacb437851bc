"""`CrflStrategy(config)`: the rules of this framework in an existing Flower app, in place of `FedAvg()`.

The app keeps its clients, its messages and its loop. Replies pass through the aggregation of the config, with clip
and noise; the run directory receives ledger and certificates.
"""

from __future__ import annotations

import io
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.supercore import log
from flwr.superlink.grid import HttpGrid
from safetensors.torch import save_file
from torch import Tensor

from crfl_core import RunResult, run
from crfl_core.errors import RunError
from crfl_core.records.round import TrainingTask
from crfl_flower.bounded_grid import bound_grid
from crfl_flower.exchange import check_update_bound
from crfl_flower.messages import OVERHEAD_BYTES, MalformedMessage
from crfl_flower.strategy_bridge import CURRENT_BRIDGE, LayoutTracker, StrategyBridge

HEADER_BYTES = 4096
"""Bytes that an array in NumPy's format may have in addition to its numbers."""
HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of the header of NumPy's format, by version."""


class CrflStrategy(FedAvg):
    """Flower strategy with the server step of a config: aggregation, clip, noise, ledger and certificates.

    The config states how clients train, the assumed threat and the certificates; its partition is `remote`, with the
    sample count of every client. Clients are the nodes in ascending order of their ids; the strategy waits for them for
    at most `wait` seconds. A reply that is missing or broken counts as a zero update that keeps its weight. `result` is
    the finished run. Other options are those of `FedAvg`, for the evaluation on clients.
    """

    def __init__(
        self,
        config: str | Path,
        *,
        out: str | Path | None = None,
        overrides: Sequence[str] = (),
        wait: float = 600.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._config = config
        self._out = out
        self._overrides = tuple(overrides)
        self._wait = wait
        self._bridge = StrategyBridge()
        self._nodes: list[int] = []
        self._names: dict[str, tuple[int, ...]] = {}
        self._task: TrainingTask | None = None
        self.result: RunResult | None = None

    def start(  # noqa: PLR0913
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds, then certify.

        An unfinished run of the same config is resumed.
        """
        self._names = {name: tuple(array.shape) for name, array in initial_arrays.items()}
        worker = threading.Thread(target=copy_context().run, args=(self._play, initial_arrays, num_rounds), daemon=True)
        worker.start()
        try:
            self._take_next()
            left = num_rounds if self._task is None else num_rounds - self._task.number + 1
            self._check_start(initial_arrays)
            if isinstance(grid, HttpGrid):  # Flower's ends the app at a reply that it cannot read
                numbers = sum(map(math.prod, self._names.values()))
                grid = bound_grid(grid, 8 * numbers + HEADER_BYTES * len(self._names) + OVERHEAD_BYTES)
            found = super().start(grid, initial_arrays, left, timeout, train_config, evaluate_config, evaluate_fn)
        finally:
            if self.result is None:
                self._bridge.send_answers(None)
            worker.join()
        return found

    def configure_train(
        self,
        server_round: int,  # noqa: ARG002  # the core counts rounds, also those before a restart
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Send the core's model to every participant of the round.

        `arrays` is the same model.
        """
        task = self._current_task()
        config["server-round"] = task.number
        nodes = self._gather_nodes(grid, int(task.clients.ids.max()) + 1)
        record = RecordDict(
            {self.arrayrecord_key: self._arrays_from_model(task.starts[0, 0]), self.configrecord_key: config}
        )
        return [
            Message(record, dst_node_id=nodes[client], message_type=MessageType.TRAIN) for client in task.clients.ids
        ]

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Pass the replies to the core and return the next model.

        The metrics say how many replies counted.
        """
        task = self._current_task()
        places = {self._nodes[client]: place for place, client in enumerate(task.clients.ids)}
        updates: dict[int, Tensor | None] = dict.fromkeys(range(len(task.clients)))
        for reply in replies:
            place = places.get(reply.metadata.src_node_id)
            if place is not None:
                updates[place] = self._read_update(reply, task, place)
        self._bridge.send_answers(list(updates.items()))
        counted = sum(update is not None for update in updates.values())
        self._take_next()
        model = self._final_model() if self._task is None else self._task.starts[0, 0]
        return self._arrays_from_model(model), MetricRecord({"counted": counted, "zero": len(updates) - counted})

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Aggregate the metrics of the evaluation on clients.

        The result is None if a reply does not fit the others.
        """
        try:
            return super().aggregate_evaluate(server_round, replies)
        except Exception as error:  # a hostile reply may raise anything, and no certificate uses these metrics
            log(WARNING, "round %s: no metrics of the clients, %s: %s", server_round, type(error).__name__, error)
            return None

    def _play(self, initial_arrays: ArrayRecord, num_rounds: int) -> None:
        """Run the core's rounds, in a thread of their own."""
        CURRENT_BRIDGE.set(self._bridge)
        try:
            overrides = [*self._overrides, f"rounds={num_rounds}", 'engine={type="flower-strategy"}']
            overrides += self._save_start(initial_arrays)
            out = None if self._out is None else Path(self._out)
            self._bridge.send_outcome(run(self._config, overrides=overrides, out=out, trackers=[LayoutTracker()]))
        except BaseException as error:  # the app is waiting and must get the error
            self._bridge.send_outcome(error)

    def _save_start(self, arrays: ArrayRecord) -> list[str]:
        """Save named arrays as the start model.

        Return the override that uses it. The list is empty if all names are numbers.
        """
        if all(name.isdigit() for name in arrays):
            return []
        path = Path(self._out or "runs").absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.parent / f"{path.name}-start.safetensors"
        save_file({name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}, file)
        return [f'model.start="{file}"']

    def _check_start(self, arrays: ArrayRecord) -> None:
        """Raise `RunError` if arrays without names differ from the config's start model."""
        if self._task is None or self._task.number > 1 or not all(name.isdigit() for name in arrays):
            return
        given = torch.from_numpy(np.concatenate([array.numpy().ravel() for array in arrays.values()]))
        start = self._task.starts[0, 0]
        if given.shape != start.shape or not bool(torch.allclose(given.to(start), start)):
            raise RunError(
                f"initial_arrays hold {given.numel()} numbers that are not where the model of the config starts, which "
                f"has {start.numel()}: name them as its parameters are named, and it starts there"
            )

    def _current_task(self) -> TrainingTask:
        if self._task is None:
            raise RunError("the run is over: call start() for another one")
        return self._task

    def _take_next(self) -> None:
        found = self._bridge.wait_for_task()
        self._task = found if isinstance(found, TrainingTask) else None
        self.result = found if isinstance(found, RunResult) else None

    def _gather_nodes(self, grid: Grid, clients: int) -> list[int]:
        """Return the nodes of all clients, which are chosen once."""
        until = time.monotonic() + self._wait
        while len(self._nodes) < clients:
            self._nodes = sorted(grid.get_node_ids())[:clients]
            if len(self._nodes) < clients and time.monotonic() > until:
                raise RunError(f"{len(self._nodes)} of {clients} nodes are there after {self._wait:g} s")
            if len(self._nodes) < clients:
                time.sleep(0.5)
        return self._nodes

    def _final_model(self) -> Tensor:
        assert self.result is not None
        layout = self._bridge.layout
        assert layout is not None
        from safetensors.torch import load_file

        tensors = load_file(self.result.path / "model.safetensors")
        return torch.cat([tensors[name].flatten() for name, _ in layout.shapes])

    def _arrays_from_model(self, flat: Tensor) -> ArrayRecord:
        """Return the model with the app's array names."""
        layout = self._bridge.layout
        assert layout is not None
        named = {name: tensor.cpu().numpy() for name, tensor in layout.unflatten(flat).items()}
        if not all(name.isdigit() for name in self._names):
            return ArrayRecord({name: Array(named[name]) for name in self._names})
        pieces = np.split(flat.cpu().numpy(), np.cumsum([int(np.prod(shape)) for shape in self._names.values()])[:-1])
        return ArrayRecord(
            {
                name: Array(piece.reshape(shape))
                for (name, shape), piece in zip(self._names.items(), pieces, strict=True)
            }
        )

    def _read_update(self, reply: Message, task: TrainingTask, place: int) -> Tensor | None:
        """Return the update (P,) in a reply.

        The result is None if the update is broken.
        """
        try:
            start = task.starts[0, 0]
            update = self._flatten_reply(reply).to(start) - start
            if not bool(torch.isfinite(update).all()):
                return None
            check_update_bound(update[None], start[None], task.clients.take(slice(place, place + 1)))
        except Exception:  # a hostile reply may raise anything, here and inside Flower
            return None
        return update

    def _flatten_reply(self, reply: Message) -> Tensor:
        """Return the model in a reply as one vector.

        The vector is in the core's order. Raises `MalformedMessage` if the arrays are not those of the model.
        """
        if reply.has_error():
            raise MalformedMessage("an error")
        (record,) = reply.content.array_records.values()
        if set(record) != set(self._names):
            raise MalformedMessage(f"arrays {sorted(map(str, record))[:4]}")
        values = {name: read_numbers(record[name], shape) for name, shape in self._names.items()}
        layout = self._bridge.layout
        assert layout is not None
        order = self._names if all(name.isdigit() for name in self._names) else [name for name, _ in layout.shapes]
        return torch.cat([values[name] for name in order])


def read_numbers(array: Array, shape: tuple[int, ...]) -> Tensor:
    """Return the numbers of an array of this shape, flat.

    Raises `MalformedMessage` before it reads too many bytes. The header of NumPy's format is compared with what was
    asked for, so it allocates nothing by itself.
    """
    count = math.prod(shape)
    if tuple(array.shape) != shape or len(array.data) > 8 * count + HEADER_BYTES:
        raise MalformedMessage(f"an array of shape {tuple(array.shape)[:8]} and {len(array.data)} bytes")
    stream = io.BytesIO(array.data)
    read_header = HEADER_READERS.get(np.lib.format.read_magic(stream))
    if read_header is None:
        raise MalformedMessage("an array that is not in NumPy's format")
    found, by_columns, dtype = read_header(stream)
    if tuple(found) != shape or dtype.kind != "f":
        raise MalformedMessage(f"{dtype} of shape {found}")
    values = np.frombuffer(array.data, dtype, count, stream.tell())
    return torch.from_numpy(values.reshape(shape, order="F" if by_columns else "C").astype(np.float64)).flatten()
