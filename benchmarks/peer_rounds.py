"""The same round in pfl-research and in ByzFL, played by an interpreter that has them: `make peers` makes one.

Neither fits the pinned versions of this repository: pfl needs NumPy 1. So this file stands alone, imports nothing of
ours, and prints CPU seconds of one thread, the best of some rounds. Data are in memory. pfl keeps the batches of a
client, so it does not reshuffle; ByzFL reads its own through a DataLoader, as it demands.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest.mock import MagicMock

import torch
from torch import nn

INTERPRETER = Path(os.environ.get("CRFL_PEERS", "/tmp/crfl-peers"), "bin", "python")
CLIENTS = 20
BATCH = 100
STEPS = 30
RATE = 0.01
CLASSES = 10
FEATURES = 784
PER_CLIENT = 3000
ROUNDS = 8
ABSENT = ("torchvision", "torchvision.datasets", "torchvision.transforms", "matplotlib", "matplotlib.pyplot", "seaborn")
"""What ByzFL downloads and draws with; its rounds do without."""


def peer_times() -> dict[str, float]:
    """Measure CPU seconds of a round of every framework that is installed, by name."""
    return measure_elsewhere("softmax")


def network_peer_times() -> dict[str, float]:
    """Measure CPU seconds of a round of every peer with each network, such as "ByzFL mlp"."""
    return measure_elsewhere("networks")


def measure_elsewhere(what: str) -> dict[str, float]:
    """Run this file with the peers' interpreter, and return what it prints, by name."""
    if not INTERPRETER.exists():
        return {}
    done = subprocess.run([INTERPRETER, __file__, what], check=True, stdout=subprocess.PIPE, text=True)
    pairs = (line.rsplit(" ", 1) for line in done.stdout.splitlines() if line.startswith("peer "))
    return {name.removeprefix("peer "): float(seconds) for name, seconds in pairs}


def new_softmax() -> nn.Module:
    """Return a softmax regression."""
    return nn.Linear(FEATURES, CLASSES, bias=False)


def new_mlp() -> nn.Module:
    """Return the layers of our model `mlp`."""
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def new_cnn() -> nn.Module:
    """Return the layers of our model `cnn`."""
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 28, 28))]
    for inputs, outputs in ((1, 8), (8, 16)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(7 * 7 * 16, CLASSES))


def pfl_rounds(
    new_module: Callable[[], nn.Module] = new_softmax, batch: int = BATCH, steps: int = STEPS
) -> Iterator[float]:
    """Yield the times between rounds of federated averaging in pfl; a client has as many samples as it uses."""
    import numpy as np
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops.pytorch_ops import to_tensor
    from pfl.model.pytorch import PyTorchModel

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = new_module()

        def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:  # noqa: ARG002
            return torch.nn.functional.cross_entropy(self.inner(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> dict[str, object]:  # noqa: ARG002
            return {}

    moments: list[float] = []

    class Clock(TrainingProcessCallback):  # type: ignore[misc]  # it carries no types
        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, object]:
            from pfl.metrics import Metrics

            moments.append(time.process_time())
            return False, Metrics()

    generator = np.random.default_rng(0)
    users = [
        Dataset(
            (
                to_tensor(generator.random((batch * steps, FEATURES), dtype=np.float32)),
                torch.from_numpy(generator.integers(CLASSES, size=batch * steps)),
            )
        )
        for _ in range(CLIENTS)
    ]
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(CLIENTS))))
    module = WithLoss()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(ROUNDS + 1, evaluation_frequency=1000, train_cohort_size=CLIENTS, val_cohort_size=0),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=batch),
        NNEvalHyperParams(local_batch_size=batch),
        [Clock()],
        send_metrics_to_platform=False,
    )
    yield from moments


def byzfl_rounds(
    new_module: Callable[[], nn.Module] | None = None, batch: int = BATCH, steps: int = STEPS
) -> Iterator[float]:
    """Yield the times between rounds of federated averaging in ByzFL, by default of its own softmax regression."""
    for name in ABSENT:
        sys.modules[name] = MagicMock()
    from byzfl import Client, Server
    from byzfl.fed_framework import models
    from torch.utils.data import DataLoader, TensorDataset

    if new_module is not None:
        models.compared = new_module  # it looks models up by name

    def loader() -> DataLoader[tuple[torch.Tensor, ...]]:
        x = torch.rand(PER_CLIENT, FEATURES)
        y = torch.randint(CLASSES, (PER_CLIENT,))
        return DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True)

    common: dict[str, object] = {
        "model_name": "logreg_mnist" if new_module is None else "compared",
        "device": "cpu",
        "optimizer_name": "SGD",
        "learning_rate": RATE,
        "weight_decay": 0.0,
        "milestones": [],
        "learning_rate_decay": 1.0,
    }
    own: dict[str, object] = {
        "loss_name": "CrossEntropyLoss",
        "LabelFlipping": False,
        "nb_labels": CLASSES,
        "momentum": 0.0,
    }
    clients = [
        Client(common | own | {"training_dataloader": loader(), "store_per_client_metrics": False})
        for _ in range(CLIENTS)
    ]
    mean: dict[str, object] = {
        "aggregator_info": {"name": "Average", "parameters": {}},
        "pre_agg_list": [],
        "test_loader": loader(),
    }
    server = Server(common | mean)
    for _ in range(ROUNDS + 1):
        for client in clients:
            client.set_model_state(server.get_dict_parameters())
            client.compute_model_update(steps)
        server.update_model_with_weights([client.get_flat_parameters() for client in clients])
        yield time.process_time()


PEERS: dict[str, tuple[str, Callable[..., Iterator[float]]]] = {
    "pfl-research": ("pfl", pfl_rounds),
    "ByzFL": ("byzfl", byzfl_rounds),
}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {"mlp": (new_mlp, 100, 30), "cnn": (new_cnn, 50, 10)}
"""Each network with its batch size and number of local steps."""


def main() -> None:
    torch.set_num_threads(1)
    measured: dict[str, tuple[str, Callable[..., Iterator[float]]]] = PEERS
    if sys.argv[1:] == ["networks"]:
        measured = {
            f"{peer} {name}": (package, partial(rounds, *network))
            for peer, (package, rounds) in PEERS.items()
            for name, network in NETWORKS.items()
        }
    for name, (package, rounds) in measured.items():
        if importlib.util.find_spec(package) is not None:
            moments = list(rounds())
            print("peer", name, min(later - earlier for earlier, later in pairwise(moments)))


if __name__ == "__main__":
    main()
