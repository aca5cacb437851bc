"""TensorBoard and MLflow, each read back with its own library."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import crfl_core
from crfl_core import CrflWarning, RunResult
from tests.oracle import Momentum, contents, stopping, tiny

pytest.importorskip("mlflow")
pytest.importorskip("tensorboard")

BOTH = ("tensorboard", "mlflow")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An MLflow store in a file, in a current directory of its own; nothing asks the network."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        yield f"sqlite:///{folder}/mlflow.db"


def config(store: str, *names: str, **changes: Any) -> dict[str, Any]:
    """A small run that trackers watch."""
    known: dict[str, Any] = {"tensorboard": "tensorboard", "mlflow": {"type": "mlflow", "uri": store}}
    return tiny(trackers=[known[name] for name in names], **changes)


def board(run: RunResult) -> Any:
    """What TensorBoard reads from the directory of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    reader.Reload()
    return reader


def scalars(run: RunResult, name: str) -> list[tuple[int, float]]:
    """The steps and values of a scalar."""
    return [(event.step, event.value) for event in board(run).Scalars(name)]


def client(store: str) -> Any:
    """What MLflow reads with."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store)


def logged(run: RunResult, store: str) -> Any:
    """The MLflow run that a run directory names."""
    return client(store).get_run(json.loads((run.path / "mlflow.json").read_text())["run_id"])


def history(run: RunResult, store: str, name: str) -> list[tuple[int, float]]:
    """The steps and values of an MLflow metric."""
    found = client(store).get_metric_history(logged(run, store).info.run_id, name)
    return [(metric.step, metric.value) for metric in found]


@pytest.fixture(scope="module")
def run(store: str, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return crfl_core.run(config(store, *BOTH), out=tmp_path_factory.mktemp("watched") / "run")


class TestTensorBoard:
    def test_rounds_are_scalars(self, run: RunResult) -> None:
        for name in ("accuracy", "loss", "success_rate", "norm_before_clip"):
            found = scalars(run, name)
            assert [step for step, _ in found] == [1, 2, 3, 4]
            assert [value for _, value in found] == pytest.approx([getattr(one, name) for one in run.ledger.rounds])

    def test_curves_config_and_figures_are_there(self, run: RunResult) -> None:
        curve = run.metrics.curves[0]
        name = f"{curve.certificate}/{curve.level}/{curve.test_set}"
        assert [value for _, value in scalars(run, f"radius/{name}")] == pytest.approx(curve.radii)
        found = [value for _, value in scalars(run, f"certified_accuracy/{name}")]
        assert found == pytest.approx(curve.certified_accuracy)
        tags = board(run).Tags()
        assert {"figures/curves", "figures/rounds", "figures/weights", "figures/partition"} == {*tags["images"]}
        assert {"config/text_summary", f"certified/{name}/text_summary"} <= {*tags["tensors"]}
        (picture,) = board(run).Images("figures/rounds")
        assert picture.encoded_image_string.startswith(b"\x89PNG")
        assert "_hparams_/session_start_info" in board(run).summary_metadata

    def test_figures_can_be_left_out(self, store: str, tmp_path: Path) -> None:
        trackers = [{"type": "tensorboard", "figures": False, "path": str(tmp_path / "elsewhere")}]
        result = crfl_core.run(tiny(trackers=trackers, certificates=[]), out=tmp_path / "run")
        assert not (result.path / "tensorboard").exists()
        assert list((tmp_path / "elsewhere").iterdir())


class TestMLflow:
    def test_the_config_is_parameters_and_rounds_are_metrics(self, run: RunResult, store: str) -> None:
        found = logged(run, store)
        assert found.info.status == "FINISHED"
        assert found.info.run_name == "tiny"
        assert found.data.params["server.clip_norm"] == "4.0"
        assert found.data.params["attack.type"] == "model-replacement"
        assert found.data.metrics["final/accuracy"] == run.metrics.accuracy
        expected = [(record.round, record.accuracy) for record in run.ledger.rounds]
        assert history(run, store, "accuracy") == expected
        assert client(store).get_experiment(found.info.experiment_id).name == "crfl"

    def test_curves_are_metrics_and_figures_artifacts(self, run: RunResult, store: str) -> None:
        curve = run.metrics.curves[0]
        name = f"certified_accuracy/{curve.certificate}/{curve.level}/{curve.test_set}"
        assert [value for _, value in history(run, store, name)] == list(curve.certified_accuracy)
        identity = logged(run, store).info.run_id
        assert {"config.toml", "metrics.json"} <= {file.path for file in client(store).list_artifacts(identity)}
        pictures = {file.path for file in client(store).list_artifacts(identity, "figures")}
        assert {"figures/curves.svg", "figures/rounds.png", "figures/partition.png"} <= pictures

    def test_without_a_uri_the_store_is_beside_the_run(self, store: str, tmp_path: Path) -> None:
        here = {path.name for path in Path.cwd().iterdir()}
        settings = tiny(trackers=["mlflow"], certificates=[])
        result = crfl_core.run(settings, out=tmp_path / "runs" / "one")
        found = logged(result, f"sqlite:///{tmp_path}/runs/mlflow.db")
        assert (found.info.status, found.info.run_name) == ("FINISHED", "tiny")
        assert list((tmp_path / "runs" / "mlruns").rglob("metrics.json"))
        assert {path.name for path in Path.cwd().iterdir()} == here


class TestBoth:
    def test_a_tracker_changes_no_result(self, run: RunResult, tmp_path: Path) -> None:
        alone = crfl_core.run(tiny(), out=tmp_path / "alone")
        for name in ("model.safetensors", "rounds.jsonl", "metrics.json"):
            assert contents(alone.path)[name] == contents(run.path)[name]

    def test_a_resumed_run_goes_on_in_the_same_place(self, store: str, tmp_path: Path) -> None:
        settings = config(store, *BOTH, aggregation="slow", certificates=[], storage={"checkpoint_seconds": 0})
        with pytest.raises(KeyboardInterrupt):
            crfl_core.run(settings, out=tmp_path / "run", plugins={"slow": stopping(3, KeyboardInterrupt())})
        begun = json.loads((tmp_path / "run" / "mlflow.json").read_text())["run_id"]
        assert client(store).get_run(begun).info.status == "KILLED"
        result = crfl_core.resume(tmp_path / "run", plugins={"slow": Momentum}, trust=True)
        assert logged(result, store).info.run_id == begun
        assert logged(result, store).info.status == "FINISHED"
        assert [step for step, _ in history(result, store, "accuracy")] == [1, 2, 3, 4]
        assert [step for step, _ in scalars(result, "accuracy")] == [1, 2, 3, 4]

    @pytest.mark.parametrize("name", BOTH)
    def test_a_tracker_that_fails_is_named_and_the_run_goes_on(self, name: str, tmp_path: Path, store: str) -> None:
        (tmp_path / "file").write_text("not a directory")
        wrong: dict[str, dict[str, str]] = {
            "tensorboard": {"type": "tensorboard", "path": str(tmp_path / "file" / "below")},
            "mlflow": {"type": "mlflow", "uri": f"sqlite:///{tmp_path}/file/below/mlflow.db"},
        }
        expected = f"tracker '{name}' of crfl .*failed in crfl_run_started: .*continues without"
        with pytest.warns(CrflWarning, match=expected):
            result = crfl_core.run(tiny(trackers=[wrong[name]], certificates=[]), out=tmp_path / "run")
        assert result.metrics.accuracy > 0

    @pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")])
    def test_a_missing_library_is_named_with_its_extra(
        self, name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
    ) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.warns(CrflWarning, match=rf'is not here: `pip install "crfl\[{name}\]"`; the run continues'):
            crfl_core.run(tiny(trackers=[name], certificates=[]), out=tmp_path / "run")

    def test_the_command_line_knows_them(self, crfl: Callable[..., CompletedProcess[str]]) -> None:
        listed = crfl("plugins").stdout
        assert "tensorboard" in listed
        assert "mlflow" in listed
        assert os.environ.get("MLFLOW_TRACKING_URI") is None
