"""Several runs in threads of one process: each is what it would be alone, and the process is left as it was."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

import crfl_core
from crfl_core.plugin_loading.registry import FoundPlugin, import_plugin
from tests.oracle import contents, tiny

RUNS = 4
MODELS: list[dict[str, Any]] = [{"type": "mlp", "hidden": [8]}, {"type": "cnn", "channels": [3]}]


@pytest.fixture
def threads_take_turns_often() -> Iterator[None]:
    """A hundred times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)


def config(number: int) -> dict[str, Any]:
    """Runs that differ in the model, the rule and the seed, each with a figure."""
    rule = {"type": ["fedavg", "rfa"][number % 2]}
    storage = {"figures": ["svg"]}
    return tiny(model=MODELS[number // 2], seed=number, rounds=2, storage=storage, aggregation=[rule])


@pytest.mark.usefixtures("threads_take_turns_often")
def test_runs_in_threads_are_bit_for_bit_what_they_are_alone(tmp_path: Path) -> None:
    alone = [contents(crfl_core.run(config(number), out=tmp_path / f"alone-{number}").path) for number in range(RUNS)]
    count, start = torch.get_num_threads(), Barrier(RUNS)

    def run(number: int) -> dict[str, bytes]:
        start.wait()
        return contents(crfl_core.run(config(number), out=tmp_path / f"together-{number}").path)

    with ThreadPoolExecutor(RUNS) as pool:
        together = list(pool.map(run, range(RUNS)))
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.keys() == theirs.keys()
        assert [name for name in theirs if ours[name] != theirs[name]] == []
    assert torch.get_num_threads() == count


def test_plugins_imported_in_threads_give_standard_output_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second import begins during the first one and would end after it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, seconds in (("slow_first", 0.2), ("slow_second", 0.3)):
        source = f"import time\ntime.sleep({seconds})\nprint('imported')\nvalue = {seconds}\n"
        (tmp_path / f"{name}.py").write_text(source)

    def load(name: str) -> object:
        time.sleep(0.1 if name == "slow_second" else 0.0)
        return import_plugin(
            FoundPlugin("aggregator", name, "slow", "1", EntryPoint(name, f"{name}:value", "crfl.aggregators"))
        )

    output = sys.stdout
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(load, ["slow_first", "slow_second"])) == [0.2, 0.3]
    assert sys.stdout is output
    assert capsys.readouterr() == ("", "imported\nimported\n")
